#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures the cost of scraping: the IOPS of a loaded chain without scrapes, and with RATE scrapes
# of target and relay a second. The runs alternate, so that other load on the machine affects both
# alike.
#
#   scripts/bench-scrape.sh
#
# Environment: PAIRS of runs (10), RUNTIME of one run (3s), RATE (10), BIN (bin)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pairs=${PAIRS:-10} runtime=${RUNTIME:-3s} rate=${RATE:-10} bin=${BIN:-bin}
dir=$(mktemp -d)
pids=()
: >"$dir/target.log" >"$dir/relay.log" >"$dir/scrapes"
finish() {
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait
    rm -rf "$dir"
}
trap finish EXIT

# address_of LOG prints the address from the log at which a daemon serves metrics.
address_of() {
    local address
    for _ in $(seq 200); do
        address=$(sed -n 's/.*serving metrics and health.*"address": "\([^"]*\)".*/\1/p' "$1")
        [ -z "$address" ] || { echo "$address"; return; }
        sleep 0.05
    done
    echo "found no metrics address in the log: $(cat "$1")" >&2
    return 1
}

"$bin/target" --listen-port 0 --address-file "$dir/target.address" --volume disk=memory:64MiB \
    --metrics-listen 127.0.0.1:0 2>"$dir/target.log" &
pids+=($!)
target=$(address_of "$dir/target.log")
until [ -s "$dir/target.address" ]; do sleep 0.05; done
"$bin/zc-relay" run --storage-server "$(cat "$dir/target.address")" --volume disk \
    --emulated-dir "$dir/comch" --metrics-listen 127.0.0.1:0 2>"$dir/relay.log" &
pids+=($!)
relay=$(address_of "$dir/relay.log")

# iops runs the benchmark once and prints its IOPS.
iops() {
    "$bin/initiator" bench --rw randread --block-size 4KiB --queues 2 --queue-depth 32 \
        --warmup 500ms --runtime "$runtime" --emulated-dir "$dir/comch" --output json |
        sed -n 's/^ *"iops": \([0-9.]*\),*$/\1/p' | head -1
}

# scrape ADDRESS scrapes over one connection, as Prometheus does, until killed.
scrape() {
    exec curl -sf --rate "$rate/s" "http://$1/metrics?[1-1000000]" -o /dev/null \
        -w '%{stderr}\n' 2>>"$dir/scrapes"
}

: >"$dir/results"
for _ in $(seq "$pairs"); do
    quiet=$(iops)
    scrape "$relay" &
    scrapers=($!)
    scrape "$target" &
    scrapers+=($!)
    scraped=$(iops)
    kill "${scrapers[@]}"
    wait "${scrapers[@]}" 2>/dev/null || true
    echo "$quiet $scraped" | tee -a "$dir/results" >&2
done
series=$(curl -sf "http://$relay/metrics" | grep -vc '^#')
took=$(curl -sf -o /dev/null -w '%{time_total}' "http://$relay/metrics")
awk -v scrapes="$(wc -l <"$dir/scrapes")" -v series="$series" -v took="$took" '
    { n++; a += $1; b += $2; aa += $1 * $1; d = ($2 - $1) / $1 * 100; s += d; ss += d * d }
    END {
        if (n < 2) { print "too few pairs of runs: need 2"; exit 1 }
        mean = a / n; sd = sqrt((aa - n * mean * mean) / (n - 1))
        dm = s / n; ds = sqrt((ss - n * dm * dm) / (n - 1))
        printf "IOPS without scrapes  %.0f ± %.0f (%.1f %%)\n", mean, sd, sd / mean * 100
        printf "IOPS with scrapes     %.0f (%d scrapes; relay: %d series, %.1f ms)\n",
            b / n, scrapes, series, took * 1000
        printf "difference            %+.2f %% ± %.2f %% (standard error, %d pairs)\n",
            dm, ds / sqrt(n), n
    }' "$dir/results"
