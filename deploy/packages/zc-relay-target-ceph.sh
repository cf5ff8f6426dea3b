#!/usr/bin/env bash
# Prints the package definition of zc-relay-target-ceph for nfpm: that of zc-relay-target, whose
# place it takes, with a program that links librbd.
set -euo pipefail
sed -e 's/^name: .*/&-ceph/' \
    -e 's/^  Storage target of zc-relay$/&, with volumes on Ceph RBD/' \
    -e 's/^\( *\)- systemd$/&\n\1- librbd1\n\1- librados2/' \
    -e 's/^  - src: dist\/stage\/zc-relay-target$/&-ceph/' \
    "$(dirname "${BASH_SOURCE[0]}")/zc-relay-target.yaml"
for relation in provides conflicts replaces; do
    printf '%s:\n  - zc-relay-target\n' $relation
done
