# SPDX-License-Identifier: Apache-2.0
#
# chain.sh - run target and relay as processes in the VM. Scripts that run there source it, and set
# $programs and $scratch. $comch is the Comch provider, $isolation that of the relay's channel, and
# $backend what the target's volume is made of.

target= relay= comch=emulated isolation=direct backend=memory:16MiB

# wait_for SECONDS COMMAND...: wait until COMMAND succeeds
wait_for() {
    local tenths=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        tenths=$((tenths - 1))
        [ $tenths -gt 0 ] || return 1
        sleep 0.1
    done
}

# start_chain ADDRESS TARGET-PROVIDER RELAY-PROVIDER [FLAG...]: start both, wait until they are
# ready
start_chain() {
    local address=$1 target_provider=$2 relay_provider=$3
    shift 3
    rm -rf "$scratch/comch" "$scratch/address"
    "$programs/target" --listen-address "$address" --listen-port 0 \
        --address-file "$scratch/address" --volume "disk=$backend" \
        --rdma-provider "$target_provider" "$@" 2>"$scratch/target.log" &
    target=$!
    wait_for 30 test -s "$scratch/address" || return 1
    "$programs/zc-relay" run --storage-server "$(cat "$scratch/address")" --volume disk \
        --comch-provider "$comch" --emulated-dir "$scratch/comch" --isolation "$isolation" \
        --rdma-provider "$relay_provider" "$@" \
        2>"$scratch/relay.log" &
    relay=$!
    wait_for 30 grep -q "listening for clients" "$scratch/relay.log" &&
        wait_for 30 grep -q "target is ready" "$scratch/relay.log"
}

# stop_chain: stop both; fail unless both exit cleanly
stop_chain() {
    local code=0 process
    for process in $relay $target; do
        kill -TERM "$process" 2>/dev/null || code=1
        wait "$process" || code=1
    done
    target= relay=
    return $code
}

initiator() {
    local command=$1
    shift
    timeout 120 "$programs/initiator" "$command" --comch-provider "$comch" \
        --emulated-dir "$scratch/comch" "$@"
}
