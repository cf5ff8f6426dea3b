#!/usr/bin/env bash
# Builds the unit tests of the given packages for linux/arm64 and runs them under qemu-user.
#
# Usage: test-arm64.sh PACKAGE...
set -euo pipefail
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
    { echo "found no qemu-aarch64; run: apt-get install qemu-user-static" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-arm64.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
# qemu-user receives file descriptors itself and does not report when there was no room for them, so
# the loss of doorbells can be tested only on a real kernel.
skip='Doorbell|TestProviderConforms/Wait|ClosingAConsumer|RingWithDescriptors'
for package in "$@"; do
    name=$(basename "$package").test
    GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go test -c -o "$work/$name" "$package"
    echo "== $package (linux/arm64)"
    (cd "$package" && "$qemu" "$work/$name" -test.short -test.timeout 10m -test.skip "$skip")
done
