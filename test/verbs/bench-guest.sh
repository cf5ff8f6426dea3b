#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# bench-guest.sh - the part of bench.sh that runs in the VM.
#
# Usage: bench-guest.sh TEST-BINARY ROUNDS

set -u
ours=$1 rounds=$2
declare -A address=([rxe]=192.0.2.1 [siw]=10.0.2.15)
port=18515

# perftest TOOL COLUMN DEVICE OPTION...: print one column of the result line
perftest() {
    local tool=$1 column=$2 device=$3 server n=0
    shift 3
    port=$((port + 1))
    "$tool" -R -d "${device}0" -p $port "$@" >/tmp/server.log 2>&1 &
    server=$!
    sleep 1
    timeout 60 "$tool" -R -d "${device}0" -p $port "$@" "${address[$device]}" \
        >/tmp/client.log 2>&1
    wait $server
    awk -v column="$column" '$1 ~ /^[0-9]+$/ && NF > 4 { value = $column } END { print value }' \
        /tmp/client.log
}

# benchmark NAME DEVICE UNIT: print the result in UNIT. As in the programs, Go gets more processors
# than there are polling threads.
benchmark() {
    ZC_RELAY_VERBS_DEVICES=${2}0=${address[$2]} "$ours" \
        -test.run '^$' -test.bench "^$1\$" -test.benchtime 2s -test.cpu 4 2>&1 |
        awk -v unit="$3" '{ for (i = 2; i <= NF; i++) if ($i == unit) print $(i - 1) }'
}

# keep FILE VALUE: add a result to FILE
keep() { [ -z "$2" ] || echo "$2" >>"/tmp/$1"; }
highest() { sort -g "/tmp/$1" | tail -n 1; }
lowest() { sort -g "/tmp/$1" | head -n 1; }

for device in rxe siw; do
    for _ in $(seq "$rounds"); do
        # A megabyte is 2^20 bytes in perftest, and 10^6 bytes in Go.
        keep $device.write.perftest "$(perftest ib_write_bw 4 $device -s 65536 -n 2000)"
        keep $device.write.ours \
            "$(benchmark BenchmarkWrite64KiB $device MB/s | awk '{ print $1 / 1.048576 }')"
        keep $device.read.perftest "$(perftest ib_read_bw 4 $device -s 65536 -n 2000 -o 4)"
        keep $device.read.ours \
            "$(benchmark BenchmarkRead64KiB $device MB/s | awk '{ print $1 / 1.048576 }')"
        keep $device.send.perftest "$(perftest ib_send_lat 5 $device -s 64 -n 3000)"
        keep $device.send.ours \
            "$(benchmark BenchmarkSendRoundTrip64B $device p50-ns | awk '{ print $1 / 2000 }')"
    done
done

printf '%-6s %-28s %10s %10s %8s\n' device test perftest ours ratio
row() {
    local ratio
    ratio=$(awk "BEGIN { print $4 / $3 }")
    printf '%-6s %-28s %10.1f %10.1f %8.2f\n' "$1" "$2" "$3" "$4" "$ratio"
}
for device in rxe siw; do
    row $device "Write 64 KiB, MiB/s" \
        "$(highest $device.write.perftest)" "$(highest $device.write.ours)"
    row $device "Read 64 KiB, MiB/s" \
        "$(highest $device.read.perftest)" "$(highest $device.read.ours)"
    row $device "Send 64 B, one way, µs" \
        "$(lowest $device.send.perftest)" "$(lowest $device.send.ours)"
done
