#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Boots the small VM of test/siw/rdma-vm.sh once and runs the provider verbs on Soft-RoCE: ten tests
# of the conformance suite, and the chain with a short verify. test/verbs/run.sh tests the rest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-smoke.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

export CGO_ENABLED=1
go build -tags netgo,osusergo -o "$work/" ./cmd/target ./cmd/zc-relay ./cmd/initiator
go test -c -vet=off -o "$work/verbs.test" ./pkg/rdma/verbs
cp test/verbs/chain.sh "$work/"
cat >"$work/guest.sh" <<'END'
set -eu
address=192.0.2.1 programs=$1 scratch=/tmp/chain
mkdir -p $scratch
tests=(
    MessagesOfAllSizesArriveWhole
    MessagesCrossInBothDirections
    WritesOfAllSizesLandExactly
    ReadsOfAllSizesReturnTheData
    EverythingMovesAtOnce
    AMessageThatIsTooLongEndsTheConnection
    WhatWasFlushedBeforeCloseArrives
    KeysAreNotReused
    NothingTouchesDeregisteredMemory
    DeregisteredSourcesFailTheirConnection
)
names=$(printf '|%s' "${tests[@]}")
ZC_RELAY_VERBS_DEVICES=rxe0=$address "$1/verbs.test" -test.v -test.timeout 120s \
    -test.run "^TestConformance\$/^rxe0\$/^(${names#|})\$" >$scratch/log 2>&1 ||
    { cat $scratch/log; exit 1; }
passed=$(grep -cE -- '--- PASS: TestConformance/rxe0/' $scratch/log)
[ "$passed" = ${#tests[@]} ] || { cat $scratch/log; echo "$passed of ${#tests[@]} tests passed"; exit 1; }
. "$1/chain.sh"
start_chain $address verbs verbs
initiator verify --queues 2 --queue-depth 16 --passes 1 --length 4MiB
stop_chain
echo "$passed tests of the conformance suite and the chain passed on Soft-RoCE"
END
RDMA_VM_SIW=no test/siw/rdma-vm.sh --share "$work" --timeout 600 -- bash "$work/guest.sh" "$work"
