#!/usr/bin/env bash
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
    local seed=$2 end=$(($2 + $3)) count status=0
    cd test/simulation
    for (( ; seed < end; seed += chunk)); do
        count=$((end - seed < chunk ? end - seed : chunk))
        GOGC=400 GODEBUG=asyncpreemptoff=1 "$work/simulation" -test.run '^TestSchedules$' -test.v \
            -test.timeout "$limit" -seeds "$count" -first "$seed" -seed-file "$work/seed.$1" \
            >"$work/log" 2>&1 && rc=0 || rc=$?
        cat "$work/log" >>"$work/all.$1"
        [ "$rc" = 0 ] && continue
        status=1
        echo "--- a process failed; the last seed that it began is $(cat "$work/seed.$1")"
        cat "$work/log"
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
