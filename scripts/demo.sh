#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs target, relay, and initiator as processes, with the providers that need no hardware. Writes a
# file through the chain, reads it back, compares both the copy and the volume with the original,
# and runs a short benchmark. Exits 0 only if everything succeeds. Needs bin/ (make build).
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/demo-chain.sh"
size=$((64 << 20))

step() { printf '\n== %s\n' "$*"; }

initiator() { "$bin/initiator" "$@" --emulated-dir "$work/comch"; }

head -c "$size" /dev/urandom >"$work/original"
rows=
for provider in iwarp auto; do
    step "starting target and relay with the RDMA provider $provider"
    start_chain demo $size $provider
    initiator info

    step "writing $((size >> 20)) MiB through the chain and reading it back ($provider)"
    initiator put "$work/original"
    initiator get "$work/copy"
    cmp "$work/original" "$work/copy"
    cmp "$work/original" "$work/volume.img"
    echo "the copy and the volume are identical to the original"

    step "verifying with 4 queues ($provider)"
    initiator verify --queues 4 --queue-depth 16 --passes 1

    step "4 KiB random reads for 3 seconds ($provider)"
    initiator bench --rw randread --block-size 4KiB --queue-depth 32 --queues 1 \
        --runtime 3s --warmup 500ms | tee "$work/bench"
    rows+=$(printf '\n%-6s %s' "$provider" "$(grep '^IOPS' "$work/bench")")

    step "stopping relay and target ($provider)"
    stop_chain
    rm -- "$work/copy" "$work/volume.img"
done

step "4 KiB random reads, depth 32, by RDMA provider"
echo "${rows#?}"
