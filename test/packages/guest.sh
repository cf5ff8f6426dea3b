#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs as a service of the systemd that run.sh boots: installs the packages,
# uses, upgrades and removes them, and looks for what is left.
set -euo pipefail
share=/run/share
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
daemons=(zc-relay-target zc-relay)
programs=("${daemons[@]}" zc-relay-initiator dma-copy)
packages=("${daemons[@]}" zc-relay-initiator zc-relay-dma-copy
    libdoca-emulation libdoca-emulation-dev libzcclient0 libzcclient-dev)

step() { printf '=== %s\n' "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*"
    journalctl --no-pager --lines 40 --unit 'zc-relay*' || true
    exit 1
}
expect() { # DESCRIPTION COMMAND...
    local what=$1
    shift
    "$@" || fail "$what"
}
eventually() { # DESCRIPTION COMMAND...
    local what=$1 attempt
    shift
    for attempt in {1..300}; do
        "$@" && return
        sleep 0.1
    done
    fail "$what, after 30 s"
}
property() { systemctl show --value --property "$2" "$1"; }
is_property() { [ "$(property "$1" "$2")" = "$3" ]; }
has_restarted() { [ "$(property "$1" NRestarts)" -ge "$2" ]; }
main_pid() { property "$1" MainPID; }
process_has() { grep -Eq "$2" "/proc/$(main_pid "$1")/$3"; }
client() { runuser -u zc-relay-client -- zc-relay-initiator "$@" --emulated-dir /run/zc-relay/comch; }

# The most memory that a process may lock here, as in /proc/PID/limits: not
# every machine lets even root raise its limit.
most=$(bash -c 'ulimit -l unlimited 2>/dev/null; ulimit -Hl')
[ "$most" = unlimited ] || most=$((most * 1024))

# Everything that a package could leave behind. What lies elsewhere belongs to
# the machine, on whose root directory this one stands, and may change meanwhile.
inventory() {
    find /etc /usr /var /opt /srv -xdev \( -path /usr/local -o -path /var/log -o -path /var/cache -o -path /var/tmp \
        -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd \) -prune -o -print |
        grep -v -e '^/etc/.*-$' -e '^/etc/\.pwd\.lock$' | sort
    getent passwd
    getent group
}

# A daemon is ready, and runs with what the unit takes from it and leaves it.
check_daemons() {
    local daemon
    for daemon in "${daemons[@]}"; do
        eventually "$daemon is ready" is_property "$daemon" StatusText ready
        expect "$daemon is active" systemctl --quiet is-active "$daemon"
        expect "$daemon asks for locked memory" is_property "$daemon" LimitMEMLOCK infinity
        expect "$daemon may lock memory" process_has "$daemon" "^Max locked memory +$most +$most " limits
        expect "$daemon gains no privileges" process_has "$daemon" '^NoNewPrivs:\s+1' status
        expect "$daemon has no capabilities" process_has "$daemon" '^CapEff:\s+0+$' status
        expect "$daemon filters system calls" process_has "$daemon" '^Seccomp:\s+2' status
        expect "$daemon answers its operator" "$daemon" status >/tmp/status
        expect "only $daemon and root reach its admin socket" \
            [ "$(stat -c %U:%a "/run/$daemon/admin.sock")" = "$daemon:600" ]
        expect "$daemon has its own user" [ "$(ps -o user:20= -p "$(main_pid "$daemon")" | tr -d ' ')" = "$daemon" ]
    done
}

# Clients can read nothing of the daemons.
check_clients() {
    local secret
    for secret in /etc/zc-relay/zc-relay.yaml /etc/zc-relay/zc-relay-target.yaml \
        /etc/zc-relay/tls /etc/zc-relay/tls/relay.key /etc/zc-relay/target-tls/target.key; do
        expect "$secret exists" test -e "$secret"
        ! runuser -u zc-relay-client -- head -c 1 "$secret" >/dev/null 2>&1 || fail "a client can read $secret"
    done
    expect "clients are in no group of the daemons" [ "$(id -Gn zc-relay-client)" = zc-relay-client ]
}

