#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Cuts a release: checks that everything is ready, turns the Unreleased section of CHANGELOG.md into
# the release's, commits and tags it, and builds the packages of that tag in dist/vVERSION, with
# SHA256SUMS, signatures if there is a key (see sign-release.sh), and RELEASE_NOTES.md.
#
#   scripts/release.sh 0.1.0
#
# Nothing is pushed. Undo with: git tag -d v0.1.0 && git reset --hard HEAD~
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "release: $*" >&2
    exit 1
}

version=${1:-}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.]+)?$ ]] ||
    fail "usage: scripts/release.sh MAJOR.MINOR.PATCH[-PRERELEASE]"
[ -z "$(git status --porcelain)" ] || fail "the tree has changes: commit or stash them first"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || fail "tag v$version exists"
notes=$(awk '/^## /{inside = ($2 == "Unreleased"); next} inside' CHANGELOG.md)
[ -n "${notes//[[:space:]]/}" ] || fail "CHANGELOG.md has nothing under \"## Unreleased\""
directory=dist/v$version
[ ! -e "$directory" ] || fail "$directory exists: remove it first"
scripts/sign-release.sh --check

# $RELEASE_CHECKS replaces the checks in tests of this script.
${RELEASE_CHECKS:-make lint check-generated check-tree test}

sed -i "s/^## Unreleased\$/## Unreleased\n\n## $version - $(date -u +%Y-%m-%d)/" CHANGELOG.md
git commit -q -m "Release $version" CHANGELOG.md
git tag -a "v$version" -m "zc-relay $version" -m "$notes"
mkdir -p "$directory"
PACKAGE_VERSION=${version//-/\~} PACKAGE_DIRECTORY=$directory scripts/packages.sh
sed '/./,$!d' <<<"$notes" >"$directory/RELEASE_NOTES.md" # without blank lines before it
scripts/sign-release.sh "$directory"
[ -e "$directory/SHA256SUMS.minisig" ] || [ -e "$directory/SHA256SUMS.asc" ] ||
    echo "release: SHA256SUMS is not signed: RELEASE_MINISIGN_KEY or RELEASE_GPG_KEY names a key" >&2
echo
echo "v$version is tagged and its packages are in $directory. To publish it:"
echo "    git push origin HEAD v$version"
echo "    gh release create v$version --notes-file $directory/RELEASE_NOTES.md" \
    "$directory/*.deb $directory/*.rpm $directory/SHA256SUMS*"
