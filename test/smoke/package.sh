#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the package of the target, checks it with lintian, its manual with man, and its completions
# with the shells, installs it in a copy of this machine's root directory that exists in memory only,
# uses it, and purges it. test/packages/run.sh tests all packages, under a real systemd. Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d "${TMPDIR:-/tmp}/zc-relay-smoke.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
mkdir "$work/packages" "$work/root"

PACKAGE_VERSION=1.0.0 PACKAGE_ARCHITECTURES=$(dpkg --print-architecture) PACKAGE_NAMES=zc-relay-target \
    PACKAGE_FORMATS=deb PACKAGE_DIRECTORY=$work/packages scripts/packages.sh
lintian --fail-on error --allow-root "$work"/packages/*.deb >"$work/lintian" || {
    grep ^E: "$work/lintian" >&2
    exit 1
}
mkdir "$work/content"
dpkg-deb --extract "$work"/packages/*.deb "$work/content"
scripts/check-hardening.sh "$work"/content/usr/bin/*
for page in "$work"/content/usr/share/man/man?/*; do
    warnings=$(MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null |
        grep -v 'cannot \(adjust\|break\) line' || true) # a word that is longer than a line
    [ -z "$warnings" ] || { echo "$(basename "$page"): $warnings" >&2; exit 1; }
done
share=$work/content/usr/share
# The script that makes it fails if the program links anything else.
grep -q '"purl": "pkg:golang/std@' "$share"/doc/zc-relay-target/sbom.cdx.json
grep -q 'Apache License' "$share"/doc/zc-relay-target/third-party-notices
bash -n "$share"/bash-completion/completions/zc-relay-target
zsh -n "$share"/zsh/vendor-completions/_zc-relay-target
fish --no-execute "$share"/fish/vendor_completions.d/zc-relay-target.fish
export work
unshare --mount --net --pid --fork --kill-child --propagation private bash -euo pipefail -c '
    mount -t tmpfs tmpfs "$work/root"
    mkdir "$work"/root/{upper,work,merged}
    root=$work/root/merged
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/root/upper,workdir=$work/root/work" "$root"
    for directory in run tmp; do mount -t tmpfs tmpfs "$root/$directory"; done
    cp "$work"/packages/*.deb "$root/tmp/"
    # Those who build images install packages without /proc.
    [ ! -e "$root/proc/self" ]
    chroot "$root" bash -c "dpkg --install /tmp/*.deb"
    mount -t proc proc "$root/proc"
    chroot "$root" bash -euo pipefail -c "
        zc-relay-target version
        zc-relay-target config check /etc/zc-relay/zc-relay-target.yaml
        getent passwd zc-relay-target
        keys=/etc/zc-relay/target-tls
        [ \"\$(stat -c %U:%G:%a \$keys)\" = root:zc-relay-target:750 ]
        install -m 640 -g zc-relay-target /dev/null \$keys/target.key
        dpkg --purge zc-relay-target
        for file in /usr/bin/zc-relay-target /etc/zc-relay/zc-relay-target.yaml; do
            [ ! -e \$file ] || { echo \$file is left; exit 1; }
        done
        ! getent passwd zc-relay-target
        for key in \$keys \$keys/target.key; do
            [[ \"\$(stat -c %u:%g:%a \$key)\" = 0:0:?00 ]] || { echo a freed group can read \$key; exit 1; }
        done
    "
'
echo "the package of the target was installed, used, and purged"
