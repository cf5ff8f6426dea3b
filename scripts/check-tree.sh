#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fails if a tracked file is a compiled program (ELF, Mach-O or PE) or larger than 1 MB, or if a
# document names a file of the tree that does not exist.
set -euo pipefail
export LC_ALL=C # reads bytes, not characters
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit=1000000
failed=0
complain() {
    echo "$1: $2" >&2
    failed=1
}

while IFS=' ' read -r -d '' size file; do
    [ -f "$file" ] && [ ! -L "$file" ] || continue
    [ "$size" -le $limit ] || complain "$file" "$size bytes, more than $limit"
    # The magic numbers of ELF; of Mach-O for 32 and 64 bits in both byte orders; of universal Mach-O
    # binaries; and of DOS, with which PE files begin.
    IFS= read -r -d '' -N4 magic <"$file" 2>/dev/null || true
    case $magic in
    $'\x7fELF') complain "$file" "ELF file" ;;
    $'\xfe\xed\xfa'[$'\xce\xcf'] | [$'\xce\xcf']$'\xfa\xed\xfe' | $'\xca\xfe\xba\xbe')
        complain "$file" "Mach-O file" ;;
    MZ*) complain "$file" "PE file" ;;
    esac
done < <(git ls-files -z | xargs -0 stat --printf '%s %n\0')

if [ $failed -ne 0 ]; then
    echo "Remove these files from the tree: git rm --cached FILE" >&2
fi

while IFS=: read -r document path; do
    [ -e "${path//\`/}" ] || complain "$document" "names $path, which does not exist"
done < <(git ls-files -z '*.md' | xargs -0 grep -HoE '`(cmd|pkg|internal|test|bench|deploy|scripts|proto|libdoca|libzcclient|examples)/[a-z0-9_./-]*[a-z0-9]`')

exit $failed
