#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs target, relay, and NBD gateway as processes, with the providers that need no hardware and
# without root. Makes an ext4 image with files in it, moves it onto the volume with ordinary NBD
# tools, and reads it back and checks it. Exits 0 only if everything succeeds. Needs bin/ (make
# build), and the Debian packages e2fsprogs, libnbd-bin, and qemu-utils.
set -euo pipefail

export PATH=$PATH:/usr/sbin:/sbin
for tool in mke2fs e2fsck debugfs nbdinfo nbdcopy qemu-img; do
    command -v "$tool" >/dev/null || {
        echo "$tool is not installed: apt-get install e2fsprogs libnbd-bin qemu-utils" >&2
        exit 1
    }
done
. "$(dirname "${BASH_SOURCE[0]}")/demo-chain.sh"
start_chain disk 1GiB

cat >"$work/session.sh" <<'SESSION'
set -euo pipefail
step() { printf '\n== %s\n' "$*"; }
cd "$work"

step "the volume is a disk: $uri"
nbdinfo "$uri"
qemu-img info "$uri"

step "making an ext4 file system with 100 files, and moving it onto the disk"
mkdir tree
for i in $(seq 100); do head -c $((i * 10000)) /dev/urandom >"tree/file$i"; done
truncate -s 1G image
mke2fs -q -t ext4 -d tree image
nbdcopy --flush image "$uri"

step "reading it back and checking it"
nbdcopy "$uri" back
qemu-img compare -f raw -F raw image back
e2fsck -fn back
for i in 1 50 100; do
    debugfs -R "cat file$i" back 2>/dev/null | cmp - "tree/file$i"
done
echo "the files are identical to the originals"

step "4 KiB random reads"
qemu-img bench -f raw -c 20000 -d 16 -s 4096 "$uri"
SESSION
work=$work "$bin/initiator" nbd --emulated-dir "$work/comch" --log-level warn \
    --run "bash '$work/session.sh'"
