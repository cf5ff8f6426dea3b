#!/bin/bash
# run.sh - the embedded iWARP endpoint against the Linux kernel's own iWARP
# (siw), in a small VM: against rping and perftest, which know nothing of it,
# in both roles, with and without CRC32C. Prints one line per case; exits 0 only if all passed.
#
# The first run fetches a kernel and builds siw, see rdma-vm.sh.

set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-siw.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

# Static, because the guest has none of the host's libraries but what it needs
# itself.
( cd "$here" && CGO_ENABLED=0 go build -o "$work/peer" ./peer )
cp "$here/guest.sh" "$work/"
RDMA_VM_SIW=yes "$here/rdma-vm.sh" --share "$work" --timeout 600 -- bash "$work/guest.sh" "$work/peer"
