#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - test the verbs provider on the kernel's software RDMA devices, Soft-RoCE (rxe) and
# Soft-iWARP (siw), in a small VM: the conformance suite of the RDMA seam, and the whole chain with
# faults, also over the Comch provider doca on the emulation of libdoca. Prints a line for each
# case and, at the end, one for each device. Exits 0 only if all cases passed.
#
# Needs everything that test/siw/rdma-vm.sh needs, and libibverbs-dev and librdmacm-dev, with whose
# headers it compares the provider's own declarations.

set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-verbs.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

printf '#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n' |
    ${CC:-cc} -E -o /dev/null - 2>/dev/null || {
    echo "found no C compiler or no RDMA headers; run:
  apt-get install -y --no-install-recommends gcc libc6-dev libibverbs-dev librdmacm-dev" >&2
    exit 1
}

cd "$root"
export CGO_ENABLED=1
go test ./pkg/rdma/verbs/...
go test -count=1 -v -run TestDeclarationsMatchThePublicHeaders ./pkg/rdma/verbs/internal/ibv |
    grep -e '^--- PASS'
go build -o "$work/bin/" ./cmd/...
go -C libdoca build -o "$work/emulation/" ./cmd/...
go test -c -o "$work/verbs.test" ./pkg/rdma/verbs
go test -c -o "$work/e2e.test" ./test/e2e
cp "$here"/guest.sh "$here"/chain.sh "$work/"
# Without the right to use perf events: whenever one is opened or closed, the kernel patches its own
# code, and QEMU without KVM sometimes keeps executing the old code.
RDMA_VM_SIW=yes test/siw/rdma-vm.sh --share "$work" --mem 3072 --timeout 2100 -- \
    setpriv --bounding-set=-perfmon,-sys_admin bash "$work/guest.sh" "$work"
