#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh - the part of run.sh that runs in the VM.
#
# Usage: guest.sh DIRECTORY    DIRECTORY holds what run.sh has put there

set -u
directory=$1 programs=/tmp/bin scratch=/tmp/chain failures=0
mkdir -p $scratch
cp -r "$directory/bin" /tmp # into memory, which is faster than the share
. "$directory/chain.sh"
ulimit -n 65536

tool() { LD_LIBRARY_PATH=$directory/lib "$directory/tools/$1" "${@:2}"; }

# check TEXT COMMAND...: run one case and report its result
check() {
    local text=$1 start=$SECONDS log=$scratch/case.log
    shift
    if "$@" >"$log" 2>&1; then
        echo "ok     $text ($((SECONDS - start)) s)"
        return
    fi
    echo "FAILED $text ($((SECONDS - start)) s)"
    tail -n 20 "$log" $scratch/{target,relay}.log 2>/dev/null | cut -c 1-400
    failures=$((failures + 1))
    kill $target $relay $capture 2>/dev/null
    target= relay= capture=
}

# What clients write. No encryption leaves 16 bytes of it as they are.
line="everybody can read this line, unless it is encrypted"
capture=
for _ in {1..20000}; do echo "$line"; done >$scratch/original
size=$(stat -c %s $scratch/original)

# round_trip: write what clients write, and read it back
round_trip() {
    initiator put $scratch/original && initiator get $scratch/copy --length "$size" &&
        cmp $scratch/original $scratch/copy
}

# dm_crypt: a volume on a mapping of dm-crypt leaves nothing readable on the disk
dm_crypt() {
    local disk
    modprobe -a loop dm_crypt && truncate -s 64M $scratch/disk.raw && disk=$(losetup -f) &&
        losetup "$disk" $scratch/disk.raw || return 1
    echo "open sesame" >$scratch/passphrase
    # The number of iterations is for a test in an emulated machine.
    tool cryptsetup luksFormat --batch-mode --type luks2 --sector-size 4096 --pbkdf pbkdf2 \
        --pbkdf-force-iterations 1000 "$disk" $scratch/passphrase &&
        tool cryptsetup open --key-file $scratch/passphrase "$disk" disk || return 1
    backend=file:/dev/mapper/disk
    "$programs/target" doctor --listen-address 127.0.0.1 --volume disk=$backend |
        tee $scratch/doctor.log
    grep -q "stored data of volume disk: encrypted by dm-crypt" $scratch/doctor.log || return 1
    start_chain 127.0.0.1 iwarp iwarp && round_trip && stop_chain || return 1
    backend=memory:16MiB
    grep -qaF "$line" /dev/mapper/disk || { echo "the volume does not have the content"; return 1; }
    tool cryptsetup close disk && sync && ! grep -qaF "$line" $scratch/disk.raw
}

# Relay and clients are in the network namespace dpu, the target in storage, with a cable between.
relay_address=192.0.2.11 target_address=192.0.2.12

tls=(--tls-cert "$directory/both.pem" --tls-key "$directory/both.key" --tls-ca "$directory/ca.pem")

connect() {
    ip netns add dpu && ip netns add storage &&
        ip link add cable netns dpu type veth peer name cable netns storage || return 1
    local namespace
    for namespace in dpu storage; do
        # IPv6 would send frames of its own.
        ip netns exec $namespace sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6'
        ip -n $namespace link set lo up
    done
    ip -n dpu address add $relay_address/24 dev cable
    ip -n storage address add $target_address/24 dev cable
    ip -n dpu link set cable up && ip -n storage link set cable up
}

disconnect() {
    rdma link delete siwdpu 2>/dev/null
    rdma link delete siwstorage 2>/dev/null
    ip netns delete dpu && ip netns delete storage
}

