#!/usr/bin/env bash
# Tests volumes on Ceph RBD against a real cluster, which it starts and removes: the conformance
# suite of volumes, and the whole chain, while OSDs and the monitor fail. Arguments go to the tests
# of the chain, for instance -run TestCephSurvives.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
export CGO_ENABLED=1

work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-ceph.XXXXXX")
data=$work/cluster
# In memory, the OSDs do not wait for this machine's disk.
if [ -w /dev/shm ]; then data=$(mktemp -d /dev/shm/zc-relay-ceph.XXXXXX); fi
trap '"$here/cluster.sh" down "$data" >/dev/null; rm -rf -- "$work" "$data"' EXIT

tags=$(scripts/build-ceph.sh --tags)
OSDS=2 OSD_SIZE=$((3 << 30)) "$here/cluster.sh" up "$data"
eval "$("$here/cluster.sh" env "$data")"
export ZC_RELAY_CEPH_CLUSTER=$data ZC_RELAY_E2E_PROGRAMS=$work/bin

mkdir "$work/bin"
go build -o "$work/bin/" ./cmd/initiator ./cmd/zc-relay
scripts/build-ceph.sh "$work/bin/target"
go test -count=1 -tags "$tags" ./pkg/volume/rbd
go test -count=1 -tags "$tags" -run Ceph "$@" ./test/e2e
