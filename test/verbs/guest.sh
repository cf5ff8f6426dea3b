#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh - the part of run.sh that runs in the VM.
#
# Usage: guest.sh DIRECTORY    DIRECTORY holds the programs and test binaries that run.sh built

set -u
directory=$1 programs=/tmp/bin emulation=/tmp/emulation scratch=/tmp/chain
mkdir -p $scratch
cp -r "$directory"/{bin,emulation} /tmp # into memory, which is faster than the share
. "$directory/chain.sh"
ulimit -n 65536

# The devices' addresses and network interfaces, as rdma-vm.sh makes them.
declare -A address=([rxe]=192.0.2.1 [siw]=10.0.2.15) interface=([rxe]=rdma0 [siw]=eth0)
declare -A failures=([rxe]=0 [siw]=0)
declare -A session_count=([rxe]=30 [siw]=20)

# check DEVICE TEXT COMMAND...: run one case and report its result
check() {
    local device=$1 text=$2 start=$SECONDS log=$scratch/case.$1.log
    shift 2
    if "$@" >"$log" 2>&1; then
        echo "ok     $device: $text ($((SECONDS - start)) s)"
        return
    fi
    echo "FAILED $device: $text ($((SECONDS - start)) s)"
    tail -n 60 "$log" "$scratch"/{target,relay}.log 2>/dev/null
    failures[$device]=$((failures[$device] + 1))
    return 1
}

