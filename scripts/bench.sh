#!/usr/bin/env bash
# Measures the whole chain: target (memory volume), relay and initiator as
# three processes. After each workload a bare chain (bench/calibrator) does the
# same without checks, slots or sessions: the ratio to it says more than any
# figure, because the machine is not the same from one minute to the next.
# Prints a line per workload. Needs bin/ (make build). RUNTIME, WARMUP and POLL
# change how.
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

go build -o "$work/calibrator" "$bin/../bench/calibrator"
bare() { # bare RW BLOCK DEPTH: IOPS of the bare chain
    mkdir "$work/bare"
    "$work/calibrator" "$work/bare" "${1#rand}" "$(($(sed 's/KiB/*1024/' <<<"$2")))" "$3" "$runtime" 2>/dev/null | cut -d ' ' -f 1
    rm -r "$work/bare"
}

printf '%-10s %8s %6s %10s %8s %9s %9s %9s %12s %6s\n' workload block depth IOPS MiB/s 'p50 µs' 'p99 µs' 'p99.9 µs' 'bare IOPS' ratio
measure() { # measure RW BLOCK DEPTH
    local result iops limit
    result=$("$bin/initiator" bench --emulated-dir "$work/comch" --rw "$1" --block-size "$2" --queue-depth "$3" --queues 1 \
        --runtime "$runtime" --warmup "$warmup" --poll "$poll" --output json 2>"$work/initiator.log")
    iops=$(field iops <<<"$result")
    limit=$(bare "$@")
    printf '%-10s %8s %6s %10.0f %8.0f %9.1f %9.1f %9.1f %12.0f %6.2f\n' "$1" "$2" "$3" \
        "$iops" "$(field bytes_per_second <<<"$result" | awk '{ print $1 / 1048576 }')" \
        "$(field p50 <<<"$result" | awk '{ print $1 / 1000 }')" "$(field p99 <<<"$result" | awk '{ print $1 / 1000 }')" \
        "$(field p99_9 <<<"$result" | awk '{ print $1 / 1000 }')" "$limit" "$(awk "BEGIN { print $iops / $limit }")"
}
for depth in 1 32 128; do measure randread 4KiB $depth; done
for depth in 1 32 128; do measure randwrite 4KiB $depth; done
measure read 128KiB 32
measure write 128KiB 32
