#!/usr/bin/env bash
# Fuzzes every target of the module for the given time each.
# Usage: fuzz.sh TIME [PACKAGE...]
set -euo pipefail
time=${1:?usage: fuzz.sh TIME [PACKAGE...]}
shift
count=0
while read -r package; do
    targets=$(go test -tags faultinject -list '^Fuzz' "$package" | grep '^Fuzz' || true)
    for target in $targets; do
        echo "== $package $target"
        go test -tags faultinject -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package"
        count=$((count + 1))
    done
done < <(grep -rl --include='*_test.go' '^func Fuzz' "${@:-.}" | xargs -n1 dirname | sort -u | sed 's#^\([^./]\)#./\1#')
echo "fuzzed $count targets for $time each"
[ "$count" -gt 0 ]
