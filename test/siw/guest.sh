#!/bin/bash
# guest.sh - the part of run.sh that runs inside the VM: the embedded iWARP
# endpoint and rping on the kernel's siw, in both roles.
#
# Usage: guest.sh PEER-PROGRAM

set -u
PEER=$1
ADDRESS=10.0.2.15                           # siw0, see rdma-vm.sh
ROUNDS=20
port=7470
failed=0

report() {   # report STATUS TEXT
    if [ "$1" = 0 ]; then echo "ok     $2"; else echo "FAILED $2"; failed=1; fi
}

wait_listening() {   # wait_listening PORT: until siw or the peer listens there
    local n=0
    while [ $n -lt 100 ]; do
        ss -Hltn "sport = :$1" | grep -q . && return 0
        sleep 0.1; n=$((n + 1))
    done
    return 1
}

connecting() {   # connecting SIZE CRC
    local server=0 client=0
    port=$((port + 1))
    timeout 60 rping -s -a $ADDRESS -p $port -S "$1" -C $ROUNDS >/tmp/rping.log 2>&1 &
    wait_listening $port || echo "rping does not listen"
    timeout 60 "$PEER" connect $ADDRESS:$port "$1" $ROUNDS "$2" || client=$?
    wait $! || server=$?
    [ $client = 0 ] && [ $server = 0 ] || { echo "peer $client, rping $server:"; cat /tmp/rping.log; }
    report $((client + server)) "connecting to rping -s: size $1, CRC requested: $2 (Send; Read and Write by siw)"
}

accepting() {   # accepting SIZE CRC
    local server=0 client=0
    port=$((port + 1))
    timeout 60 "$PEER" accept $ADDRESS:$port "$1" $ROUNDS "$2" >/tmp/peer.log 2>&1 &
    wait_listening $port || echo "the peer does not listen"
    timeout 60 rping -c -V -a $ADDRESS -p $port -S "$1" -C $ROUNDS >/tmp/rping.log 2>&1 || client=$?
    wait $! || server=$?
    [ $client = 0 ] && [ $server = 0 ] || { echo "peer $server, rping $client:"; cat /tmp/peer.log /tmp/rping.log; }
    report $((client + server)) "accepting rping -c: size $1, CRC requested: $2 (Send, Read and Write)"
}

for crc in false true; do
    for size in 64 65000; do
        connecting $size $crc
        accepting $size $crc
    done
done
exit $failed
