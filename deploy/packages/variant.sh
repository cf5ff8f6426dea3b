#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the package definition of a variant for nfpm: that of another package, whose place it takes,
# with another program.
#
# Usage: variant.sh PACKAGE ceph      with a program that links librbd
#        variant.sh PACKAGE static    with a program that needs no library at all
set -euo pipefail
package=$1 variant=$2
case $variant in
ceph)
    title='with volumes on Ceph RBD'
    edit='s/^\( *\)- systemd$/&\n\1- librbd1\n\1- librados2/'
    ;;
static)
    title='statically linked\n  Needs no library of the system, and has no providers for hardware.'
    # Such a program can load no libraries of RDMA devices either.
    edit='/^ *- \(libc6\|glibc\) /d; /^# RDMA devices/d
        /^ *recommends:/,/^[a-z]/{/^ *recommends:/d; /^ *- /d}
        s|deploy/packages/lintian-overrides|deploy/packages/static.lintian-overrides|'
    ;;
*)
    echo "variant.sh: unknown variant $variant: use ceph or static" >&2
    exit 2
    ;;
esac
# dpkg needs Replaces to exchange one for the other. For RPM that would be Obsoletes, by which an
# upgrade would take the variant by itself.
sed -e "s/^name: $package\$/&-$variant/" \
    -e "/^description:/{n; s/\$/, $title/}" \
    -e "$edit" \
    -e "s/^overrides:\$/&\n  deb:\n    replaces:\n      - $package/" \
    -e "s|/usr/share/lintian/overrides/$package\$|&-$variant|" \
    -e "s|^\( *- src: dist/stage/$package\)\(\.[a-z.]*\)\{0,1\}\$|\1-$variant\2|" \
    -e "s|/usr/share/doc/$package/|/usr/share/doc/$package-$variant/|" \
    "$(dirname "${BASH_SOURCE[0]}")/$package.yaml"
for relation in provides conflicts; do
    printf '%s:\n  - %s\n' $relation "$package"
done
