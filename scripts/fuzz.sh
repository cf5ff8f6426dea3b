#!/usr/bin/env bash
# Runs each fuzz target of the module, or of the given packages, for TIME.
#
# Usage: fuzz.sh TIME [PACKAGE...]
set -euo pipefail
time=${1:?usage: fuzz.sh TIME [PACKAGE...]}
shift
log=$(mktemp "${TMPDIR:-/tmp}/zc-relay-fuzz.XXXXXX")
trap 'rm -f -- "$log"' EXIT

# On a busy machine the go command may report the end of the fuzzing time as a failure, with only
# this line. A real failure always comes with the input that caused it.
ran_out_of_time() {
    grep -q 'context deadline exceeded' "$log" &&
        ! grep -qE 'Failing input|panic|fuzzing process' "$log"
}

count=0
while read -r package; do
    targets=$(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true)
    for target in $targets; do
        echo "== $package $target"
        if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" \
            "$package" 2>&1 |
            tee "$log"; then
            ran_out_of_time || exit 1
            echo "(the time ran out, and no input failed)"
        fi
        count=$((count + 1))
    done
done < <(grep -rl --include='*_test.go' '^func Fuzz' "${@:-.}" |
    xargs -n1 dirname | sort -u | sed 's#^\([^./]\)#./\1#')
echo "fuzzed $count targets for $time each"
[ "$count" -gt 0 ]
