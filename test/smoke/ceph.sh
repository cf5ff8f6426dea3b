#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts a small Ceph cluster and moves data to an image and back. test/ceph/run.sh tests the rest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-smoke.XXXXXX") data=$work/cluster
if [ -w /dev/shm ]; then data=$(mktemp -d /dev/shm/zc-relay-smoke.XXXXXX); fi
trap 'test/ceph/cluster.sh down "$data" >/dev/null; rm -rf -- "$work" "$data"' EXIT

CGO_ENABLED=0 go build -o "$work/" ./cmd/initiator ./cmd/zc-relay
scripts/build-ceph.sh "$work/target"
export work data
# In a network of its own, no address is taken.
unshare --map-root-user --net bash -euo pipefail -c '
    ip link set lo up
    test/ceph/cluster.sh up "$data"
    eval "$(test/ceph/cluster.sh env "$data")"
    . test/verbs/chain.sh
    programs=$work scratch=$work/chain
    mkdir -p "$scratch"
    backend="rbd:$CEPH_POOL/smoke,conf=$CEPH_CONF,create=64MiB"
    head -c 3000001 /dev/urandom >"$work/original"
    start_chain 127.0.0.1 auto auto
    initiator put "$work/original"
    initiator verify --queues 2 --queue-depth 16 --passes 1 --offset 8MiB --length 4MiB
    stop_chain
    start_chain 127.0.0.1 auto auto # the content outlives the target
    initiator get --length 3000001 "$work/copy"
    stop_chain
    cmp "$work/original" "$work/copy"
'
echo "the chain moved data to a Ceph image and back"
