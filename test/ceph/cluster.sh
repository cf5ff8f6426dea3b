#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A throw-away Ceph cluster for tests: a monitor, a manager, and OSDs, all under one directory, on
# one address, as ordinary processes (no systemd, no kernel modules).
#
#   cluster.sh up DIR               start it, create it first if DIR is new; wait until it is usable
#   cluster.sh down DIR             stop its processes; the data stays, and up resumes
#   cluster.sh env DIR              shell lines to eval: CEPH_CONF, CEPH_POOL
#   cluster.sh status DIR           processes, memory, health
#   cluster.sh stop DIR DAEMON [SIGNAL]   end mon.a, mgr.x, or osd.ID (default KILL: a crash)
#   cluster.sh start DIR DAEMON           start it again
#   cluster.sh signal DIR SIGNAL DAEMON...  send a signal, such as STOP or CONT
#
# Settings, read from the environment when DIR is created:
#   OSDS=1              number of OSDs; the pool's size is the same number, min_size 1
#   OSD_SIZE=10737418240    bytes per OSD (bluestore on a sparse file, survives kill -9).
#                       For speed put DIR on tmpfs (/dev/shm/x).
#   POOL=rbd            name of the pool
#   ADDRESS=127.0.0.1   IPv4 address of this machine on which all of them listen
#   WAIT=120            seconds that up waits before it gives up
set -euo pipefail
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
unset CEPH_ARGS CEPH_CONF CEPH_KEYRING

