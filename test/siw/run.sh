#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - test the provider iwarp against the Linux kernel's iWARP (siw) in a small VM. Its peers
# are rping and perftest, which were written independently. Tests both roles, with and without
# CRC32C. Prints a line for each case. Exits 0 only if all cases passed.
#
# The first run downloads a kernel and builds siw, see rdma-vm.sh.

set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-siw.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

# Static, because the guest has only those libraries of the host that its own programs need.
( cd "$here" && CGO_ENABLED=0 go build -o "$work/peer" ./peer )
cp "$here/guest.sh" "$work/"
RDMA_VM_SIW=yes "$here/rdma-vm.sh" --share "$work" --timeout 600 -- \
    bash "$work/guest.sh" "$work/peer"
