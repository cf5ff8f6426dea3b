#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - detach a SCSI disk from under a running target, and attach it again, in a small VM: the
# disk is the kernel's scsi_debug. Prints a line for each case. Exits 0 only if all cases passed.
#
# Needs everything that test/siw/rdma-vm.sh needs.

set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-devices.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

cd "$root"
CGO_ENABLED=0 go build -o "$work/bin/" ./cmd/zc-relay ./cmd/target ./cmd/initiator
cp "$here/guest.sh" "$root/test/verbs/chain.sh" "$work/"
RDMA_VM_SIW=no test/siw/rdma-vm.sh --share "$work" --timeout 900 -- \
    bash "$work/guest.sh" "$work"
