#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - test block devices of the kernel (ublk) in a small VM with Linux 6.12: file systems,
# discards, kills of gateway, relay, and target by turns, removal, and devices without privileges.
# Prints a line for each test. Exits 0 only if all passed. With BENCH=1 it also measures the device
# beside the kernel's NBD client on the NBD gateway. ROUNDS is how often to kill each.
#
# Needs everything that test/siw/rdma-vm.sh needs, and e2fsprogs, xfsprogs, btrfs-progs, fio, and,
# to measure, nbd-client.

set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-ublk.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

. "$here/vm.sh"
copy_tools "$work" fio mke2fs e2fsck mkfs.xfs xfs_repair mkfs.btrfs btrfs blkdiscard fstrim dd sync \
    ${BENCH:+nbd-client}
for kind in ext2 ext4; do ln -s mke2fs "$work/tools/mkfs.$kind"; done
cd "$root"
export CGO_ENABLED=0
go build -o "$work/bin/" ./cmd/zc-relay ./cmd/target ./cmd/initiator
go test -c -tags ublk -o "$work/e2e.test" ./test/e2e
cp "$here"/guest.sh "$here"/bench.sh "$root/test/verbs/chain.sh" "$work/"
ublk_vm --share "$work" --mem 2048 --timeout 2400 ${BENCH:+--env BENCH=$BENCH} \
    --env ROUNDS="${ROUNDS-5}" --env TESTS="${TESTS-}" -- bash "$work/guest.sh" "$work"
