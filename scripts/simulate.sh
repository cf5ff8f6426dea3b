#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs simulated schedules on all cores: simulate.sh SEEDS [FIRST].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seeds=${1:?number of schedules} first=${2:-1}
# A process runs this many schedules, and is stuck if it takes longer than this.
chunk=5000 limit=30m
workers=$(nproc)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

go test -c -o "$work/simulation" ./test/simulation

# run_share WORKER FIRST SEEDS
run_share() {
    local seed=$2 end=$(($2 + $3)) count last failed begun status=0
    cd test/simulation
    while ((seed < end)); do
        count=$((end - seed < chunk ? end - seed : chunk))
        rm -f "$work/seed.$1"
        GOGC=400 GODEBUG=asyncpreemptoff=1 "$work/simulation" -test.run '^TestSchedules$' -test.v \
            -test.timeout "$limit" -seeds "$count" -first "$seed" -seed-file "$work/seed.$1" \
            >"$work/log" 2>&1 && rc=0 || rc=$?
        cat "$work/log" >>"$work/all.$1"
        if [ "$rc" != 0 ]; then
            status=1
            last=$(cat "$work/seed.$1" 2>/dev/null || echo none)
            echo "--- a process failed; the last seed that it began is $last"
            cat "$work/log"
        fi
        if ! grep -q ' of virtual time' "$work/log"; then
            # It has crashed, or was stuck. Go on behind the seed that it began last. If it began
            # none, no other process would get further.
            failed=$(grep -cE '^ +[a-z_]+\.go:[0-9]+: seed [0-9]+:' "$work/log" || true)
            begun=0
            if [ "$last" = none ]; then
                count=$((end - seed))
            else
                begun=$((last - seed + 1)) count=$begun
            fi
            echo "$begun schedules, $((failed + 1)) failed, 0 steps, none of virtual time" \
                >>"$work/all.$1"
        fi
        seed=$((seed + count))
    done
    return $status
}

share=$(((seeds + workers - 1) / workers))
pids=()
for ((i = 0; i < workers; i++)); do
    (work=$work/$i && mkdir "$work" && ln -s ../simulation "$work/simulation" &&
        run_share "$i" $((first + i * share)) "$share") &
    pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
done
cat "$work"/*/all.* | awk '/ schedules, .* of virtual time/ {
    for (i = 1; i <= NF; i++) {
        if ($(i + 1) == "schedules,") schedules += $i
        if ($(i + 1) == "failed,") failed += $i
        if ($(i + 1) == "steps,") steps += $i
    }
} END { printf "simulation: %d schedules, %d steps, %d failed\n", schedules, steps, failed }'
exit $failed
