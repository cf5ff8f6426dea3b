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

# newest_glibc FILE prints the newest version of glibc that a program or library needs, if any.
newest_glibc() {
    readelf --wide --version-info "$1" | grep -o 'GLIBC_[0-9][0-9.]*' | sed 's/^GLIBC_//' |
        sort -Vu | tail -n 1
}

# is_allowed VERSION succeeds if machines with the glibc $newest_allowed have that version.
is_allowed() {
    [ "$(printf '%s\n' "$1" $newest_allowed | sort -V | tail -n 1)" = $newest_allowed ]
}