move_data() {
    head -c 3000000 /dev/urandom >/tmp/original
    chmod 644 /tmp/original
    install -d -o zc-relay-client /tmp/zc
    client put /tmp/original
    client get --length 3000000 /tmp/zc/copy
    expect "what was written is read" cmp /tmp/original /tmp/zc/copy
    client verify --queues 2 --passes 1 --offset 8MiB --length 4MiB
}

secure() {
    local directory name
    cd /tmp
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=ca -keyout ca.key -out ca.pem
    for name in relay target; do
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -keyout "$name.key" -out "$name.csr"
        openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out "$name.pem" \
            -extfile <(printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=clientAuth,serverAuth\n')
        directory=/etc/zc-relay/tls
        [ "$name" = relay ] || directory=/etc/zc-relay/target-tls
        install -m 640 -g "$(stat -c %G "$directory")" "$name.pem" "$name.key" ca.pem "$directory"
        # As the comments in the configuration say.
        sed -i '/^#tls:/,/^#  ca:/s/^#//' "/etc/zc-relay/$([ "$name" = relay ] && echo zc-relay || echo zc-relay-target).yaml"
    done
    cd /
}

trap '[ $? -eq 0 ] || echo FAILED' EXIT

inventory >/tmp/before

step install
dpkg --install "$share"/1.0.0/*.deb
for daemon in "${daemons[@]}"; do
    expect "$daemon does not start by itself" [ "$(property "$daemon" ActiveState)" = inactive ]
    expect "the unit of $daemon is sound" systemd-analyze verify --man=no "/usr/lib/systemd/system/$daemon.service"
    expect "$daemon is confined" systemd-analyze security --threshold=20 "$daemon.service" >/tmp/security
    tail -1 /tmp/security
done
expect "the configuration of zc-relay is sound" zc-relay config check /etc/zc-relay/zc-relay.yaml
expect "the configuration of the target is sound" zc-relay-target config check /etc/zc-relay/zc-relay-target.yaml
for page in zc-relay zc-relay-run zc-relay-target zc-relay-initiator-bench dma-copy; do
    expect "$page has a manual page" test -s "/usr/share/man/man1/$page.1.gz"
done
for daemon in "${daemons[@]}"; do
    expect "the configuration of $daemon has a manual page" test -s "/usr/share/man/man5/$daemon.yaml.5.gz"
done
for package in "${daemons[@]}" zc-relay-initiator; do
    documents=/usr/share/doc/$package
    for page in guides/relay recipes/bluefield reference/configuration dev/glossary \
        dev/decisions/0008-rate-limits-have-their-own-token-buckets; do
        expect "$package has the page $page" test -s "$documents/$page.md"
    done
    expect "$package has the drop-in for DEVX" test -s "$documents/examples/devx.conf"
    expect "$package has a copyright" grep -q Apache-2.0 "$documents/copyright"
    expect "$package has the licenses of what it contains" \
        grep -q '^github.com/spf13/cobra v' "$documents/third-party-notices"
done
for file in alerts recording examples/scrape examples/alertmanager; do
    expect "Prometheus has $file" test -s "/usr/share/doc/zc-relay/prometheus/$file.yaml"
done
for example in relay relay-many-channels; do
    expect "the example $example is sound" zc-relay config check "/usr/share/doc/zc-relay/examples/$example.yaml"
done
expect "the example of the target is sound" \
    zc-relay-target config check /usr/share/doc/zc-relay-target/examples/target.yaml
for program in "${programs[@]}"; do
    expect "$program completes in bash" bash -c "source /usr/share/bash-completion/completions/$program && complete -p $program"
    expect "$program knows its version" grep -q " 1\.0\.0 " <("$program" version 2>/dev/null || "$program" --version)
done

step 'providers, with and without the libraries that they load'
provider() { grep -Eq "^$1 +$2 +$3" <<<"$(zc-relay providers)"; }
for library in libibverbs.so.1 librdmacm.so.1; do
    libraries+=("$(ldconfig -p | awk -v name="$library" '$1 == name { print $NF; exit }')")
done
expect "verbs is there and has no device" provider rdma verbs 'built in +no device'
expect "doca is absent with a reason" provider comch doca 'absent +.+'
expect "doca is absent with a reason" provider dma doca 'absent +.+'
for library in "${libraries[@]}"; do mv "$library" "$library.hidden"; done
for program in "${programs[@]}"; do
    expect "$program starts without the libraries" "$program" --help >/dev/null
done
expect "what verbs lacks is named" provider rdma verbs 'absent .*install libibverbs1 and librdmacm1'
for library in "${libraries[@]}"; do mv "$library.hidden" "$library"; done
expect "verbs is back" provider rdma verbs 'built in +no device'

step 'a program for DOCA'
cat >/tmp/devices.c <<'END'
#include <doca_dev.h>
#include <doca_mmap.h>

/* Succeeds if there is one device, of the role that this is compiled for. */
int main(void)
{
	struct doca_devinfo **list;
	uint32_t count;
	uint8_t is_host;

	if (doca_devinfo_create_list(&list, &count) != DOCA_SUCCESS || count != 1 ||
	    doca_mmap_cap_is_export_pci_supported(list[0], &is_host) != DOCA_SUCCESS)
		return 1;
#ifdef DOCA_ARCH_DPU
	return is_host;
#else
	return !is_host;
#endif
}
END
for role in dpu host; do
    eval "$(zc-libdoca env --role $role)"
    # shellcheck disable=SC2046
    gcc -Wall -Werror -o /tmp/devices_$role /tmp/devices.c $(pkg-config --cflags --libs doca-common)
done
unset LD_LIBRARY_PATH PKG_CONFIG_PATH ZC_DOCA_EMULATION
! /tmp/devices_dpu 2>/dev/null || fail "the linker finds the emulation by itself"
! pkg-config --exists doca-common || fail "pkg-config finds the emulation by itself"
expect "the half for the DPU finds its device" zc-libdoca run --role dpu -- /tmp/devices_dpu
expect "the half for the host finds its device" zc-libdoca run --role host -- /tmp/devices_host
mkdir -p /tmp/checkout/samples/devices
cp /tmp/devices.c /tmp/checkout/samples/devices/devices_main.c
echo "dependency('doca-common')" >/tmp/checkout/samples/devices/meson.build
expect "samples are built" zc-libdoca try --no-meson /tmp/checkout
dpkg --remove libdoca-emulation-dev
expect "programs run without the headers" zc-libdoca run --role dpu -- /tmp/devices_dpu
! zc-libdoca try /tmp/checkout 2>/tmp/try || fail "samples are built without headers"
expect "try names the missing package" grep -q libdoca-emulation-dev /tmp/try
dpkg --install "$share"/1.0.0/libdoca-emulation-dev_*.deb
expect "doca is still absent for our programs" provider comch doca 'absent +.+'

step start
systemctl enable --now "${daemons[@]}"
check_daemons
move_data

step 'a program with the C library'
# shellcheck disable=SC2046
gcc -Wall -Werror -o /tmp/hello /usr/share/doc/libzcclient-dev/examples/hello.c \
    $(pkg-config --cflags --libs zcclient)
dpkg --remove libzcclient-dev
expect "the program writes and reads" runuser -u zc-relay-client -- \
    /tmp/hello directory=/run/zc-relay/comch,control_timeout=1m
dpkg --install "$share"/1.0.0/libzcclient-dev_*.deb

step 'reload, without procps'
mv /bin/kill /bin/kill.hidden
systemctl reload "${daemons[@]}"
mv /bin/kill.hidden /bin/kill
check_daemons
expect "the reload is logged" grep -q reloaded <(journalctl --no-pager --unit zc-relay)

step 'restart with TLS and pinned workers'
secure
for daemon in "${daemons[@]}"; do
    mkdir -p "/etc/systemd/system/$daemon.service.d"
done
printf '[Service]\nEnvironment=ZC_RELAY__WORKERS__CPUS=0 ZC_RELAY__WORKERS__POLL=event\nWatchdogSec=2\n' >/etc/systemd/system/zc-relay.service.d/test.conf
systemctl daemon-reload
systemctl restart "${daemons[@]}"
check_daemons
check_clients
expect "a worker is pinned" grep -q '^Cpus_allowed_list:\s*0$' <(cat "/proc/$(main_pid zc-relay)"/task/*/status)
move_data
sleep 5 # a watchdog that is not fed would strike
expect "the watchdog is fed" is_property zc-relay NRestarts 0

step 'a daemon that hangs is restarted'
kill -STOP "$(main_pid zc-relay)"
eventually "the watchdog restarts it" is_property zc-relay NRestarts 1
check_daemons
client info

step 'a daemon starts when what it lacks is there'
mv /etc/zc-relay/tls/relay.pem /etc/zc-relay/tls/relay.pem.late
systemctl restart --no-block zc-relay
eventually "systemd goes on after six failures" has_restarted zc-relay 6
mv /etc/zc-relay/tls/relay.pem.late /etc/zc-relay/tls/relay.pem
check_daemons

step 'a bad configuration'
cp -p /etc/zc-relay/zc-relay.yaml /tmp/good.yaml
echo 'colour: red' >>/etc/zc-relay/zc-relay.yaml
! systemctl restart zc-relay || fail "a relay starts with an unknown key"
expect "the exit code says that the configuration is bad" is_property zc-relay ExecMainStatus 2
sleep 3 # a restart would follow after one
expect "systemd does not repeat it" is_property zc-relay NRestarts 0
expect "the unit has failed" is_property zc-relay ActiveState failed
cp -p /tmp/good.yaml /etc/zc-relay/zc-relay.yaml
systemctl restart zc-relay
check_daemons

step 'boot without a representor, a target, and one of two volumes'
systemctl stop "${daemons[@]}"
mkdir -p /etc/systemd/system/zc-relay.service.d /etc/systemd/system/zc-relay-target.service.d
cat >/etc/systemd/system/zc-relay.service.d/late.conf <<'UNIT'
[Service]
ExecStartPre=/bin/sh -c 'umask 022 && mkdir -p /run/zc-relay/comch && echo "dpu 03:00.0" >/run/zc-relay/comch/devices'
UNIT
cat >/etc/systemd/system/zc-relay-target.service.d/late.conf <<'UNIT'
[Service]
Environment=ZC_TARGET__VOLUMES__1__NAME=late ZC_TARGET__VOLUMES__1__BACKEND=file:/var/lib/zc-relay-target/late.img
UNIT
systemctl daemon-reload
status_has() { property "$1" StatusText | grep -q "$2"; }
systemctl start zc-relay # returns: the relay has tried
eventually "the relay says which representor it lacks" status_has zc-relay 'representor'
printf 'dpu 03:00.0 representors=b1:00.0\nhost b1:00.0\n' >/run/zc-relay/comch/devices
eventually "the relay says that its target is down" status_has zc-relay 'cannot be reached'
systemctl start zc-relay-target
eventually "the target serves the other volume" status_has zc-relay-target 'serving 1 of 2 volumes'
eventually "the relay is ready" is_property zc-relay StatusText ready
move_data
runuser -u zc-relay-target -- truncate --size 8M /var/lib/zc-relay-target/late.img
eventually "the target serves both volumes" is_property zc-relay-target StatusText ready
for daemon in "${daemons[@]}"; do
    expect "$daemon was never restarted" is_property "$daemon" NRestarts 0
done
rm /etc/systemd/system/zc-relay.service.d/late.conf \
    /etc/systemd/system/zc-relay-target.service.d/late.conf /var/lib/zc-relay-target/late.img
systemctl daemon-reload
systemctl restart "${daemons[@]}"
check_daemons

step upgrade
former=$(main_pid zc-relay)
dpkg --force-confold --install "$share"/1.0.1/*.deb
expect "the upgrade does not restart the daemon" [ "$(main_pid zc-relay)" = "$former" ]
expect "the upgrade keeps the configuration" grep -q '^tls:' /etc/zc-relay/zc-relay.yaml
systemctl restart "${daemons[@]}"
check_daemons
expect "the new version runs" grep -q '^zc-relay 1\.0\.1' <("/proc/$(main_pid zc-relay)/exe" version)
client get --length 3000000 /tmp/zc/copy
expect "the volume keeps its content" cmp /tmp/original /tmp/zc/copy

step "NBD gateway"
cat >/etc/zc-relay/nbd/test.conf <<'CONF'
OPTIONS=--emulated-dir /run/zc-relay/comch --metrics-listen 127.0.0.1:9473
CONF
systemctl start zc-relay-nbd@test # returns when the gateway is ready
expect "the gateway listens" test -S /run/zc-relay-nbd/test/socket
expect "the gateway is confined" systemd-analyze security --threshold=20 zc-relay-nbd@test.service >/tmp/security
tail -1 /tmp/security
expect "the gateway runs as the user of clients" \
    [ "$(stat -c %U /run/zc-relay-nbd/test/socket)" = zc-relay-client ]
if command -v nbdinfo >/dev/null; then
    expect "a client sees the export" nbdinfo "nbd+unix:///?socket=/run/zc-relay-nbd/test/socket"
fi
expect "the service manager keeps the volume's file" \
    is_property zc-relay-target NFileDescriptorStore 1
if command -v nbdsh >/dev/null; then
    # A flush fails if the target cannot prove that nothing was lost.
    expect "a target that is killed loses no writes" env PATH="/usr/bin:$PATH" nbdsh \
        -u "nbd+unix:///?socket=/run/zc-relay-nbd/test/socket" -c '
import subprocess
h.pwrite(b"x" * 4096, 0)
subprocess.run(["systemctl", "kill", "--kill-who=main", "--signal=KILL", "zc-relay-target"],
               check=True)
h.flush()
assert h.pread(4096, 0) == b"x" * 4096'
    expect "the target was restarted" is_property zc-relay-target NRestarts 1
fi
if command -v fio >/dev/null; then
    # fio reads back what it has written, and ends at the first error.
    (until [ -e /tmp/killed ]; do
        fio --name=verify --ioengine=nbd --uri="nbd+unix:///?socket=/run/zc-relay-nbd/test/socket" \
            --rw=randrw --bs=4k --size=2m --iodepth=16 --fsync=50 --verify=crc32c --verify_fatal=1 \
            --do_verify=1 --verify_backlog=64 --randrepeat=0 --minimal >>/tmp/fio 2>&1 || exit 1
    done) &
    client=$!
    kills=0
    while [ "$kills" -lt "$(<"$share/kills")" ]; do
        daemon=${daemons[kills % 2]}
        sleep 1 # IO between two kills
        kill -0 "$client" || break
        restarts=$(property "$daemon" NRestarts)
        systemctl kill --kill-who=main --signal=KILL "$daemon"
        kills=$((kills + 1))
        eventually "$daemon is restarted" is_property "$daemon" NRestarts $((restarts + 1))
        eventually "$daemon is ready" is_property "$daemon" StatusText ready
    done
    touch /tmp/killed
    wait "$client" || { tail /tmp/fio; fail "a client notices kill $kills of relay or target"; }
    expect "the gateway was not restarted" is_property zc-relay-nbd@test NRestarts 0
    echo "a client of NBD noticed none of $kills kills of relay and target"
fi
systemctl stop zc-relay-nbd@test
expect "the gateway ends well" is_property zc-relay-nbd@test Result success
systemctl start zc-relay-nbd@test.socket
if command -v nbdinfo >/dev/null; then
    expect "the first client starts the gateway" \
        nbdinfo "nbd+unix:///?socket=/run/zc-relay-nbd-test.socket"
    echo OPTIONS=--colour=red >/etc/zc-relay/nbd/bad.conf
    systemctl start zc-relay-nbd@bad.socket
    timeout 30 nbdinfo "nbd+unix:///?socket=/run/zc-relay-nbd-bad.socket" >/dev/null 2>&1 &
    eventually "a gateway that cannot start is not started for ever" \
        is_property zc-relay-nbd@bad.socket Result trigger-limit-hit
    rm /etc/zc-relay/nbd/bad.conf
fi
systemctl stop zc-relay-nbd@test.socket zc-relay-nbd@test
systemctl reset-failed
rm /etc/zc-relay/nbd/test.conf

step remove
rm -r /etc/systemd/system/zc-relay*.service.d
dpkg --remove "${daemons[@]}" zc-relay-dma-copy libdoca-emulation-dev libdoca-emulation \
    libzcclient-dev libzcclient0
for daemon in "${daemons[@]}"; do
    expect "$daemon is stopped" [ "$(property "$daemon" ActiveState)" != active ]
    expect "no process of $daemon is left" [ -z "$(pgrep -u "$daemon")" ]
done
expect "the configuration is kept" test -s /etc/zc-relay/zc-relay.yaml
expect "the volume is kept" test -s /var/lib/zc-relay-target/example.img

step purge
dpkg --purge zc-relay
! getent passwd zc-relay || fail "the user of the relay is left"
expect "the gateway keeps its user" getent passwd zc-relay-client
for key in /etc/zc-relay/tls /etc/zc-relay/tls/relay.key; do
    expect "only root can read $key, which outlives its group" \
        grep -Eq '^0:0:[67]00$' <(stat -c %u:%g:%a "$key")
done
rm -r /etc/zc-relay/tls
dpkg --purge zc-relay-target
expect "the volume outlives a purge" test -s /var/lib/zc-relay-target/example.img
expect "the volume keeps its owner" [ "$(stat -c %U /var/lib/zc-relay-target/example.img)" = zc-relay-target ]

step 'the static packages'
dpkg --install "$share"/1.0.1/zc-relay-target_*.deb
dpkg --install "$share"/static/*.deb
is_installed() { [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$1")" = installed ]; }
for package in zc-relay-target zc-relay-initiator; do
    expect "$package-static is installed" is_installed "$package-static"
    ! is_installed "$package" || fail "$package and $package-static are installed together"
    ! ldd "/usr/bin/$package" 2>/dev/null || fail "$package links libraries"
    expect "$package runs" "$package" --version
    dpkg --purge "$package"
done
expect "what replaces a package keeps its user" getent passwd zc-relay-target
expect "what replaces a package keeps its user" getent passwd zc-relay-client
sed -i '/^tls:/,/^  ca:/d' /etc/zc-relay/zc-relay-target.yaml
systemctl start zc-relay-target
eventually "the static target serves the volume" is_property zc-relay-target StatusText ready
dpkg --purge zc-relay-target-static zc-relay-initiator-static
rm -rf /etc/zc-relay/target-tls /var/lib/zc-relay-target
userdel zc-relay-target
rmdir --ignore-fail-on-non-empty /etc/zc-relay
inventory >/tmp/after
diff /tmp/before /tmp/after || fail "the packages leave something behind"

echo passed >"$share/result"
