#!/usr/bin/env bash
# Cuts a release: checks that everything is ready, turns the Unreleased section
# of CHANGELOG.md into the release's, commits and tags it, and builds the
# packages of that tag in dist/.
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

make lint check-generated check-tree test

sed -i "s/^## Unreleased\$/## Unreleased\n\n## $version - $(date -u +%Y-%m-%d)/" CHANGELOG.md
git commit -q -m "Release $version" CHANGELOG.md
git tag -a "v$version" -m "zc-relay $version" -m "$notes"
PACKAGE_VERSION=${version//-/\~} scripts/packages.sh
(cd dist && sha256sum ./*.deb ./*.rpm >SHA256SUMS)
echo
echo "v$version is tagged and its packages are in dist/. To publish it:"
echo "    git push origin HEAD v$version"
echo "    gh release create v$version --notes-from-tag dist/*.deb dist/*.rpm dist/SHA256SUMS"
