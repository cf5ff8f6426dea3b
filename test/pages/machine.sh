# SPDX-License-Identifier: Apache-2.0
#
# Makes a machine of its own for the commands of a page: name spaces over a copy of this machine,
# with what the packages install. $checkout is the source tree; its bin/ has the programs.
# $outputs is a folder for what commands print.
set -eu -o pipefail -m

mount -t tmpfs tmpfs /mnt
for directory in etc usr var srv; do
    mkdir -p "/mnt/$directory/upper" "/mnt/$directory/work"
    mount -t overlay overlay \
        -o "lowerdir=/$directory,upperdir=/mnt/$directory/upper,workdir=/mnt/$directory/work" "/$directory"
done
mkdir /mnt/checkout && mount --rbind "$checkout" /mnt/checkout # which may be below /tmp
mkdir /mnt/outputs && mount --bind "$outputs" /mnt/outputs
checkout=/mnt/checkout
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
ip link set lo up
for address in 10.0.0.2 10.0.0.5 10.0.0.6 10.0.0.7; do
    ip address add "$address/32" dev lo
done

for program in zc-relay target initiator dma-copy; do
    install -m 755 "$checkout/bin/$program" "/usr/bin/$program"
done
ln -s target /usr/bin/zc-relay-target
ln -s initiator /usr/bin/zc-relay-initiator
id=900 # of the system
for user in zc-relay zc-relay-target zc-relay-client zc-relay-nbd postgres; do
    getent passwd "$user" >/dev/null && continue
    until ! getent passwd $((++id)) >/dev/null; do :; done
    echo "$user:x:$id:" >>/etc/group
    echo "$user:x:$id:$id::/:/usr/sbin/nologin" >>/etc/passwd
done
rm -rf /etc/zc-relay /var/lib/zc-relay /var/lib/zc-relay-target
install -d /etc/zc-relay /etc/zc-relay/nbd
install -d -m 750 -g zc-relay /etc/zc-relay/tls
install -d -m 750 -g zc-relay-target /etc/zc-relay/target-tls
install -m 640 -g zc-relay "$checkout/deploy/config/zc-relay.yaml" /etc/zc-relay/
install -m 640 -g zc-relay-target "$checkout/deploy/config/zc-relay-target.yaml" /etc/zc-relay/
for package in zc-relay zc-relay-target zc-relay-initiator; do
    rm -rf "/usr/share/doc/$package"
    install -d "/usr/share/doc/$package/examples"
    cp "$checkout"/deploy/examples/*.yaml "$checkout"/deploy/config/nbd-example.conf \
        "$checkout"/deploy/systemd/devx.conf "/usr/share/doc/$package/examples"
    cp -r "$checkout/deploy/prometheus" "/usr/share/doc/$package/prometheus"
done

# systemctl VERB [--now] UNIT: does what systemd would with the unit's ExecStart=, User=, and
# directories. The units themselves run under a real systemd in test/packages.
systemctl() {
    local verb=$1 unit=${!#} file user process
    unit=${unit%.service}
    file=$checkout/deploy/systemd/$unit.service
    setting() { sed -n "s/^$1=//p" "$file" | head -1; }
    case $verb in
    daemon-reload) ;;
    enable | start | restart)
        user=$(setting User)
        for directory in "/run/$(setting RuntimeDirectory)" "/var/lib/$(setting StateDirectory)"; do
            install -d -o "$user" -g "$user" -m 755 "$directory"
        done
        if [ -e "/run/$unit.pid" ]; then
            kill "$(cat "/run/$unit.pid")"
            until ! kill -0 "$(cat "/run/$unit.pid")" 2>/dev/null; do sleep 0.05; done
        fi
        STATE_DIRECTORY=/var/lib/$(setting StateDirectory) setpriv --reuid "$user" --regid "$user" \
            --init-groups $(setting ExecStart) 2>>"/run/$unit.log" &
        process=$!
        echo $process >"/run/$unit.pid"
        until [ -S "/run/$(setting RuntimeDirectory)/admin.sock" ]; do
            kill -0 $process 2>/dev/null || { cat "/run/$unit.log" >&2; return 1; }
            sleep 0.05
        done
        ;;
    reload) "/usr/bin/$unit" reload ;;
    is-active) kill -0 "$(cat "/run/$unit.pid")" && echo active ;;
    status) "/usr/bin/$unit" status ;;
    *) echo "systemctl: no $verb here" >&2; return 1 ;;
    esac
}
journalctl() { # -u UNIT …
    cat "/run/$2.log"
}
sudo() { # -u USER COMMAND…
    local user=$2
    shift 2
    setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}

# until_ready URL: wait until a daemon can serve
until_ready() { until curl -sf "http://$1/readyz" >/dev/null; do sleep 0.05; done; }

mkdir /tmp/page && cd /tmp/page
ln -s "$checkout"/{bin,deploy,libdoca,README.md} .
unset TMPDIR
