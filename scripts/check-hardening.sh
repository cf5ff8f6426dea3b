#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fails if a program or shared library that is linked with C lacks a protection: see "harden" in
# cross-compiler.sh. Programs in pure Go are static, and have no C that these would protect.
#
# Usage: check-hardening.sh FILE...
set -euo pipefail
export LC_ALL=C
[ $# -gt 0 ] || { echo "usage: check-hardening.sh FILE..." >&2; exit 2; }
failed=0

# lacks FILE WHAT: say what a file lacks
lacks() {
    echo "check-hardening: $1: $2" >&2
    failed=1
}

for file in "$@"; do
    text=$(readelf --wide --file-header --program-headers --dynamic --dyn-syms "$file")
    # has PATTERN: succeed if a line of the text matches
    has() { grep -Eq "$1" <<<"$text"; }
    has '^ *Type: +DYN ' || lacks "$file" "is loaded at a fixed address: build it with -buildmode=pie"
    has ' GNU_RELRO ' || lacks "$file" "tables of addresses stay writable: link it with -z relro"
    has '\(FLAGS\).* BIND_NOW|\(FLAGS_1\).* NOW' ||
        lacks "$file" "functions are bound late: link it with -z now"
    has ' GNU_STACK .* RW ' || lacks "$file" "the stack is executable: link it with -z noexecstack"
    ! has '\(TEXTREL\)' || lacks "$file" "code is changed when it is loaded: compile it with -fPIC"
    has ' __stack_chk_fail@' || lacks "$file" "C has no stack protector: -fstack-protector-strong"
    has ' __[a-z]*printf_chk@' || lacks "$file" "C has no checked functions: -D_FORTIFY_SOURCE=2"
done
exit $failed
