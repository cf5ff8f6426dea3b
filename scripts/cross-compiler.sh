# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash
# For scripts, which source it, that build for one architecture with cgo.

newest_allowed=2.34 # of glibc: RHEL 9; Ubuntu 22.04 and Debian 12 have a newer one

# choose_compiler ARCHITECTURE sets $compiler to the C compiler for amd64 or arm64, or exits with a
# message if it, or readelf, is missing.
choose_compiler() {
    local me triple tool
    me=$(basename "$0" .sh)
    case $1 in
    amd64) triple=x86_64-linux-gnu ;;
    arm64) triple=aarch64-linux-gnu ;;
    *)
        echo "$me: unknown architecture $1: use amd64 or arm64" >&2
        exit 2
        ;;
    esac
    compiler=${CC:-gcc}
    [ "$1" = "$(go env GOHOSTARCH)" ] || compiler=$triple-gcc
    for tool in "$compiler" readelf; do
        command -v "$tool" >/dev/null || {
            echo "$me: found no $tool; run: apt-get install gcc binutils libc6-dev" \
                "gcc-${triple//_/-} libc6-dev-$1-cross" >&2
            exit 1
        }
    done
}

# harden makes the go command compile and link C with what check-hardening.sh looks for: canaries on
# the stack, functions of libc that check lengths, and addresses that are bound at the start and
# then read-only. Compilers of some distributions define _FORTIFY_SOURCE, too.
harden() {
    export CGO_CFLAGS="${CGO_CFLAGS:--O2 -g} -fstack-protector-strong"
    CGO_CFLAGS+=" -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2"
    export CGO_LDFLAGS="${CGO_LDFLAGS:--O2 -g} -Wl,-z,relro,-z,now,-z,noexecstack"
}

# newest_glibc FILE prints the newest version of glibc that a program or library needs, if any.
newest_glibc() {
    readelf --wide --version-info "$1" | grep -o 'GLIBC_[0-9][0-9.]*' | sed 's/^GLIBC_//' |
        sort -Vu | tail -n 1
}

# is_allowed VERSION succeeds if machines with the glibc $newest_allowed have that version.
is_allowed() {
    [ "$(printf '%s\n' "$1" $newest_allowed | sort -V | tail -n 1)" = $newest_allowed ]
}
