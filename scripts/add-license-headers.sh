#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Adds the line with the license to tracked source files that lack it. Test data stand for files of
# others. "make generate" copies the line from proto/ into generated code.
#
# Usage: add-license-headers.sh [PATH...]    the default is everything
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
identifier='SPDX-License-Identifier: Apache-2.0'

git ls-files -z -- "${@:-.}" | while IFS= read -r -d '' file; do
    [[ $file != */testdata/* && $file != *.pb.go && -f $file ]] || continue
    case $file in
    *.go | *.s | *.c | *.proto) header="// $identifier"$'\n\n' ;;
    *.h) header="/* $identifier */"$'\n\n' ;;
    *.sh | .ci/run) header="# $identifier"$'\n#\n' ;;
    *) continue ;;
    esac
    ! head -n 3 "$file" | grep -q "$identifier" || continue
    content=$(<"$file")
    if [[ $content == '#!'* ]]; then
        header=${content%%$'\n'*}$'\n'$header content=${content#*$'\n'}
    fi
    printf '%s%s\n' "$header" "$content" >"$file"
done
