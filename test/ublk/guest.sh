#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh - the part of run.sh that runs in the VM.
#
# Usage: guest.sh DIRECTORY    DIRECTORY holds what run.sh has put there

set -u
directory=$1 scratch=/tmp/scratch failures=0
mkdir -p $scratch
cp -r "$directory/bin" "$directory/tools" "$directory/lib" "$directory/e2e.test" /tmp # faster there
export PATH=/tmp/tools:$PATH LD_LIBRARY_PATH=/tmp/lib ZC_RELAY_PROGRAMS=/tmp/bin CI=true
chmod 1777 /tmp

# check TEXT COMMAND...: run one case and report its result
check() {
    local text=$1 start=$SECONDS
    shift
    if "$@" >$scratch/case.log 2>&1; then
        echo "ok     $text ($((SECONDS - start)) s)"
        return
    fi
    echo "FAILED $text ($((SECONDS - start)) s)"
    tail -n 60 $scratch/case.log | cut -c 1-600
    dmesg | tail -n 5
    failures=$((failures + 1))
    /tmp/bin/initiator ublk remove --force --id 7 2>/dev/null # for the next case
}

without_driver() {
    /tmp/bin/initiator ublk --id 0 2>$scratch/error
    [ $? = 2 ] && grep -q "modprobe ublk_drv" $scratch/error || { cat $scratch/error; return 1; }
}

# passes TEST [FLAG...]: a test of test/e2e passes, and is not skipped
passes() {
    local test=$1
    shift
    /tmp/e2e.test -test.v -test.count 1 -test.timeout 1800s -test.run "^$test\$" "$@" |
        tee $scratch/test.log
    grep -q -- "^--- PASS: $test " $scratch/test.log
}

# as_user: run what follows as an ordinary user, whom a loop gives files of the driver, as udev would
as_user() {
    local loop code=0
    chmod 666 /dev/ublk-control
    while sleep 0.1; do chown 1000 /dev/ublkc* /dev/ublkb*; done 2>/dev/null &
    loop=$!
    TMPDIR=$(mktemp -d) && chown 1000 "$TMPDIR" && export TMPDIR
    setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all bash -c "
        $(declare -f passes); scratch=$TMPDIR; passes $1" || code=1
    kill $loop
    chmod 600 /dev/ublk-control
    return $code
}

check "without the driver, the error says what to do" without_driver
modprobe ublk_drv
[ "${TESTS-}" != none ] && for test in ${TESTS:-UblkFileSystemsSurvive UblkDiscardAndWriteZeroesReachTheVolume \
    UblkADeviceInUseOutlivesItsGateway UblkADeviceHasOneGateway UblkAnAbandonedDeviceCanBeRemoved \
    UblkADeviceKeepsToItsVolume UblkADeviceEndsWithAnotherVolume \
    UblkUsersWaitForARelayThatIsAway UblkUsersNoticeNoKill}; do
    check "$test" passes "Test$test" -ublk-rounds "$ROUNDS"
    [ $test != UblkUsersNoticeNoKill ] || grep -h 'rounds of fio' $scratch/case.log
done
[ -n "${TESTS-}" ] || check "UblkUnprivileged" as_user TestUblkUnprivileged
if [ -n "${BENCH-}" ]; then
    . "$directory/bench.sh"
fi
echo "$failures failures"
[ $failures = 0 ]
