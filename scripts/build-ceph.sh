#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the target with volumes on Ceph RBD, for this machine's architecture, as FILE. Needs a C
# compiler and the headers of librbd. Unlike the providers for hardware, librbd is linked: the
# program starts only where it is installed.
#
# Usage: build-ceph.sh FILE [GO-BUILD-FLAG...]
#        build-ceph.sh --tags    print the build tags
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# go-ceph uses what the newest release offers, unless a tag names an older one.
header=/usr/include/rbd/librbd.h
[ -e $header ] || {
    echo "build-ceph: found no $header; run: apt-get install --no-install-recommends" \
        "librbd-dev librados-dev gcc libc6-dev" >&2
    exit 1
}
case $(sed -n 's/^#define LIBRBD_VER_MINOR \([0-9]*\)$/\1/p' $header) in
16) release=,pacific ;;
17) release=,quincy ;;
18) release=,reef ;;
19) release=,squid ;;
*) release= ;;
esac
tags=ceph$release,netgo,osusergo
if [ "${1:?give a file}" = --tags ]; then
    echo "$tags"
    exit
fi
file=$1
shift
. scripts/cross-compiler.sh
harden
CGO_ENABLED=1 go build -tags "$tags" -buildmode=pie -trimpath "$@" -o "$file" ./cmd/target
scripts/check-hardening.sh "$file"