# provider_tests DEVICES PASSING COUNT FLAG...: run tests of the provider on devices, separated by
# commas. None may be skipped, and exactly COUNT tests whose names match PASSING must pass.
provider_tests() {
    local device devices= passing=$2 count=$3 log=$scratch/provider.$1.log passed
    for device in ${1//,/ }; do devices+=,${device}0=${address[$device]}; done
    shift 3
    ZC_RELAY_VERBS_DEVICES=${devices#,} \
        "$directory/verbs.test" -test.v -test.timeout 900s "$@" >"$log" 2>&1 || {
        grep -v '^=== ' "$log"
        return 1
    }
    ! grep '^--- SKIP' "$log" || return 1
    passed=$(grep -cE -- "--- PASS: $passing " "$log")
    [ "$passed" = "$count" ] || { echo "$passed tests match $passing, not $count"; return 1; }
}

# foreign matches the tests whose other side is the provider iwarp or a hand-made stream.
interoperation=TestDeviceInteroperatesWithProviderIWARP
foreign="$interoperation|TestProtocolViolationsEndTheConnection"

conformance() { provider_tests "$1" "TestConformance/${1}0" 1 -test.skip "$foreign"; }
foreign() {
    provider_tests siw "$interoperation/siw0/(iwarp|verbs)_connects,_CRC_false" 2 \
        -test.run "$foreign" -test.skip "$interoperation/siw0/CRC_true"
}

# What only the presence of a second device can show.
wrong_device() {
    provider_tests rxe,siw '(TestForeignMemoryElsewhere|TestAddressOfAnotherDevice)IsRejected' 2 \
        -test.run 'ForeignMemoryElsewhere|AddressOfAnotherDevice'
}

# With CRC on, these tests suffice. They send every kind of frame, in all lengths and both
# directions, and the CRC is a matter of the frame alone.
frame_tests=(
    MessagesOfAllSizesArriveWhole
    MessagesCrossInBothDirections
    WritesOfAllSizesLandExactly
    ReadsOfAllSizesReturnTheData
    EverythingMovesAtOnce
    AMessageThatIsTooLongEndsTheConnection
    WhatWasFlushedBeforeCloseArrives
)
foreign_crc() {
    local names
    names=$(printf '|%s' "${frame_tests[@]}")
    provider_tests siw "$interoperation/siw0/(iwarp|verbs)_connects,_CRC_true/[A-Za-z]*" \
        $((2 * ${#frame_tests[@]})) -test.run "$interoperation/siw0/CRC_true/^(${names#|})\$"
}

# These end-to-end tests kill or stop the target or the relay.
fault_tests=(
    TestAKilledTargetFailsRunsAndServesAgainAfterItsReturn/bench
    TestAKilledTargetFailsRunsAndServesAgainAfterItsReturn/verify
    TestAKilledRelayFailsRunsAndTheTargetServesTheNext
    TestAStoppedTargetIsDeclaredDeadAndHarmsNobodyWhenItContinues
)

# faults DEVICE [TEST...]: run the fault tests, and more; each must run and pass. As they share an
# address, they run one after another: a target that restarts must find its port free.
faults() {
    local test names device=$1
    shift
    local tests=("${fault_tests[@]}" "$@")
    names=$(printf '|%s' "${tests[@]%%/*}")
    ZC_RELAY_PROGRAMS=$programs ZC_RELAY_E2E_ADDRESS=${address[$device]} \
        ZC_RELAY_E2E_TARGET_FLAGS="--rdma-provider verbs" \
        ZC_RELAY_E2E_RELAY_FLAGS="--rdma-provider verbs --comch-provider $comch" \
        ZC_RELAY_E2E_INITIATOR_FLAGS="--comch-provider $comch" \
        "$directory/e2e.test" -test.v -test.parallel 1 -test.timeout 300s \
        -test.run "^(${names#|})\$" \
        >"$scratch/faults.log" 2>&1
    cat "$scratch/faults.log"
    for test in "${tests[@]}"; do
        grep -q -- "--- PASS: $test " "$scratch/faults.log" || {
            echo "test did not pass: $test"
            return 1
        }
    done
}

verify() { initiator verify --queues 4 --queue-depth 32 --passes 1 "$@"; }

copy_file() {
    head -c 3000001 /dev/urandom >"$scratch/original"
    initiator put "$scratch/original" && initiator get "$scratch/copy" --length 3000001 &&
        cmp "$scratch/original" "$scratch/copy"
}

resources() { rdma resource show "${1}0"; }
resources_are() { [ "$(resources "$1")" = "$2" ]; }

# sessions DEVICE COUNT: run COUNT sessions, four at a time; fail if they leave resources behind
sessions() {
    local before runs run
    before=$(resources "$1")
    for _ in $(seq $(($2 / 4))); do
        runs=()
        for _ in $(seq 4); do
            initiator bench --control-timeout 60s --overwrite --rw write --block-size 4KiB --queues 2 \
                --queue-depth 8 --warmup 0s --run-limit-operation-count 16 >/dev/null &
            runs+=($!)
        done
        for run in "${runs[@]}"; do wait "$run" || return 1; done
    done
    wait_for 5 resources_are "$1" "$before" || {
        echo "resources before: $before"
        echo "resources after:  $(resources "$1")"
        return 1
    }
}

queue_pairs() { rdma resource show qp | grep -c "${1}0"; }
queue_pairs_above() { [ "$(queue_pairs "$1")" -gt "$2" ]; }

# run_fails DEVICE COMMAND...: a run of the initiator must fail when COMMAND takes the device away
run_fails() {
    local device=$1 idle run code=0
    shift
    idle=$(queue_pairs "$device")
    initiator bench --rw randrw --block-size 4KiB --queue-depth 16 --runtime 100s &
    run=$!
    wait_for 30 queue_pairs_above "$device" "$idle" || return 1
    sleep 1 # until IO is in flight
    "$@"
    wait $run || code=$?
    echo "the initiator exited with $code"
    [ $code = 1 ] || [ $code = 3 ]
}

# link_lost DEVICE: the session must end, and the daemons must keep running
link_lost() {
    run_fails "$1" ip link set "${interface[$1]}" down && kill -0 "$target" "$relay"
}

# link_back DEVICE: the daemons must serve again. A connection made while the device still deals
# with the loss may time out.
link_back() {
    local code
    ip link set "${interface[$1]}" up
    wait_for 60 initiator info || return 1
    for _ in 1 2 3; do
        code=0
        initiator verify --queues 1 --queue-depth 16 --passes 1 --length 2MiB || code=$?
        [ $code = 3 ] || return $code # 3: cannot connect
    done
    return 1
}

# removed DEVICE: the target ends, and is to be started again; the relay lets go of the device, and
# goes on. librdmacm does not let go, and the kernel waits for the relay, because Soft-RoCE and
# Soft-iWARP cannot take a device away from a process. Then create the device again.
removed() {
    local code=0 removal=
    delete_link() { rdma link delete "${1}0" & removal=$!; }
    run_fails "$1" delete_link "$1" || code=1
    wait_for 30 has_ended "$target" || return 1
    if wait "$target"; then
        echo "the target ended as if it had been asked to"
        code=1
    fi
    wait_for 30 grep -q "RDMA device at .* has been removed" "$scratch/relay.log" || code=1
    kill -TERM "$relay" && wait "$relay" || code=1
    wait $removal || code=1
    ip link set "${interface[$1]}" up
    rdma link add "${1}0" type "$1" netdev "${interface[$1]}" &&
        wait_for 10 active "$1" && return $code
}

has_ended() { ! kill -0 "$1"; }

active() {
    rdma link show "${1}0/1" | grep -q ACTIVE &&
        [ -n "$(ip -4 -o address show "${interface[$1]}")" ]
}

# chain DEVICE: test the chain with verbs at both ends
chain() {
    local device=$1 count=${session_count[$1]}
    check "$device" "target and relay start" start_chain "${address[$device]}" verbs verbs
    check "$device" "verify, 4 queues x depth 32" verify
    check "$device" "put and get" copy_file
    check "$device" "$count sessions leave no resources behind" sessions "$device" "$count"
    check "$device" "device removed during IO" removed "$device"
    check "$device" "target or relay killed, target stopped, revocation" faults "$device" \
        TestATargetThatContinuesTooLateCannotWriteToTheBuffer
    check "$device" "target and relay start" start_chain "${address[$device]}" verbs verbs
    check "$device" "link lost during IO" link_lost "$device"
    # Soft-RoCE makes no more connections if its link was down while the connection manager was
    # sending.
    [ "$device" = rxe ] || check "$device" "link back" link_back "$device"
    check "$device" "target and relay exit cleanly" stop_chain
    ip link set "${interface[$device]}" up
}

# doca DEVICE: test the chain over the Comch provider doca. The emulation of libdoca gives imported
# memory a key of the device, in a protection domain of its own.
doca() {
    local device=$1 programs=$emulation comch=doca
    export ZC_DOCA_EMULATION_RDMA=${device}0
    check "$device" "doca: target and relay start" start_chain "${address[$device]}" verbs verbs
    check "$device" "doca: verify, 4 queues x depth 32" verify
    check "$device" "doca: put and get" copy_file
    check "$device" "doca: the Comch device imports the memory" memory_path comch-device
    check "$device" "doca: 12 sessions leave no resources behind" sessions "$device" 12
    check "$device" "doca: target and relay exit cleanly" stop_chain
    check "$device" "doca: target or relay killed, target stopped" faults "$device"
    check "$device" "doca: isolation staged" staged "$device"
    check "$device" "doca: a sub-function imports the memory" sub_function "$device" rdma-device \
        comch
    check "$device" "doca: a sub-function that cannot import, staged" sub_function "$device" \
        staged comch,export
    unset ZC_DOCA_EMULATION_RDMA
}

# staged DEVICE: copy the data through memory of the relay, which needs no key of imported memory
staged() {
    local isolation=staged
    start_chain "${address[$1]}" verbs verbs && verify --length 8MiB && stop_chain
}

# memory_path PATH: all sessions of the running relay must have reached the client's memory this way
memory_path() {
    grep -o '"memory_path": "[a-z-]*"' "$scratch/relay.log" | sort -u | tee "$scratch/paths"
    [ "$(cat "$scratch/paths")" = "\"memory_path\": \"$1\"" ]
}

# sub_function DEVICE PATH WITHOUT: the port has Comch, and its sub-function, without the
# capabilities of WITHOUT, the RDMA device
sub_function() {
    local code=0
    export ZC_DOCA_EMULATION="{devices: [
        {pci: '03:00.0', ibdev: port0, without: [rdma], representors: [{pci: 'b1:00.0'}]},
        {pci: '03:00.0', sf: 4, without: [$3]}, {pci: 'b1:00.0', role: host}]}"
    start_chain "${address[$1]}" verbs verbs && verify --length 8MiB && memory_path "$2" || code=1
    stop_chain || code=1
    unset ZC_DOCA_EMULATION
    return $code
}

# mixed TARGET-PROVIDER RELAY-PROVIDER [FLAG...]: test the chain with the kernel's iWARP at one end
# and iWARP in user space at the other
mixed() {
    check siw "target on $1, relay on $2${3:+, $3}: start" start_chain "${address[siw]}" "$@"
    check siw "target on $1, relay on $2${3:+, $3}: verify" verify --length 6MiB
    check siw "target and relay exit cleanly" stop_chain
}

# apart DEVICE: use one address for control connections, another for RDMA
apart() {
    start_chain 127.0.0.1 verbs verbs --rdma-address "${address[$1]}" && verify && stop_chain
}

# In parallel, because a slow run cannot fail them, only a hang.
check rxe "conformance suite of the RDMA seam" conformance rxe &
parallel=$!
check siw "conformance suite of the RDMA seam" conformance siw
wait $parallel || failures[rxe]=1
check rxe "memory or address of another device" wrong_device
doca rxe # before Soft-RoCE loses its link, see chain
for device in rxe siw; do
    # Before Soft-RoCE loses its link, see chain.
    check $device "control connections over another address" apart $device
    chain $device
done
check siw "conformance suite between siw and provider iwarp, both ways; invalid frames" foreign
check siw "tests of that suite with every kind of frame, CRC on" foreign_crc
for crc in "" --rdma-crc; do
    mixed iwarp verbs $crc
    mixed verbs iwarp $crc
done

failed=0
for device in rxe siw; do
    if [ "${failures[$device]}" = 0 ]; then
        echo "$device: passed"
    else
        echo "$device: ${failures[$device]} cases FAILED"
        failed=1
    fi
done
exit $failed
