# SPDX-License-Identifier: Apache-2.0
#
# vm.sh - the VM of the tests of ublk. Scripts source it.

PATH=$PATH:/usr/sbin

# copy_tools DIRECTORY PROGRAM...: put programs and their libraries, which the guest lacks, into a
# directory for it
copy_tools() {
    local directory=$1 tool file
    shift
    mkdir -p "$directory/tools" "$directory/lib"
    for tool; do
        file=$(command -v "$tool") || {
            echo "found no $tool; run: scripts/install-debian.sh" >&2
            exit 1
        }
        cp -L "$file" "$directory/tools/$tool"
        ldd "$file" | grep -oE '/[^ ]+ \(0x' | cut -d' ' -f1 | xargs -I{} cp -L {} "$directory/lib/"
    done
}

# ublk_vm OPTION... -- COMMAND...: run a command in a VM whose kernel has ublk: Debian's kernel 6.12,
# not the one of Debian 12 itself
ublk_vm() {
    RDMA_VM_CACHE=${RDMA_VM_CACHE:-$HOME/.cache/rdma-vm}-6.12 RDMA_VM_SIW=no \
        RDMA_VM_KERNEL=linux-image-6.12-amd64 \
        RDMA_VM_MODULES="ublk_drv nbd ext4 xfs btrfs dm_mod" \
        "$(dirname -- "${BASH_SOURCE[0]}")/../siw/rdma-vm.sh" "$@"
}
