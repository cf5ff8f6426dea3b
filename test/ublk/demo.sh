#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# demo.sh - show a volume as a block device of the kernel, in a small VM with Linux 6.12: make a file
# system, kill the gateway while a file is written, and let the next gateway go on. Needs no root.
#
# Needs everything that test/siw/rdma-vm.sh needs, and e2fsprogs.

set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-ublk.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

. "$here/vm.sh"
copy_tools "$work" mke2fs e2fsck
cd "$root"
CGO_ENABLED=0 go build -o "$work/bin/" ./cmd/zc-relay ./cmd/target ./cmd/initiator
cp "$here/demo-guest.sh" "$root/test/verbs/chain.sh" "$work/"
ublk_vm --share "$work" --timeout 300 -- bash "$work/demo-guest.sh" "$work"
