#!/usr/bin/env bash
# Runs target, relay, and initiator as processes, with the providers that need no hardware. Writes a
# file through the chain, reads it back, compares both the copy and the volume with the original,
# and runs a short benchmark. Exits 0 only if everything succeeds. Needs bin/ (make build).
set -euo pipefail

bin=$(cd "$(dirname "${BASH_SOURCE[0]}")/../bin" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-demo.XXXXXX")
size=$((64 << 20))
target= relay=

finish() {
    local code=$?
    trap - EXIT
    for process in $relay $target; do
        kill -TERM "$process" 2>/dev/null || true
        wait "$process" || code=1
    done
    if [ "$code" != 0 ]; then
        echo "the demo failed; last lines of the logs:" >&2
        tail -n 20 "$work"/*.log >&2 || true
    fi
    rm -rf -- "$work"
    exit "$code"
}
trap finish EXIT

step() { printf '\n== %s\n' "$*"; }

step "starting target and relay"
"$bin/target" --listen-address 127.0.0.1 --listen-port 0 --address-file "$work/target.address" \
    --volume "demo=file:$work/volume.img,size=$size" 2>"$work/target.log" &
target=$!
for _ in $(seq 200); do
    [ -s "$work/target.address" ] && break
    kill -0 "$target"
    sleep 0.05
done
"$bin/zc-relay" run --storage-server "$(cat "$work/target.address")" --volume demo \
    --emulated-dir "$work/comch" 2>"$work/relay.log" &
relay=$!

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
