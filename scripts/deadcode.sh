#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fails if no program and no test, with any build tag, reaches a function.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Without volumes on Ceph, what only they use would seem dead.
ceph=$(scripts/build-ceph.sh --tags) || {
    [ "${CI:-}" = true ] && exit 1
    echo "deadcode.sh: skipped" >&2
    exit
}
tags=$ceph,complete,fleet,soak
# In a workspace, go accepts no -modfile.
deadcode=("$(go tool -n -modfile=tools/go.mod deadcode)" -test -tags "$tags")

# The workspace of libdoca has this module, too.
dead=$({
    cd libdoca &&
        "${deadcode[@]}" -filter '^github.com/zc-relay/zc-relay/' ./... ../... |
        sed 's,^,libdoca/,; s,^libdoca/\.\./,,' &&
        cd ../bench && "${deadcode[@]}" ./... | sed 's,^,bench/,'
} |
    while IFS=: read -r file line rest; do
        case "$file $rest" in
        libdoca/* | libzcclient/core/*) continue ;;       # C calls it
        "internal/broker/"*" Server.Find") continue ;;    # libdoca calls it
        esac
        # A method without a body marks a type for the compiler.
        sed -n "${line}p" "$file" | grep -q ' {}$' || echo "$file:$line:$rest"
    done)
[ -z "$dead" ] || {
    echo "$dead" >&2
    echo "Delete these functions, or test them if other modules need them" >&2
    exit 1
}