# sends PROVIDER ADDRESS-OF-TARGET KIND READABLE [FLAG...]: run a chain in the namespaces. The DPU
# may send frames of a kind and ARP only. What clients write is readable there (yes) or not (no).
sends() {
    local provider=$1 address=$2 kind=$3 readable=$4 process
    shift 4
    rm -rf $scratch/comch $scratch/address $scratch/frames
    ip netns exec dpu "$programs/capture" cable "$line" >$scratch/frames &
    capture=$!
    wait_for 30 grep -q capturing $scratch/frames || return 1
    ip netns exec storage "$programs/target" --listen-address "$address" --listen-port 7470 \
        --address-file $scratch/address --volume disk=memory:16MiB --rdma-provider "$provider" \
        "$@" 2>$scratch/target.log &
    target=$!
    wait_for 30 test -s $scratch/address || return 1
    ip netns exec dpu "$programs/zc-relay" run --storage-server "$address:7470" --volume disk \
        --emulated-dir $scratch/comch --rdma-provider "$provider" "$@" 2>$scratch/relay.log &
    relay=$!
    wait_for 30 grep -q "listening for clients" $scratch/relay.log &&
        wait_for 30 grep -q "target is ready" $scratch/relay.log && round_trip && stop_chain ||
        return 1
    kill -TERM $capture && wait $capture
    cat $scratch/frames
    grep -q "^$kind " $scratch/frames || return 1
    if grep -vE "^($kind|arp|capturing|readable)( |\$)" $scratch/frames; then return 1; fi
    [ "$readable" = yes ] || grep -qx "readable 0" $scratch/frames
    [ "$readable" = no ] || ! grep -qx "readable 0" $scratch/frames
}

# with_siw: kernel iWARP in both namespaces
with_siw() {
    modprobe siw && ip netns exec dpu rdma link add siwdpu type siw netdev "$1" &&
        ip netns exec storage rdma link add siwstorage type siw netdev "$1"
}

# ipsec: transport mode, with keys that nobody negotiates
ipsec() {
    local to_storage to_dpu
    to_storage=0x$(head -c 20 /dev/urandom | od -An -tx1 | tr -d ' \n')
    to_dpu=0x$(head -c 20 /dev/urandom | od -An -tx1 | tr -d ' \n')
    local namespace
    for namespace in dpu storage; do
        ip -n $namespace xfrm state add src $relay_address dst $target_address proto esp spi 0x101 \
            reqid 1 mode transport aead 'rfc4106(gcm(aes))' "$to_storage" 128 &&
            ip -n $namespace xfrm state add src $target_address dst $relay_address proto esp \
                spi 0x102 reqid 1 mode transport aead 'rfc4106(gcm(aes))' "$to_dpu" 128 || return 1
    done
    ip -n dpu xfrm policy add src $relay_address dst $target_address dir out \
        tmpl proto esp reqid 1 mode transport &&
        ip -n dpu xfrm policy add src $target_address dst $relay_address dir in \
            tmpl proto esp reqid 1 mode transport &&
        ip -n storage xfrm policy add src $target_address dst $relay_address dir out \
            tmpl proto esp reqid 1 mode transport &&
        ip -n storage xfrm policy add src $relay_address dst $target_address dir in \
            tmpl proto esp reqid 1 mode transport
}

# wireguard: a tunnel with addresses of its own
wireguard() {
    local namespace
    for namespace in dpu storage; do
        (umask 077; tool wg genkey >$scratch/$namespace.key)
        tool wg pubkey <$scratch/$namespace.key >$scratch/$namespace.pub
        ip -n $namespace link add wg0 type wireguard || return 1
    done
    wg_in dpu set wg0 private-key $scratch/dpu.key listen-port 51820 \
        peer "$(cat $scratch/storage.pub)" allowed-ips 198.51.100.12/32 \
        endpoint $target_address:51820 &&
        wg_in storage set wg0 private-key $scratch/storage.key listen-port 51820 \
            peer "$(cat $scratch/dpu.pub)" allowed-ips 198.51.100.11/32 \
            endpoint $relay_address:51820 || return 1
    ip -n dpu address add 198.51.100.11/24 dev wg0
    ip -n storage address add 198.51.100.12/24 dev wg0
    ip -n dpu link set wg0 up && ip -n storage link set wg0 up
}

wg_in() {
    ip netns exec "$1" env LD_LIBRARY_PATH="$directory/lib" "$directory/tools/wg" "${@:2}"
}

# macsec: an encrypted interface on the cable, with keys that nobody negotiates
macsec() {
    local dpu storage to_storage to_dpu
    dpu=$(ip netns exec dpu cat /sys/class/net/cable/address) || return 1
    storage=$(ip netns exec storage cat /sys/class/net/cable/address) || return 1
    to_storage=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
    to_dpu=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
    macsec_in dpu "$to_storage" "$storage" "$to_dpu" 198.51.100.11 &&
        macsec_in storage "$to_dpu" "$dpu" "$to_storage" 198.51.100.12
}

# macsec_in NAMESPACE OWN-KEY PEER PEER-KEY ADDRESS
macsec_in() {
    ip -n "$1" link add link cable macsec0 type macsec encrypt on &&
        ip -n "$1" macsec add macsec0 tx sa 0 pn 1 on key 00 "$2" &&
        ip -n "$1" macsec add macsec0 rx port 1 address "$3" &&
        ip -n "$1" macsec add macsec0 rx port 1 address "$3" sa 0 pn 1 on key 01 "$4" &&
        ip -n "$1" address add "$5/24" dev macsec0 && ip -n "$1" link set macsec0 up
}

