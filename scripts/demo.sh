#!/usr/bin/env bash
# Runs target, relay, and initiator as processes, with the providers that need no hardware. Writes a
# file through the chain, reads it back, compares both the copy and the volume with the original,
# and runs a short benchmark. Exits 0 only if everything succeeds. Needs bin/ (make build).
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/demo-chain.sh"
size=$((64 << 20))

step() { printf '\n== %s\n' "$*"; }

step "starting target and relay"
start_chain demo $size

initiator() { "$bin/initiator" "$@" --emulated-dir "$work/comch"; }

initiator info

step "writing $((size >> 20)) MiB through the chain and reading it back"
head -c "$size" /dev/urandom >"$work/original"
initiator put "$work/original"
initiator get "$work/copy"
cmp "$work/original" "$work/copy"
cmp "$work/original" "$work/volume.img"
echo "the copy and the volume are identical to the original"

step "verifying with 4 queues"
initiator verify --queues 4 --queue-depth 16 --passes 1

step "4 KiB random reads for 3 seconds"
initiator bench --rw randread --block-size 4KiB --queue-depth 32 --queues 1 \
    --runtime 3s --warmup 500ms

step "stopping relay and target"
