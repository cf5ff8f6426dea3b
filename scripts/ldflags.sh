#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the linker flags by which programs know what they were built from. The go command records
# the revision only if it may ask git, which -buildvcs=false and a source without .git rule out.
#
# Usage: ldflags.sh [VERSION]    the default is what git describe says
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${1:-$(git describe --tags --always --dirty 2>/dev/null || echo devel)}
revision=$(git rev-parse HEAD 2>/dev/null || true)
set -- version "$version" revision "$revision"
if [ -n "$revision" ]; then
    modified=false
    [ -z "$(git status --porcelain)" ] || modified=true
    set -- "$@" modified $modified \
        time "$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)"
fi
flags=()
while [ $# -gt 0 ]; do
    flags+=(-X "github.com/zc-relay/zc-relay/internal/buildinfo.$1=$2")
    shift 2
done
echo "${flags[*]}"