say() { printf '%s\n' "cluster: $*"; }
die() { printf '%s\n' "cluster: error: $*" >&2; exit 1; }
usage() { sed -n '2,20s/^# \{0,1\}//p' "$0"; exit 2; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN{printf "%.1f s", b-a}'; }

# ---- processes: a pid file holds "PID STARTTIME", so a recycled pid is never signalled ----
need_programs() {
	local p
	for p in ceph-mon ceph-mgr ceph-osd ceph rados rbd; do
		command -v $p >/dev/null || die "found no $p; run: apt-get install --no-install-recommends ceph-mon ceph-mgr ceph-osd ceph-common"
	done
}
starttime() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
alive() { # NAME
	local pid st
	read -r pid st 2>/dev/null <"$DIR/run/$1.pid" || return 1
	[ -n "$pid" ] && [ "$(starttime "$pid")" = "$st" ] && [ "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -c1)" != Z ]
}
start() { # NAME PROGRAM ARGS...
	local name=$1; shift
	alive "$name" && return 0
	rm -f "$DIR/run/$name.asok"
	setsid "$@" -f -c "$DIR/ceph.conf" </dev/null >>"$DIR/log/$name.out" 2>&1 9>&- &
	local pid=$!
	echo "$pid $(starttime "$pid")" >"$DIR/run/$name.pid"
}
stop() { # NAME [SIGNAL]
	local name=$1 sig=${2:-TERM} pid _ i
	if alive "$name"; then
		read -r pid _ <"$DIR/run/$name.pid"
		kill "-$sig" "$pid"
		for i in $(seq 200); do alive "$name" || break; sleep 0.1; done
		if alive "$name"; then say "$name does not stop, killing it"; kill -KILL "$pid"; sleep 0.5; fi
	fi
	rm -f "$DIR/run/$name.pid" "$DIR/run/$name.asok"
}
need() { # NAME: fail clearly when a daemon died
	alive "$1" && return 0
	tail -15 "$DIR/log/$1.out" "$DIR/log/$1.log" >&2 2>/dev/null || true
	die "$1 died; logs in $DIR/log"
}
ceph_() { ceph -c "$DIR/ceph.conf" --connect-timeout 10 "$@"; }

free_base() { # a mon port P with P..P+99 not listened on, outside the ephemeral range
	local p i
	for i in $(seq 50); do
		p=$((20000 + (RANDOM * 32768 + RANDOM) % 115 * 100))
		if ! awk -v a=$p 'function hex(s,i,n){n=0;for(i=1;i<=length(s);i++)n=n*16+index("0123456789ABCDEF",substr(s,i,1))-1;return n}
			FNR>1&&$4=="0A"{split($2,x,":");n=hex(x[2]);if(n>=a&&n<a+100){f=1}} END{exit !f}' /proc/net/tcp /proc/net/tcp6 2>/dev/null
		then echo $p; return; fi
	done
	die "found no free block of 100 ports"
}

create() {
	local osds=${OSDS:-1} size=${OSD_SIZE:-10737418240} address=${ADDRESS:-127.0.0.1} base fsid i
	[ "${#DIR}" -le 80 ] || die "DIR is too long for unix sockets (80 bytes at most): $DIR"
	[ "$osds" -ge 1 ] || die "OSDS must be at least 1"
	touch "$DIR/mkfs.started"
	mkdir -p "$DIR"/{mon,mgr,run,log}
	base=$(free_base); fsid=$(cat /proc/sys/kernel/random/uuid)
	cat >"$DIR/cluster.vars" <<-E
		osds=$osds
		pool=${POOL:-rbd}
	E
	cat >"$DIR/ceph.conf" <<-E
	[global]
	fsid = $fsid
	mon host = [v2:$address:$base]
	mon initial members = a
	public addr = $address
	cluster addr = $address
	public network = $address/32
	ms bind msgr1 = false
	ms bind port min = $((base + 1))
	ms bind port max = $((base + 99))
	auth cluster required = cephx
	auth service required = cephx
	auth client required = cephx
	keyring = $DIR/keyring
	run dir = $DIR/run
	admin socket = $DIR/run/\$name.asok
	log file = $DIR/log/\$name.log
	crash dir = $DIR/log
	pid file =
	osd pool default size = $osds
	osd pool default min size = 1
	osd pool default pg num = 8
	osd pool default pg autoscale mode = off
	osd crush chooseleaf type = 0
	debug ms = 0
	mon allow pool delete = true
	mon allow pool size one = true
	mon warn on pool no redundancy = false
	mon warn on osd down out interval zero = false
	auth allow insecure global id reclaim = false
	[client]
	# a client makes no socket or log of its own
	admin socket =
	log file =
	[mon]
	mon data = $DIR/mon
	mon cluster log file = $DIR/log/cluster.log
	mon osd down out interval = 0
	mon data avail warn = 2
	mon data avail crit = 1
	mon max pg per osd = 500
	# shorter than what the tests stop: nobody may depend on a fence of the default time
	mon osd blocklist default expire = 10
	# small commits: quicker map changes (OSD up, blocklist)
	paxos propose interval = 0.1
	paxos min wait = 0.02
	[mgr]
	mgr data = $DIR/mgr
	mgr initial modules =
	mgr stats period = 1
	mgr tick period = 1
	[osd]
	osd data = $DIR/osd\$id
	osd objectstore = bluestore
	osd crush initial weight = 1
	osd mclock skip benchmark = true
	osd op num shards = 2
	osd op num threads per shard = 1
	osd memory target = 939524096
	osd class update on start = false
	bluestore block size = $size
	bluestore block create = true
	bluestore block db create = false
	bluestore block wal create = false
	bluestore cache autotune = false
	bluestore cache size = 67108864
	osd scrub load threshold = 0.01
	osd max markdown count = 1000
	# exist for tests that kill an OSD: quick detection by peers
	osd heartbeat interval = 1
	osd heartbeat grace = 5
	E
	{ # the keys: made here, taken over by the mon below
	ceph-authtool --create-keyring "$DIR/keyring" --gen-key -n client.admin \
		--cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' --cap mds 'allow *'
	ceph-authtool "$DIR/keyring" --gen-key -n mon. --cap mon 'allow *'
	ceph-authtool "$DIR/keyring" --gen-key -n mgr.x \
		--cap mon 'allow profile mgr' --cap osd 'allow *' --cap mds 'allow *'
	for ((i = 0; i < osds; i++)); do
		ceph-authtool "$DIR/keyring" --gen-key -n osd.$i \
			--cap mon 'allow profile osd' --cap mgr 'allow profile osd' --cap osd 'allow *'
	done
	} >"$DIR/log/mkfs.out"
	monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:$address:$base]" "$DIR/monmap" >>"$DIR/log/mkfs.out"
	# the mon takes over every key of the keyring: no `ceph auth add` needed
	ceph-mon -c "$DIR/ceph.conf" --mkfs -i a --monmap "$DIR/monmap" --keyring "$DIR/keyring" >>"$DIR/log/mkfs.out" 2>&1 ||
		{ tail -20 "$DIR/log/mkfs.out" >&2; die "ceph-mon --mkfs failed"; }
	cp "$DIR/keyring" "$DIR/mon/keyring"
	touch "$DIR/created"
}

