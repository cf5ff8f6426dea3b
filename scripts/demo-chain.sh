# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash
# For the demos, which source it: start_chain runs a target and a relay, and at the end of the script
# both are stopped, and must end cleanly. Needs bin/ (make build).
#
# $bin is the directory of the programs, $work a directory that is removed in the end.

bin=$(cd "$(dirname "${BASH_SOURCE[0]}")/../bin" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-demo.XXXXXX")
target= relay=

# stop_chain ends relay and target. It fails unless both end cleanly.
stop_chain() {
    local code=0
    for process in $relay $target; do
        kill -TERM "$process" 2>/dev/null || true
        wait "$process" || code=1
    done
    relay= target=
    return $code
}

finish() {
    local code=$?
    trap - EXIT
    stop_chain || code=1
    if [ "$code" != 0 ]; then
        echo "the demo failed; last lines of the logs:" >&2
        tail -n 20 "$work"/*.log >&2 || true
    fi
    rm -rf -- "$work"
    exit "$code"
}
trap finish EXIT

# start_chain NAME SIZE [RDMA] starts a target with a volume in the file $work/volume.img, and a
# relay; both use the RDMA provider auto or the given one.
start_chain() {
    rm -f "$work/target.address"
    "$bin/target" --rdma-provider "${3:-auto}" --listen-address 127.0.0.1 --listen-port 0 --address-file "$work/target.address" \
        --volume "$1=file:$work/volume.img,size=$2" 2>"$work/target.log" &
    target=$!
    for _ in $(seq 200); do
        [ -s "$work/target.address" ] && break
        kill -0 "$target"
        sleep 0.05
    done
    "$bin/zc-relay" run --rdma-provider "${3:-auto}" --storage-server "$(cat "$work/target.address")" --volume "$1" \
        --emulated-dir "$work/comch" 2>"$work/relay.log" &
    relay=$!
}
