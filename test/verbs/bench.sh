#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# bench.sh - compare the verbs provider with perftest on the same devices in the same VM: the
# bandwidth of 64 KiB Writes and Reads, and the latency of 64-byte Sends. Everything is emulated, so
# only the ratios are meaningful.
#
# ROUNDS (default 3) sets how often to measure. The script prints the best result of each test,
# because disturbances can only make a result worse.

set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-verbs.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

cd "$root"
CGO_ENABLED=1 go test -c -o "$work/verbs.test" ./pkg/rdma/verbs
cp "$here/bench-guest.sh" "$work/"
RDMA_VM_SIW=yes test/siw/rdma-vm.sh --share "$work" --mem 1536 --timeout 900 -- \
    bash "$work/bench-guest.sh" "$work/verbs.test" "${ROUNDS:-3}"
