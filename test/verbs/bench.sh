#!/bin/bash
# bench.sh - the verbs provider beside perftest, on the same devices in the
# same virtual machine: bandwidth of 64 KiB Writes and Reads, latency of
# 64-byte Sends. Everything is emulated, so only the ratios mean anything.
#
# ROUNDS (default 3) repeats the whole; the best of each is printed, because
# what disturbs a measurement makes it worse only.

set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-verbs.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

cd "$root"
go test -c -tags verbs -o "$work/verbs.test" ./pkg/rdma/verbs
cp "$here/bench-guest.sh" "$work/"
RDMA_VM_SIW=yes test/siw/rdma-vm.sh --share "$work" --mem 1536 --timeout 900 -- \
    bash "$work/bench-guest.sh" "$work/verbs.test" "${ROUNDS:-3}"
