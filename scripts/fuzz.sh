#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs each fuzz target of this module and of libdoca, or of the given packages, for TIME.
#
# Usage: fuzz.sh TIME [PACKAGE...]
set -euo pipefail
time=${1:?usage: fuzz.sh TIME [PACKAGE...]}
shift
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-fuzz.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

# On a busy machine the end of the fuzzing time may be reported as a failure, with only this line. A
# real failure always comes with the input that caused it.
ran_out_of_time() {
    grep -q 'context deadline exceeded' "$work/log" &&
        ! grep -qE 'Failing input|panic|fuzzing process' "$work/log"
}

# "go test -fuzz" would link the program once more for each target.
count=0
while read -r package; do
    # The workspace of libdoca has both modules.
    go -C libdoca test -c -fuzz=Fuzz -o "$work/fuzz.test" "../$package"
    corpus=$(go env GOCACHE)/fuzz/$(go -C libdoca list "../$package")
    for target in $("$work/fuzz.test" -test.list '^Fuzz'); do
        echo "== $package $target"
        if ! (cd "$package" && "$work/fuzz.test" -test.run '^$' -test.fuzz "^$target\$" \
            -test.fuzztime "$time" -test.fuzzcachedir "$corpus") 2>&1 | tee "$work/log"; then
            ran_out_of_time || exit 1
            echo "(the time ran out, and no input failed)"
        fi
        count=$((count + 1))
    done
done < <(grep -rl --include='*_test.go' '^func Fuzz' "${@:-.}" |
    xargs -n1 dirname | sort -u | sed 's#^\([^./]\)#./\1#')
echo "fuzzed $count targets for $time each"
[ "$count" -gt 0 ]
