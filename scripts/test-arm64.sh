#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the unit tests of the given packages for linux/arm64 and runs them under qemu-user. Those
# of the providers for DOCA need cgo, and so a cross compiler.
#
# Usage: test-arm64.sh PACKAGE...
set -euo pipefail
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
    { echo "found no qemu-aarch64; run: apt-get install qemu-user-static" >&2; exit 1; }
compiler=aarch64-linux-gnu-gcc
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-arm64.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
# qemu-user receives file descriptors itself and does not report when there was no room for them, so
# the loss of doorbells can be tested only on a real kernel. Nor can a test start itself as another
# process: it fails, and the child that qemu-user has forked may hang. TCP_INFO and socket filters
# are missing, too.
#
# The other tests that are skipped take long and depend on no architecture.
skip='Doorbell|Killed|Stuck|TestProviderConforms/Wait|ClosingAConsumer|RingWithDescriptors|TwoProcesses|AHostThat|ADPUThat|DPUAndHost|LossOfAProbe'
skip+='|TestProviderConformance/(IPv4|in_memory)|TestLimitsOfServersBoundTheirConnections'
for package in "$@"; do
    name=${package//[.\/]/-}.test cgo=0
    [[ $package != */doca && $package != ./libdoca/* ]] || cgo=1
    if [ $cgo = 1 ] && ! command -v $compiler >/dev/null; then
        echo "found no $compiler; run: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
        exit 1
    fi
    export CC=$compiler # for tests that compile, too
    GOOS=linux GOARCH=arm64 CGO_ENABLED=$cgo go -C libdoca test -c -o "$work/$name" "../$package"
    echo "== $package (linux/arm64)"
    (cd "$package" && "$qemu" -L /usr/aarch64-linux-gnu "$work/$name" -test.short \
        -test.timeout 10m -test.skip "$skip")
done
