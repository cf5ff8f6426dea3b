#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the packages twice, as two versions, and has them installed, used,
# upgraded and removed under a real systemd: that of this machine, booted on a
# copy of its root directory that exists in memory only. What happens there is
# in guest.sh. Needs root, and the libraries of RDMA devices, which it hides for a while.
# KILLS is how often a daemon is killed while a client reads and writes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
libraries=$(ldconfig -p) # whole: with pipefail, a pipe to grep -q may fail although it finds the name
command -v lintian >/dev/null || {
    echo "found no lintian; run: apt-get install lintian" >&2
    exit 1
}
for library in libibverbs.so.1 librdmacm.so.1; do
    grep -q "$library" <<<"$libraries" || {
        echo "found no $library; run: apt-get install libibverbs1 librdmacm1" >&2
        exit 1
    }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/share" "$work/root"
cp test/packages/guest.sh "$work/share/"
echo "${KILLS:=4}" >"$work/share/kills"

for version in 1.0.0 1.0.1; do
    mkdir "$work/share/$version"
    PACKAGE_VERSION=$version PACKAGE_ARCHITECTURES=$(dpkg --print-architecture) PACKAGE_DIRECTORY=$work/share/$version scripts/packages.sh
done
test/packages/reproducible.sh "$work/share/1.0.0" 1.0.0
for package in "$work"/share/1.0.0/*.rpm; do
    # Installing it takes an RPM distribution; its content and scripts do not.
    rpm --query --package --list "$package" >"$work/list"
    grep -Eq '^/usr/(bin/(zc-relay|dma-copy|zc-libdoca)|lib/libdoca-emulation/include/|lib64/libzcclient)' "$work/list"
done

fail() {
    echo "FAILED: $*" >&2
    exit 1
}
for package in "$work"/share/1.0.0/*.deb; do
    lintian --fail-on error --tag-display-limit 0 --allow-root "$package" >"$work/lintian" ||
        fail "lintian finds errors in $(basename "$package"): $(grep ^E: "$work/lintian")"
done

# Static programs need no loader, and so are loaded at the address that they are linked for. What
# programs are only linked with (link/) has no code to protect.
mkdir "$work/content"
for package in "$work"/share/1.0.0/*.deb; do
    [[ $package != *-static_* ]] || continue
    content=$work/content/$(basename "$package")
    dpkg-deb --extract "$package" "$content"
    mapfile -t files < <(find "$content"/usr/bin "$content"/usr/lib/{libdoca-emulation/lib,*-linux-gnu} \
        -maxdepth 2 -type f -not -path '*/lib/link/*' -exec sh -c 'head -c 4 "$1" | grep -q ELF' _ {} \; -print 2>/dev/null)
    [ ${#files[@]} -eq 0 ] || scripts/check-hardening.sh "${files[@]}" ||
        fail "$(basename "$package") has programs without protection"
done
rm -r "$work/content"

# extract PACKAGE FILE: print a file of a .deb package
extract() { dpkg-deb --fsys-tarfile "$1" | tar -x --to-stdout "./$2"; }

for name in zc-relay zc-relay-target zc-relay-initiator; do
    package=$(ls "$work/share/1.0.0/${name}"_*.deb)
    dpkg-deb --fsys-tarfile "$package" | tar -t | sed -n "s|^\./usr/share/doc/$name/||p" | sort >"$work/list"
    missing=$(git ls-files docs ':!docs/api' ':!*.go' | sed 's|^docs/||' | sort | comm -23 - "$work/list")
    [ -z "$missing" ] || fail "$name lacks pages of the documentation: $missing"
done

# Variants take the place of their package, so the two cannot be installed together.
for variant in zc-relay-target-ceph zc-relay-target-static zc-relay-initiator-static; do
    package=$(ls "$work/share/1.0.0/$variant"_*.deb)
    for field in Conflicts Replaces Provides; do
        [ "$(dpkg-deb --field "$package" $field)" = "${variant%-*}" ] || fail "$field of $variant"
    done
    rpm --query --package --obsoletes "$work/share/1.0.0/$variant"-1.0.0*.rpm >"$work/obsoletes"
    [ ! -s "$work/obsoletes" ] || fail "an upgrade would exchange ${variant%-*} for $variant"
done
for package in "$work"/share/1.0.0/*.deb; do
    name=$(dpkg-deb --field "$package" Package)
    [[ $name != lib*-dev ]] || continue # has headers only
    extract "$package" "usr/share/doc/$name/third-party-notices" >"$work/notices"
    grep -q '^Go 1\.' "$work/notices" || fail "$name lacks the license of Go"
    extract "$package" "usr/share/doc/$name/sbom.cdx.json" >"$work/sbom"
    grep -q '"name": "'"$name"'"' "$work/sbom" || fail "$name lacks a bill of materials"
done
ceph=$(ls "$work"/share/1.0.0/zc-relay-target-ceph_*.deb)
dpkg-deb --field "$ceph" Depends | grep librbd1 >/dev/null
extract "$ceph" usr/bin/zc-relay-target >"$work/ceph"
readelf --dynamic "$work/ceph" | grep 'NEEDED.*librbd.so.1' >/dev/null
rm "$work"/share/*/zc-relay-target-ceph_*.deb

