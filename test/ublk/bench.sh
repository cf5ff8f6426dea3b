# SPDX-License-Identifier: Apache-2.0
#
# bench.sh - measure the kernel's block device beside the kernel's NBD client on the NBD gateway, over
# one chain, by turns. In an emulated machine only the ratios mean something. guest.sh sources it.

. "$directory/chain.sh"
programs=/tmp/bin backend=memory:256MiB

# ticks PROCESS: its processor time
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

# measure NAME DEVICE PROCESS: print IOPS, and the gateway's processor time per IO, of some loads
measure() {
    local load iops used
    for load in randread:1 randread:32 randwrite:32; do
        used=$(ticks "$3")
        iops=$(fio --name=bench --filename="$2" --ioengine=libaio --direct=1 --bs=4k \
            --rw="${load%:*}" --iodepth="${load#*:}" --runtime=8 --time_based --minimal |
            awk -F';' '{ print int($8 + $49) }')
        used=$(($(ticks "$3") - used))
        echo "$1 $load: $iops IOPS, $((used * 10000 / (8 * iops + 1))) us of the gateway per IO"
    done
}

modprobe nbd
start_chain 127.0.0.1 iwarp auto || exit 1
"$programs/initiator" ublk --id 3 --queues 1 --emulated-dir $scratch/comch 2>$scratch/ublk.log &
ublk=$!
wait_for 30 grep -q "serving a block device" $scratch/ublk.log || { cat $scratch/ublk.log; exit 1; }
"$programs/initiator" nbd --queues 1 --socket $scratch/nbd.sock --emulated-dir $scratch/comch \
    2>$scratch/nbd.log &
nbd=$!
wait_for 30 test -S $scratch/nbd.sock
nbd-client -unix $scratch/nbd.sock /dev/nbd0 -block-size 4096 || exit 1
for _ in 1 2; do
    measure nbd /dev/nbd0 $nbd
    measure ublk /dev/ublkb3 $ublk
done
nbd-client -d /dev/nbd0
kill $ublk $nbd && wait $ublk $nbd
stop_chain
