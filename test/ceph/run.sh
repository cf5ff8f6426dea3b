#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests volumes on Ceph RBD against a real cluster, which it starts and removes: the conformance
# suite of volumes, and the whole chain, while OSDs, the monitor, targets, and networks fail.
# Arguments go to the tests of the chain, for instance -run TestCephSurvives. With TAGS=soak, the
# long forms of the tests run, for about an hour. BENCH=1 measures the chain beside fio instead.
#
# Everything runs in a network namespace of its own, in which the tests can cut networks.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
export CGO_ENABLED=1

work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-ceph.XXXXXX")
data=$work/cluster
# In memory, the OSDs do not wait for this machine's disk.
if [ -w /dev/shm ]; then data=$(mktemp -d /dev/shm/zc-relay-ceph.XXXXXX); fi
trap '"$here/cluster.sh" down "$data" >/dev/null; rm -rf -- "$work" "$data"' EXIT

tags=$(scripts/build-ceph.sh --tags)${TAGS:+,$TAGS}
mkdir "$work/bin"
go build -o "$work/bin/" ./cmd/initiator ./cmd/zc-relay
scripts/build-ceph.sh "$work/bin/target"
go test -c -race -tags "$tags" -o "$work/volumes.test" ./pkg/volume/rbd
go test -c -tags "$tags" -o "$work/chain.test" ./test/e2e

export work data here ZC_RELAY_PROGRAMS=$work/bin ZC_RELAY_CEPH_CLUSTER=$data
unshare --map-root-user --net bash -euo pipefail -c '
	ip link set lo up
	ip link add name storage type bridge
	ip address add 10.73.1.1/24 dev storage
	ip link set storage up
	ADDRESS=10.73.1.1 OSDS=2 OSD_SIZE=$((3 << 30)) "$here/cluster.sh" up "$data"
	eval "$("$here/cluster.sh" env "$data")"
	if [ -n "${BENCH-}" ]; then
		cd test/e2e
		exec "$work/chain.test" -test.run "^\$" -test.bench Ceph -test.benchtime 1x
	fi
	(cd pkg/volume/rbd && "$work/volumes.test" -test.timeout 3h)
	cd test/e2e
	"$work/chain.test" -test.timeout 3h -test.run Ceph "${@/#-/-test.}"
' bash "$@"
