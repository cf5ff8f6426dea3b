#!/usr/bin/env bash
# Measures the whole chain: target (memory volume), relay and initiator as
# three processes. Prints a line per workload. Needs bin/ (make build).
# RUNTIME, WARMUP and POLL change how.
set -euo pipefail
bin=$(cd "$(dirname "${BASH_SOURCE[0]}")/../bin" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-bench.XXXXXX")
runtime=${RUNTIME:-5s} warmup=${WARMUP:-1s} poll=${POLL:-adaptive}
target= relay=
finish() {
    local code=$?
    trap - EXIT
    for process in $relay $target; do
        kill -TERM "$process" 2>/dev/null || true
        wait "$process" || code=1
    done
    [ "$code" = 0 ] || tail -n 20 "$work"/*.log >&2 || true
    rm -rf -- "$work"
    exit "$code"
}
trap finish EXIT

"$bin/target" --listen-port 0 --address-file "$work/address" --volume bench=memory:1GiB --poll "$poll" 2>"$work/target.log" &
target=$!
for _ in $(seq 200); do
    [ -s "$work/address" ] && break
    kill -0 "$target"
    sleep 0.05
done
"$bin/zc-relay" run --storage-server "$(cat "$work/address")" --volume bench --emulated-dir "$work/comch" --poll "$poll" 2>"$work/relay.log" &
relay=$!

# field NAME: the number of that name in the JSON document on standard input
field() { awk -F '[:, ]+' -v name="\"$1\"" '{ for (i = 1; i < NF; i++) if ($i == name) { print $(i + 1); exit } }'; }

printf '%-10s %8s %6s %12s %10s %10s %10s %10s\n' workload block depth IOPS MiB/s 'p50 µs' 'p99 µs' 'p99.9 µs'
measure() { # measure RW BLOCK DEPTH
    local result
    result=$("$bin/initiator" bench --emulated-dir "$work/comch" --rw "$1" --block-size "$2" --queue-depth "$3" --queues 1 \
        --runtime "$runtime" --warmup "$warmup" --poll "$poll" --output json 2>"$work/initiator.log")
    printf '%-10s %8s %6s %12.0f %10.0f %10.1f %10.1f %10.1f\n' "$1" "$2" "$3" \
        "$(field iops <<<"$result")" "$(field bytes_per_second <<<"$result" | awk '{ print $1 / 1048576 }')" \
        "$(field p50 <<<"$result" | awk '{ print $1 / 1000 }')" "$(field p99 <<<"$result" | awk '{ print $1 / 1000 }')" \
        "$(field p99_9 <<<"$result" | awk '{ print $1 / 1000 }')"
}
for depth in 1 32 128; do measure randread 4KiB $depth; done
for depth in 1 32 128; do measure randwrite 4KiB $depth; done
measure read 128KiB 32
measure write 128KiB 32