up() {
	local t0 i uuid usable; t0=$(now)
	# only an empty folder or one of ours: `up /etc/ceph` must harm nothing
	[ -e "$DIR/created" ] || [ -e "$DIR/mkfs.started" ] || [ -z "$(ls -A "$DIR" 2>/dev/null | grep -vx lock)" ] ||
		die "$DIR is not empty and holds no cluster of this script"
	need_programs
	mkdir -p "$DIR"; exec 9>"$DIR/lock"
	flock -w 300 9 || die "another '$0' works on $DIR"
	local how=resumed
	if [ ! -e "$DIR/created" ]; then
		[ ! -e "$DIR/mkfs.started" ] || { say "removing a half-made cluster in $DIR"; rm -rf "${DIR:?}"/{mon,mgr,run,log,osd*,ceph.conf,keyring,monmap}; }
		create; how=created
	fi
	. "$DIR/cluster.vars"
	start mon.a ceph-mon -i a
	for i in $(seq 100); do [ -S "$DIR/run/mon.a.asok" ] && break; sleep 0.05; done; need mon.a
	start mgr.x ceph-mgr -i x
	for ((i = 0; i < osds; i++)); do
		if [ ! -e "$DIR/osd$i/ready" ]; then
			rm -rf "$DIR/osd$i"; mkdir -p "$DIR/osd$i"; uuid=$(cat /proc/sys/kernel/random/uuid)
			ceph_ osd new "$uuid" "$i" >>"$DIR/log/mkfs.out" 2>&1 ||
				{ tail -20 "$DIR/log/mkfs.out" >&2; need mon.a; die "osd new $i failed"; }
			ceph-osd -c "$DIR/ceph.conf" -i "$i" --mkfs --osd-uuid "$uuid" >>"$DIR/log/mkfs.out" 2>&1 ||
				{ tail -20 "$DIR/log/mkfs.out" >&2; die "ceph-osd --mkfs $i failed"; }
			touch "$DIR/osd$i/ready"
		fi
		start "osd.$i" ceph-osd -i "$i"
	done
	if [ ! -e "$DIR/pool-ready" ]; then
		ceph_ osd pool create "$pool" 8 8 replicated --size "$osds" >>"$DIR/log/mkfs.out" 2>&1 &&
		ceph_ osd pool application enable "$pool" rbd >>"$DIR/log/mkfs.out" 2>&1 || {
			tail -20 "$DIR/log/mkfs.out" >&2; die "could not create the pool $pool"; }
		touch "$DIR/pool-ready"
	fi
	# After a crash the mon still shows the old "up, active+clean". So ask each OSD itself, then
	# list the pool's objects (an operation on every PG), and only then believe `ceph -s`.
	local end=$((SECONDS + ${WAIT:-120})) n io="" usable=""
	while [ $SECONDS -lt $end ]; do
		need mon.a; need mgr.x; for ((n = 0; n < osds; n++)); do need "osd.$n"; done
		if [ -z "$io" ]; then
			for ((n = 0; n < osds; n++)); do
				timeout 5 ceph --admin-daemon "$DIR/run/osd.$n.asok" status 2>/dev/null | grep -q '"state": "active"' || break
			done
			[ "$n" = "$osds" ] && timeout 5 rados -c "$DIR/ceph.conf" -p "$pool" ls >/dev/null 2>&1 && io=$(since "$t0")
		elif ceph_ -s -f json 2>/dev/null | python3 -c '
import json,sys
s=json.load(sys.stdin); p=s["pgmap"]; o=s["osdmap"]
st={x["state_name"]:x["count"] for x in p["pgs_by_state"]}
sys.exit(0 if p["num_pgs"]>=8 and st=={"active+clean":p["num_pgs"]} and o["num_up_osds"]=='"$osds"' else 1)'
		then usable=1; break; fi
		sleep 0.2
	done
	[ -n "$usable" ] || { ceph_ -s >&2 || true; die "not active+clean after ${WAIT:-120} s; logs in $DIR/log"; }
	say "$how: IO after $io, active+clean after $(since "$t0"), $(ceph_ health); pool $pool, conf $DIR/ceph.conf"
}

down() {
	[ -e "$DIR/created" ] || { say "no cluster in $DIR"; return 0; }
	exec 9>"$DIR/lock"; flock -w 300 9 || die "another '$0' works on $DIR"
	. "$DIR/cluster.vars"
	local t0 i; t0=$(now)
	for ((i = 0; i < osds; i++)); do stop "osd.$i"; done
	stop mgr.x KILL   # its python modules may take 10 s to end; it holds no data
	stop mon.a
	say "stopped after $(since "$t0")"
}

status() {
	. "$DIR/cluster.vars"
	local n pid _ i sum=0 kb
	for n in mon.a mgr.x $(for ((i = 0; i < osds; i++)); do echo osd.$i; done); do
		if alive "$n"; then
			read -r pid _ <"$DIR/run/$n.pid"; kb=$(awk '/^VmRSS/{print $2}' "/proc/$pid/status"); sum=$((sum + kb))
			say "$n pid $pid rss $((kb / 1024)) MiB"
		else say "$n down"; fi
	done
	say "total rss $((sum / 1024)) MiB; disk $(du -sh "$DIR" | cut -f1)"
	alive mon.a && ceph_ -s
}

[ $# -ge 2 ] || usage
CMD=$1; DIR=$(realpath -m "$2"); shift 2
case $CMD in
up) up ;;
down) down ;;
status) [ -e "$DIR/created" ] || die "no cluster in $DIR"; status ;;
env) [ -e "$DIR/created" ] || die "no cluster in $DIR; run: $0 up $DIR"
	. "$DIR/cluster.vars"; printf 'export CEPH_CONF=%q CEPH_POOL=%q\n' "$DIR/ceph.conf" "$pool" ;;
stop) [ $# -ge 1 ] || usage; stop "$1" "${2:-KILL}" ;;
start)
	[ $# -ge 1 ] || usage
	exec 9>/dev/null
	start "$1" "ceph-${1%%.*}" -i "${1#*.}"
	sleep 0.3
	need "$1"
	;;
signal)
	[ $# -ge 2 ] || usage
	signal=$1
	shift
	for name in "$@"; do
		alive "$name" || die "$name does not run"
		read -r pid _ <"$DIR/run/$name.pid"
		kill "-$signal" "$pid"
	done
	;;
*) usage ;;
esac
