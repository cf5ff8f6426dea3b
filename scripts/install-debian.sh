#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that "make gate" and "make peers" need, and the source of fio, whose
# headers libzcclient's engine for it needs. Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export DEBIAN_FRONTEND=noninteractive

packages=(
    # to build and check
    make gcc g++ libc6-dev binutils gcc-aarch64-linux-gnu libc6-dev-arm64-cross patch
    clang libclang-rt-dev pkg-config meson ninja-build
    qemu-user-static valgrind strace openssl man-db systemd dbus rpm lintian
    gpg gpg-agent gpgconf
    # RDMA, in a small VM
    qemu-system-x86 busybox-static kmod cpio xz-utils zstd iproute2
    libibverbs1 librdmacm1 libibverbs-dev librdmacm-dev ibverbs-providers ibverbs-utils rdmacm-utils perftest
    # Ceph
    ceph-mon ceph-mgr ceph-osd ceph-common librbd-dev librados-dev
    # clients of NBD, and file systems
    nbdkit nbd-client fio libnbd-bin python3-libnbd qemu-utils qemu-system-common
    e2fsprogs xfsprogs btrfs-progs f2fs-tools dosfstools fdisk cryptsetup-bin wireguard-tools
    # observers: a browser, Prometheus, a terminal, shells, Wireshark
    curl jq chromium prometheus tmux bash-completion zsh fish tshark
    # peers of benchmarks
    iperf3 ucx-utils libfabric-bin
)

missing=()
for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

fio=/usr/local/src/fio
if [ ! -e $fio ]; then
    # Only a suite with peers needs it, and fails without it.
    libzcclient/fio/build.sh --get-source $fio ||
        echo "install-debian: no source of fio, which the suite tools needs" >&2
fi
