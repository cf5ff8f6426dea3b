#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes SHA256SUMS of the packages in a directory, and signs it if there is a key:
#
#   RELEASE_MINISIGN_KEY   file of a minisign secret key: SHA256SUMS.minisig
#   RELEASE_GPG_KEY        fingerprint, or other name, of a key of gpg: SHA256SUMS.asc
#
# Usage: sign-release.sh DIRECTORY
#        sign-release.sh --check      fail if a key is configured that cannot be used
set -euo pipefail

fail() {
    echo "sign-release: $*" >&2
    exit 1
}

minisign_key=${RELEASE_MINISIGN_KEY:-} gpg_key=${RELEASE_GPG_KEY:-}
if [ -n "$minisign_key" ]; then
    command -v minisign >/dev/null ||
        fail "RELEASE_MINISIGN_KEY is set, and minisign is not installed: apt-get install minisign"
    [ -r "$minisign_key" ] || fail "RELEASE_MINISIGN_KEY=$minisign_key: cannot read this file"
fi
if [ -n "$gpg_key" ]; then
    command -v gpg >/dev/null ||
        fail "RELEASE_GPG_KEY is set, and gpg is not installed: apt-get install gpg"
    gpg --batch --list-secret-keys "$gpg_key" >/dev/null 2>&1 ||
        fail "RELEASE_GPG_KEY=$gpg_key: gpg has no such secret key: gpg --list-secret-keys"
fi
[ "${1:?give a directory}" != --check ] || exit 0

cd "$1"
rm -f SHA256SUMS SHA256SUMS.minisig SHA256SUMS.asc
shopt -s nullglob
packages=(*.deb *.rpm)
[ ${#packages[@]} -gt 0 ] || fail "$1 has no packages: make packages"
sha256sum -- "${packages[@]}" >SHA256SUMS
[ -z "$minisign_key" ] || minisign -S -s "$minisign_key" -m SHA256SUMS -x SHA256SUMS.minisig
[ -z "$gpg_key" ] || gpg --batch --local-user "$gpg_key" --armor --detach-sign \
    --output SHA256SUMS.asc SHA256SUMS