# roce: two devices of Soft-RoCE, which works in the first network namespace only, on one cable.
# Without the rules, what is for the other address would not leave by the cable.
roce() {
    local interface
    ip link add roce0 type veth peer name roce1 || return 1
    for interface in roce0 roce1 all; do
        echo 1 >/proc/sys/net/ipv4/conf/$interface/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/$interface/rp_filter
        echo 1 >/proc/sys/net/ipv6/conf/$interface/disable_ipv6
    done
    ip address add 203.0.113.1/24 dev roce0 && ip address add 203.0.113.2/24 dev roce1 || return 1
    ip link set roce0 up && ip link set roce1 up || return 1
    rdma link add rxe10 type rxe netdev roce0 && rdma link add rxe11 type rxe netdev roce1 ||
        return 1
    ip rule add pref 100 iif lo from 203.0.113.1 to 203.0.113.2 lookup 100
    ip rule add pref 101 iif lo from 203.0.113.2 to 203.0.113.1 lookup 101
    ip rule add pref 200 lookup local && ip rule del pref 0
    ip route add 203.0.113.2 dev roce0 table 100 && ip route add 203.0.113.1 dev roce1 table 101
}

roce_ipsec() {
    local key from to
    for from in 1 2; do
        to=$((3 - from)) key=0x$(head -c 20 /dev/urandom | od -An -tx1 | tr -d ' \n')
        ip xfrm state add src 203.0.113.$from dst 203.0.113.$to proto esp spi 0x20$from reqid 2 \
            mode transport aead 'rfc4106(gcm(aes))' "$key" 128 || return 1
        for direction in in out; do
            ip xfrm policy add src 203.0.113.$from dst 203.0.113.$to dir $direction \
                tmpl proto esp reqid 2 mode transport || return 1
        done
    done
}

# roce_sends KIND [OTHER]: perftest sends messages over RoCE, and only frames of these kinds and ARP
# leave
roce_sends() {
    local server code=0 other=${2-arp}
    "$programs/capture" roce0 "$line" >$scratch/frames &
    capture=$!
    wait_for 30 grep -q capturing $scratch/frames || return 1
    timeout 120 ib_send_bw -d rxe11 -x 1 -s 4096 -n 50 -F >$scratch/server.log 2>&1 &
    server=$!
    wait_for 60 sh -c 'ss -Hltn "sport = :18515" | grep -q .' || return 1
    timeout 60 ib_send_bw -d rxe10 -x 1 -s 4096 -n 50 -F 203.0.113.2 || code=1
    wait $server || code=1
    kill -TERM $capture && wait $capture
    cat $scratch/frames
    [ $code = 0 ] && grep -q "^$1 " $scratch/frames || return 1
    ! grep -vE "^($1|$other|arp|capturing|readable)( |\$)" $scratch/frames
}

check "a volume on dm-crypt: the disk has nothing readable, and doctor says so" dm_crypt

check "two namespaces and a cable" connect
check "iwarp without protection: data can be read on the wire" \
    sends iwarp $target_address tcp yes
check "IPsec in transport mode" ipsec
check "iwarp over IPsec: only ESP leaves" sends iwarp $target_address esp no
check "siw in both namespaces" with_siw cable
check "siw over IPsec: only ESP leaves" sends verbs $target_address esp no \
    "${tls[@]}" --data-security required --fabric-security ipsec
disconnect

check "two namespaces and a cable" connect
check "WireGuard" wireguard
check "iwarp over WireGuard: only UDP leaves" sends iwarp 198.51.100.12 udp no
disconnect

check "two namespaces and a cable" connect
check "MACsec" macsec
check "iwarp over MACsec: only MACsec leaves" sends iwarp 198.51.100.12 macsec no
check "siw on the interfaces of MACsec" with_siw macsec0
check "siw over MACsec: only MACsec leaves" sends verbs 198.51.100.12 macsec no \
    "${tls[@]}" --data-security required --fabric-security macsec
disconnect

check "two devices of Soft-RoCE" roce
check "Soft-RoCE without protection: UDP leaves, and perftest's TCP" roce_sends udp tcp
check "IPsec for Soft-RoCE" roce_ipsec
check "Soft-RoCE over IPsec: only ESP leaves" roce_sends esp

echo "$failures failures"
[ $failures = 0 ]
