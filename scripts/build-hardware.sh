#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds all programs, with the providers for hardware, for one architecture (amd64 or arm64). Needs
# a C compiler for it, but none of the providers' libraries: the programs load them at run time.
# Fails if a program would not start on every machine with glibc 2.34, such as RHEL 9, Ubuntu 22.04,
# and Debian 12: if it links another library or needs newer functions.
#
# Usage: build-hardware.sh ARCHITECTURE DIRECTORY [GO-BUILD-FLAG...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

architecture=$1 directory=$2
shift 2
. scripts/cross-compiler.sh
choose_compiler "$architecture"
harden

# Without the tags, cgo would hand names of hosts and users to libc, unlike in the portable build.
# With -buildmode=pie, the kernel loads the programs at random addresses.
mkdir -p "$directory"
CGO_ENABLED=1 GOOS=linux GOARCH=$architecture CC=$compiler \
    go build -tags netgo,osusergo -buildmode=pie -trimpath "$@" -o "$directory/" ./cmd/...

for program in cmd/*/main.go; do
    program=$directory/$(basename "$(dirname "$program")")
    foreign=$(readelf --wide --dynamic "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p' |
        grep -vx -e libc.so.6 -e 'ld-linux.*' || true)
    newest=$(newest_glibc "$program")
    if [ -n "$foreign" ]; then
        echo "build-hardware: $program links ${foreign//$'\n'/, }: load it with dlopen" >&2
        exit 1
    fi
    # A program that needs no libc at all lacks the providers.
    if [ -z "$newest" ] || ! is_allowed "$newest"; then
        echo "build-hardware: $program needs glibc ${newest:-none}, not at most $newest_allowed:" \
            "build on an older distribution, or find the function with readelf --version-info" >&2
        exit 1
    fi
    scripts/check-hardening.sh "$program"
done