# The static programs run where there is no file beside them.
mkdir "$work/empty" "$work/share/static"
for program in zc-relay-target zc-relay-initiator; do
    package=$(ls "$work/share/1.0.0/$program-static"_*.deb)
    extract "$package" "usr/bin/$program" >"$work/empty/$program"
    chmod 755 "$work/empty/$program"
    chroot "$work/empty" "/$program" --version >/dev/null || fail "$program-static needs another file"
    ! dpkg-deb --field "$package" Depends | grep libc || fail "$program-static depends on a libc"
    ! rpm --query --package --requires "$work/share/1.0.0/$program-static"-1.0.0*.rpm | grep libc ||
        fail "the RPM package $program-static requires a libc"
    mv "$package" "$work/share/static/"
    rm "$work/share/1.0.1/$program-static"_*.deb
done

# Its own mounts, processes, network and cgroups: nothing of it reaches the
# machine or outlives this.
boot() {
    unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup --propagation private bash -euc '
        mount -t tmpfs tmpfs "$1/root"
        mkdir "$1"/root/{upper,work,merged}
        root=$1/root/merged
        mount -t overlay overlay -o "lowerdir=/,upperdir=$1/root/upper,workdir=$1/root/work" "$root"
        mount -t proc proc "$root/proc"
        mount -t sysfs -o ro sysfs "$root/sys"
        mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
        for directory in run dev; do mount -t tmpfs -o mode=755 tmpfs "$root/$directory"; done
        mount -t tmpfs tmpfs "$root/tmp"
        for device in null zero full random urandom tty; do
            touch "$root/dev/$device"
            mount --bind "/dev/$device" "$root/dev/$device"
        done
        mkdir "$root/dev/shm" "$root/run/share"
        mount -t tmpfs tmpfs "$root/dev/shm"
        mount --bind "$1/share" "$root/run/share"
        : >"$root/etc/machine-id"
        # What would reach beyond: the kernel settings and devices of the machine.
        for unit in systemd-sysctl systemd-modules-load systemd-udevd systemd-udev-trigger systemd-timesyncd systemd-remount-fs; do
            ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
        done
        printf "[Unit]\nRequires=basic.target test.service\nAfter=basic.target\nAllowIsolate=yes\n" >"$root/etc/systemd/system/test.target"
        printf "[Service]\nType=oneshot\nExecStart=/bin/bash /run/share/guest.sh\nExecStopPost=/bin/systemctl poweroff --force --no-block\nStandardOutput=file:/run/share/log\nStandardError=inherit\n" \
            >"$root/etc/systemd/system/test.service"
        hostname packages
        ip link set lo up
        exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
            chroot "$root" /lib/systemd/systemd --unit=test.target --log-target=console --show-status=no
    ' boot "$work"
}
# The end of its first process is that of a power-off, not an exit code.
timeout --signal=KILL $((360 + 10 * KILLS)) bash -c "$(declare -f boot); work=$work; boot" >"$work/console" 2>&1 || true

cat "$work/share/log" 2>/dev/null || true
if [ "$(cat "$work/share/result" 2>/dev/null)" != passed ]; then
    echo "the packages failed their test; the console:" >&2
    tail -50 "$work/console" >&2
    exit 1
fi
