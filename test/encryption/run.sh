#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - try the recipes of docs/guides/encryption.md in a small VM: a volume on dm-crypt, and
# connections between relay and target over IPsec, WireGuard, and MACsec, in user space and with
# siw. Looks at the raw disk and at the frames on the wire. Prints a line for each case. Exits 0
# only if all cases passed.
#
# Needs everything that test/siw/rdma-vm.sh needs, and cryptsetup-bin, wireguard-tools, and openssl.

set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-encryption.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
PATH=$PATH:/usr/sbin

mkdir "$work/tools" "$work/lib"
for tool in cryptsetup wg; do
    file=$(command -v $tool) || {
        echo "found no $tool; run: apt-get install --no-install-recommends cryptsetup-bin" \
            "wireguard-tools" >&2
        exit 1
    }
    cp "$file" "$work/tools/"
    # The guest has the libraries of its own programs only.
    ldd "$file" | grep -oE '/[^ ]+ \(0x' | cut -d' ' -f1 | xargs -I{} cp -L {} "$work/lib/"
done
# Declaring what protects the network needs TLS for control connections.
( cd "$work"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca \
        -keyout ca.key -out ca.pem
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=both \
        -keyout both.key -out both.csr
    openssl x509 -req -in both.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out both.pem \
        -extfile <(printf 'subjectAltName=IP:192.0.2.12,IP:198.51.100.12\n') ) 2>/dev/null
cd "$root"
if [ -n "${ZC_RELAY_PROGRAMS-}" ]; then
    cp -r "$ZC_RELAY_PROGRAMS" "$work/bin"
else
    CGO_ENABLED=1 go build -o "$work/bin/" ./cmd/zc-relay ./cmd/target ./cmd/initiator
fi
CGO_ENABLED=0 go build -o "$work/bin/capture" ./test/encryption/capture
cp "$here/guest.sh" "$root/test/verbs/chain.sh" "$work/"
RDMA_VM_SIW=yes test/siw/rdma-vm.sh --share "$work" --timeout 1200 -- \
    bash "$work/guest.sh" "$work"
