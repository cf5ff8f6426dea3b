#!/usr/bin/env bash
# Makes what a virtual machine needs to use a virtio disk with ext4: Debian's kernel, and an
# initramfs with busybox that copies the files of the disk again and again. Needs apt-get, which
# downloads 70 MB once, to the user's cache, busybox-static, cpio, e2fsprogs, kmod, and xz-utils.
# Usage: vm-image.sh DIRECTORY
#
# The guest prints "copied N" after each round, until it reads a line from its console. Then it
# checks the file system, and prints "all is well" if it has seen no error.
set -euo pipefail
cd "$1"
package=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" && !n++ { print $2 }')
release=${package#linux-image-}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/zc-relay-vm
archive=$cache/$(apt-get -qq --print-uris download "$package" | cut -d' ' -f2)
if [ ! -e "$archive" ]; then
    apt-get -qq -o APT::Sandbox::User=root download "$package"
    mkdir -p "$cache"
    rm -f "$cache"/*.deb
    mv "$package"_*.deb "$archive"
fi
dpkg -x "$archive" kernel
cp "kernel/boot/vmlinuz-$release" vmlinuz
[ -d "kernel/lib/modules/$release" ] || mv kernel/usr/lib kernel/
depmod -b kernel "$release"

mkdir -p root/{bin,dev,proc,modules,mnt}
cp "$(command -v busybox)" root/bin/busybox
e2fsck=$(PATH=$PATH:/usr/sbin:/sbin command -v e2fsck)
cp "$e2fsck" root/bin/e2fsck
ldd "$e2fsck" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "root$(dirname "$library")"
    cp -L "$library" "root$library"
done
for module in virtio_pci virtio_blk crc32c_generic ext4; do
    modprobe -d kernel -S "$release" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' | while read -r file; do
    name=$(basename "${file%.xz}")
    case $file in
        *.xz) xz -dc "$file" >"root/modules/$name" ;;
        *) cp "$file" "root/modules/$name" ;;
    esac
    echo "/modules/$name"
done >root/modules/order

cat >root/init <<'END'
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs none /dev
mount -t proc none /proc
while read -r module; do insmod "$module"; done </modules/order
finish() {
    echo "$1"
    poweroff -f
}
until [ -b /dev/vda ]; do sleep 0.1; done
mount -t ext4 -o errors=remount-ro /dev/vda /mnt || finish "cannot mount"
round=0
until read -r -t 1 _; do
    rm -rf /mnt/copy
    cp -a /mnt/tree /mnt/copy && sync || finish "cannot copy"
    echo 3 >/proc/sys/vm/drop_caches
    diff -r /mnt/tree /mnt/copy || finish "the copy differs"
    round=$((round + 1))
    echo "copied $round"
done
umount /mnt || finish "cannot unmount"
e2fsck -fn /dev/vda || finish "the file system is damaged"
if dmesg | grep -iE 'I/O error|EXT4-fs (error|warning)'; then finish "the kernel reports errors"; fi
finish "all is well"
END
chmod +x root/init
(cd root && find . | cpio --quiet -o -H newc) >initramfs
