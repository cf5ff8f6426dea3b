#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh - the part of run.sh that runs in the VM: the provider iwarp against rping and perftest
# on siw, in both roles.
#
# Usage: guest.sh PEER-PROGRAM

set -u
PEER=$1
ADDRESS=10.0.2.15                           # of siw0, see rdma-vm.sh
ROUNDS=20
port=7470
failed=0

report() {   # report STATUS TEXT
    if [ "$1" = 0 ]; then echo "ok     $2"; else echo "FAILED $2"; failed=1; fi
}

wait_listening() {   # wait_listening PORT: wait until siw or the peer listens on it
    local n=0
    while [ $n -lt 100 ]; do
        ss -Hltn "sport = :$1" | grep -q . && return 0
        sleep 0.1; n=$((n + 1))
    done
    return 1
}

# against_server TEXT PROGRAM SIZE CRC COMMAND...: run COMMAND, and let the peer connect to it
against_server() {
    local text=$1 program=$2 size=$3 crc=$4 server=0 client=0
    shift 4
    timeout 60 "$@" >/tmp/server.log 2>&1 &
    wait_listening $port || echo "$1 is not listening on port $port"
    timeout 60 "$PEER" "$program" connect $ADDRESS:$port "$size" $ROUNDS "$crc" || client=$?
    wait $! || server=$?
    # The server of a bandwidth test prints the results that its client reported.
    case $program in *_bw) grep -Eq "^ *$size +$ROUNDS " /tmp/server.log || server=1 ;; esac
    [ $client = 0 ] && [ $server = 0 ] || {
        echo "the peer exited with $client, $1 with $server:"
        cat /tmp/server.log
    }
    report $((client + server)) "connecting to $text: size $size, CRC requested: $crc"
}

# against_client TEXT PROGRAM SIZE CRC COMMAND...: run the peer, and let COMMAND connect to it
against_client() {
    local text=$1 program=$2 size=$3 crc=$4 server=0 client=0
    shift 4
    timeout 60 "$PEER" "$program" accept $ADDRESS:$port "$size" $ROUNDS "$crc" \
        >/tmp/peer.log 2>&1 &
    wait_listening $port || echo "the peer is not listening on port $port"
    timeout 60 "$@" >/tmp/client.log 2>&1 || client=$?
    wait $! || server=$?
    [ $client = 0 ] && [ $server = 0 ] || {
        echo "the peer exited with $server, $1 with $client:"
        cat /tmp/peer.log /tmp/client.log
    }
    report $((client + server)) "accepting $text: size $size, CRC requested: $crc"
}

# rping_cases SIZE CRC
rping_cases() {
    port=$((port + 1))
    against_server "rping (Send; Read and Write by siw)" rping "$@" \
        rping -s -a $ADDRESS -p $port -S "$1" -C $ROUNDS
    port=$((port + 1))
    against_client "rping (Send, Read, and Write)" rping "$@" \
        rping -c -V -a $ADDRESS -p $port -S "$1" -C $ROUNDS
}

# perftest_cases PROGRAM SIZE CRC [OPTION...]
# -F: a perftest client measures the processor's frequency to convert its results. In an emulated
# machine the measurements may scatter too widely, upon which it fails without this option.
perftest_cases() {
    local program=$1 size=$2 crc=$3
    shift 3
    port=$((port + 1))
    against_server "$program" "$program" "$size" "$crc" \
        "$program" -R -d siw0 -p $port -s "$size" -n $ROUNDS -F "$@"
    port=$((port + 1))
    against_client "$program" "$program" "$size" "$crc" \
        "$program" -R -d siw0 -p $port -s "$size" -n $ROUNDS -F "$@" $ADDRESS
}

for crc in false true; do
    rping_cases 64 $crc
    rping_cases 65000 $crc
    perftest_cases ib_send_lat 64 $crc
    perftest_cases ib_write_bw 65536 $crc
    perftest_cases ib_read_bw 65536 $crc -o 4
done
exit $failed
