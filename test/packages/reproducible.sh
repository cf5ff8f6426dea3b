#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the packages of a version once more, as another user with another umask, host name, time
# zone, directory, and empty cache, and fails unless they have the same bytes. Needs root.
#
# Usage: reproducible.sh DIRECTORY VERSION    DIRECTORY has the packages of the first time
set -euo pipefail
first=$(realpath "$1") version=$2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
nobody=65534
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
copy=$work/a/directory/with/a/long/name

# This commit, and what has changed since.
git clone --quiet --no-hardlinks . "$copy"
git -C "$copy" checkout --quiet "$(git rev-parse HEAD)"
git ls-files -z --modified --others --exclude-standard | while IFS= read -r -d '' file; do
    rm -f "$copy/$file"
    [ ! -e "$file" ] || cp --parents --no-dereference "$file" "$copy/"
done
mkdir "$work"/{modules,cache,home,packages}
chown -R $nobody:$nobody "$work"
modules=$(go env GOMODCACHE)
export work copy version modules nobody
unshare --mount --uts --propagation private bash -euc '
    mount --bind "$modules" "$work/modules"
    hostname elsewhere
    cd "$copy"
    umask 077
    exec setpriv --reuid=$nobody --regid=$nobody --clear-groups env -i PATH="$PATH" \
        HOME="$work/home" TMPDIR="$work/home" GOCACHE="$work/cache" GOMODCACHE="$work/modules" \
        GOPROXY=off GOFLAGS="'"${GOFLAGS:-}"' -trimpath" TZ=Asia/Tokyo LC_ALL=C.UTF-8 \
        PACKAGE_VERSION="$version" PACKAGE_ARCHITECTURES="$(dpkg --print-architecture)" \
        PACKAGE_DIRECTORY="$work/packages" scripts/packages.sh
'
different=0
for package in "$first"/*; do
    cmp "$package" "$work/packages/$(basename "$package")" || different=1
done
[ $different -eq 0 ] || {
    echo "these packages depend on who builds them; compare their content with diffoscope" >&2
    exit 1
}
echo "all packages have the same bytes when another user builds them"
