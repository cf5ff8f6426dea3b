#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# demo-guest.sh - the part of demo.sh that runs in the VM.
#
# Usage: demo-guest.sh DIRECTORY    DIRECTORY holds what demo.sh has put there

set -eu
directory=$1 programs=$1/bin scratch=/tmp/scratch gateway=
mkdir -p $scratch/mnt
. "$directory/chain.sh"
backend=file:$scratch/disk.img,size=256MiB

tool() { LD_LIBRARY_PATH=$directory/lib "$directory/tools/$1" "${@:2}"; }

step() { printf '\n== %s\n' "$*"; }

# serve: start a gateway, and wait until it serves
serve() {
    "$programs/initiator" ublk --id 0 --emulated-dir $scratch/comch 2>$scratch/gateway.log &
    gateway=$!
    wait_for 30 grep -q "serving a block device" $scratch/gateway.log || {
        cat $scratch/gateway.log
        exit 1
    }
    grep "serving a block device" $scratch/gateway.log
}

step "a target and a relay, and their volume as /dev/ublkb0, on Linux $(uname -r)"
modprobe -a ublk_drv ext4
start_chain 127.0.0.1 iwarp auto
serve
step "a file system on it"
tool mke2fs -q -t ext4 /dev/ublkb0
mount /dev/ublkb0 $scratch/mnt
head -c 40000000 /dev/urandom >$scratch/original
step "the gateway is killed while a file is copied; the copy waits for the next gateway"
cp $scratch/original $scratch/mnt/copy && sync &
copy=$!
sleep 0.3
kill -KILL $gateway
wait $gateway || true
serve
wait $copy
step "the file is the same, also when it is read from the volume"
echo 3 >/proc/sys/vm/drop_caches
cmp $scratch/original $scratch/mnt/copy && ls -l $scratch/mnt/copy
step "the device goes when nobody uses it any more"
umount $scratch/mnt
tool e2fsck -fn /dev/ublkb0
kill $gateway
wait $gateway
[ ! -e /dev/ublkb0 ] && echo "/dev/ublkb0 has gone"
stop_chain
