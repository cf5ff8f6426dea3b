#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh - the part of run.sh that runs in the VM.
#
# Usage: guest.sh DIRECTORY    DIRECTORY holds the programs that run.sh built

set -u
directory=$1 programs=/tmp/bin scratch=/tmp/chain
mkdir -p $scratch
cp -r "$directory/bin" /tmp # into memory, which is faster than the share
. "$directory/chain.sh"
ulimit -n 65536

admin=unix:$scratch/target.sock metrics=127.0.0.1:9471 failures=0
# The name of the disk that udev would make, if there were one.
stable=/dev/disk/by-id/scsi-debug

modprobe sd_mod && modprobe scsi_debug dev_size_mb=32 || exit 1
host=$(find /sys/bus/pseudo/drivers/scsi_debug/adapter0/ -maxdepth 1 -name 'host*')
host=${host##*/}

# attached prints the name of the disk, for instance sda; it fails if there is none.
attached() {
    local model
    for model in /sys/block/sd*/device/model; do
        grep -qs scsi_debug "$model" || continue
        model=${model#/sys/block/}
        echo "${model%%/*}"
        return
    done
    return 1
}

# attach: attach the disk, and do what udev does
attach() {
    attached >/dev/null || echo "- - -" >"/sys/class/scsi_host/$host/scan"
    wait_for 10 attached || return 1
    wait_for 10 test -b "/dev/$(attached)" || return 1
    mkdir -p "${stable%/*}"
    ln -sfn "/dev/$(attached)" $stable
    echo "the disk is $(attached)"
}

# detach: what a hot unplug and udev do
detach() {
    echo 1 >"/sys/block/$(attached)/device/delete"
    rm -f $stable
    ! attached
}

# check TEXT COMMAND...: run one case and report its result
check() {
    local text=$1 start=$SECONDS log=$scratch/case.log
    shift
    if "$@" >"$log" 2>&1; then
        echo "ok     $text ($((SECONDS - start)) s)"
        return
    fi
    echo "FAILED $text ($((SECONDS - start)) s)"
    tail -n 20 "$log" "$scratch"/{target,relay-disk,relay-other}.log | cut -c 1-400
    failures=$((failures + 1))
}

administer() { "$programs/target" "$@" --admin "$admin"; }
list() { administer volume list; }
other() { initiator "$@" --command-channel-name other; }

start_disk_target() {
    "$programs/target" --listen-address 127.0.0.1 --listen-port 7470 --rdma-provider iwarp \
        --volume "disk=file:$stable" --volume "other=file:$scratch/other,size=8MiB" \
        --admin-listen "$admin" --metrics-listen $metrics 2>>"$scratch/target.log" &
    target=$!
    wait_for 30 list
}

# start_relay VOLUME FLAG...
start_relay() {
    local volume=$1
    shift
    "$programs/zc-relay" run --storage-server 127.0.0.1:7470 --volume "$volume" \
        --emulated-dir "$scratch/comch" --rdma-provider iwarp "$@" 2>"$scratch/relay-$volume.log" &
    wait_for 30 grep -q "target is ready" "$scratch/relay-$volume.log"
}

# is_in VOLUME STATE [REASON]: whether list and metrics agree that a volume has a state
is_in() {
    list | grep -qE "^$1 .* $2$" || return 1
    wget -qO- "http://$metrics/metrics" |
        grep -qxF "zc_target_volume_state{state=\"$2\",volume=\"$1\"} 1" || return 1
    [ $# = 2 ] || list | grep -qE "^$1 is $2 since .*$3" || return 1
    [ $# = 2 ] || administer status | grep -qE "state $2 since .*$3"
}

is_used() { list | grep -qE "^$1 .* read-write +1 "; } # VOLUME: whether it has one session

uuid() { list | grep -oE "^disk .*" | grep -oE "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"; }

# fails TEXT COMMAND...: whether a command ends with an error that has the text
fails() {
    local text=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "$* succeeded"
        return 1
    fi
    echo "$output"
    grep -qE "$text" <<<"$output"
}

serves() {
    attach && start_disk_target && start_relay disk &&
        start_relay other --command-channel-name other || return 1
    is_in disk serving && is_in other serving || return 1
    initiator verify --passes 1 && other verify --passes 1 || return 1
    head -c 3000001 /dev/urandom >"$scratch/original"
    initiator put "$scratch/original"
}

# Clients of both volumes write, read, and verify when the disk goes.
is_detached_under_io() {
    initiator verify --offset 8MiB --runtime 15s >"$scratch/disk.out" 2>&1 &
    local on_disk=$! on_other start
    other verify --runtime 15s >"$scratch/other.out" 2>&1 &
    on_other=$!
    wait_for 10 is_used disk && wait_for 10 is_used other || return 1
    sleep 3
    kill -0 $on_disk $on_other || return 1
    start=$SECONDS
    detach || return 1
    wait_for 5 is_in disk failed "$gone" || { list; return 1; }
    echo "the volume has failed within $((SECONDS - start)) s"
    ! wait $on_disk || { echo "the client of the disk has succeeded"; return 1; }
    cat "$scratch/disk.out"
    grep -q 'requests failed, .*IO_FAILED' "$scratch/disk.out" || return 1
    wait $on_other || { cat "$scratch/other.out"; return 1; }
}

tells() {
    list
    administer status
    is_in other serving && is_in disk failed "$gone" || return 1
    fails "$gone" initiator info || return 1
    fails IO_FAILED initiator get "$scratch/copy" --length 4096 || return 1
    wget -qO- "http://$metrics/readyz" | grep 'serving 1 of 2 volumes: volume "disk" is failed' &&
        wget -qO- "http://$metrics/metrics" |
        grep -E 'zc_target_volume_failures_total\{.*volume="disk"\} [1-9]'
}

# A volume that has failed does not come back by itself: writes may be lost.
stays_failed() {
    attach || return 1
    sleep 3
    is_in disk failed "$gone" || return 1
    fails "$gone" initiator info
}

is_reopened() {
    fails "volume disk is removed, but closing it has failed" \
        administer volume remove disk || return 1
    administer volume add "disk=file:$stable" || return 1
    is_in disk serving || return 1
    [ "$(uuid)" = "$before" ] || { echo "UUID $before is now $(uuid)"; return 1; }
    initiator get "$scratch/copy" --length 3000001 && cmp "$scratch/original" "$scratch/copy" &&
        initiator verify --offset 8MiB --passes 1
}

# Nobody uses the volume.
is_detached_idle() {
    detach || return 1
    wait_for 5 is_in disk failed "$gone" || { list; return 1; }
    is_in other serving
}

# The target ends, and starts without the disk.
is_awaited() {
    kill -TERM $target
    wait $target
    echo "the target has ended with $?"
    start_disk_target || return 1
    is_in disk failed "$stable" || { list; return 1; }
    other verify --passes 1 || return 1
    attach || return 1
    wait_for 40 is_in disk serving || { list; return 1; }
    [ "$(uuid)" = "$before" ] || { echo "UUID $before is now $(uuid)"; return 1; }
    wait_for 40 initiator get "$scratch/copy" --length 3000001 || return 1
    cmp "$scratch/original" "$scratch/copy" && initiator verify --offset 8MiB --passes 1
}

gone="$stable.* was detached"
check "a disk is served" serves
before=$(uuid)
check "a disk that is detached under verified IO fails its volume, and no other" \
    is_detached_under_io
check "everybody is told" tells
check "a disk that is attached again is not used unasked" stays_failed
check "remove and add reopen the volume, under another name of the disk" is_reopened
check "a disk that is detached idle fails its volume" is_detached_idle
check "a target that starts without the disk serves it once it is attached" is_awaited

echo "$failures failures"
[ $failures = 0 ]
