#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Warns about heavy sentences in documents, comments, and texts: the patterns in heavy-english.txt,
# and prose of more than 45 words between two full stops. It never fails: a pattern cannot judge a
# sentence.
#
#   scripts/check-english.sh [FILE...]    those that differ from the commit origin/main, or HEAD
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base=$(git rev-parse -q --verify origin/main || git rev-parse HEAD)
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(
    git diff --name-only --diff-filter=d "$base" -- '*.md' '*.go' '*.sh' '*.yaml' ':!docs/api'
)
[ ${#files[@]} -gt 0 ] || exit 0

while IFS=$'\t' read -r pattern advice; do
    case $pattern in '#'* | '') continue ;; esac
    grep -HnE "$pattern" "${files[@]}" | cut -c1-160 | sed "s|\$|  <- $advice|" || true
done <scripts/heavy-english.txt

for file in "${files[@]}"; do
    [[ $file == *.md ]] || continue
    awk -v file="$file" '
        function judge() {
            count = split(text, sentences, /[.:;?!]( |$)/)
            for (i = 1; i <= count; i++)
                if (split(sentences[i], words, " ") > 45)
                    printf "%s:%d: %s …  <- a sentence of %d words\n", file, begin,
                        substr(sentences[i], 1, 80), split(sentences[i], words, " ")
            text = ""
        }
        /^<!--/ { hidden = 1; judge() }
        hidden { if (/-->/) hidden = 0; next }
        /^ *```/ { code = !code; judge(); next }
        code || /^ *\|/ || /^#/ { judge(); next }
        /^ *$/ || /^ *[-*] / || /^ *[0-9]+\. / { judge() }
        { if (text == "") begin = NR; text = text " " $0 }
        END { judge() }' "$file"
done
