// SPDX-License-Identifier: Apache-2.0

package explain

import "github.com/zc-relay/zc-relay/pkg/status"

// explanation says what a code means to whoever reads it in an error, a log, or a metric.
type explanation struct {
	code    status.Code
	meaning string
	cases   []Case
	// see names pages below docs/ that say more.
	see []string
}

// explanations holds all codes but SUCCESS, in the order of their numbers. Text between backquotes
// is what one types or reads.
var explanations = []explanation{
	{status.Unknown, "No other code fits.", []Case{
		{"a failure that the project does not expect, whose text says more",
			"read the log of the daemon that the text names, and report the text as a bug"},
		{"a peer of another release or another make sent a code that this one does not know",
			"read the peer's log"},
	}, nil},
	{status.NotPermitted, "The caller may not do this.", []Case{
		{"the operating system denies it, for instance opening a socket or a device",
			"run the program as the user that the file belongs to, or let this user in: " +
				"`access.users` of the channel, the group of the device"},
		{"the target's volume does not list this relay, or lists it for less",
			"`zc-relay-target access` shows who may do what; add the relay to `readers`, " +
				"`writers`, `owners`, or `preemptors`"},
		{"the volume is read-only, or was opened read-only", "open another name of the volume"},
		{"the holder was preempted: another client has taken the volume",
			"start a new client if the volume is to come back"},
		{"`volume add` names a file outside of the allowed directories",
			"`operations.volume_directories` lists them"},
	}, []string{"guides/security.md", "recipes/move-a-volume.md"}},
	{status.InUse, "Somebody else has what was asked for.", []Case{
		{"another client has the volume, and it or the volume is exclusive",
			"wait, end that client, or take the volume with `--preempt`; the error names the holder"},
		{"another target has the file, the device, or the image",
			"stop that target, or make both stand-bys of each other"},
		{"another program serves the channel on this device and representor",
			"stop it: the relay takes the channel when it is free"},
		{"another program listens on the address or socket",
			"`ss -ltnp` and `ss -lxp` show which"},
	}, []string{"recipes/move-a-volume.md", "guides/several-targets.md"}},
	{status.NotSupported, "This build, this device, or the peer cannot do it.", []Case{
		{"a library for the provider is missing", "`zc-relay providers` says which"},
		{"the device lacks the capability", "`zc-relay doctor` tests the devices of each channel"},
		{"the daemon has no state directory, no configuration file, or no admin listener, which " +
			"the command needs", "the error names the setting"},
		{"the peer is of an older release or a DOCA application", "update it, or do without"},
	}, []string{"guides/doctor.md", "guides/verbs.md"}},
	{status.Again, "Not now: the same request may succeed later.", []Case{
		{"relays open sessions faster than the target admits, or a client opens its volume too often",
			"wait; relays and clients that reconnect do so by themselves"},
		{"requests of a former session are still at the target's disk",
			"wait until the disk has finished them"},
		{"a queue of the Go client has no room", "poll, and submit again"},
	}, []string{"guides/relay.md#reconnecting-to-a-target"}},
	{status.InvalidValue, "An argument, a field, or a request cannot be right.", []Case{
		{"a request is outside of the volume or not a multiple of its blocks",
			"`initiator info` shows size and block size"},
		{"a value of the configuration or the command line",
			"the error names the key or the flag, and what is allowed"},
		{"a peer violated the protocol", "compare `version` on both sides, and report a bug"},
	}, []string{"reference/configuration.md"}},
	{status.NoMemory, "Memory is short, or a limit on memory is reached.", []Case{
		{"the client's cgroup allows less than its queues need",
			"lower `--queues`, `--queue-depth`, or `--buffer-size`, or raise the limit"},
		{"the session needs more ring or bounce memory than the channel or the relay has left",
			"raise `limits.ring_memory` or `limits.bounce_memory`; the error says how much is left"},
		{"locked memory is limited", "set `LimitMEMLOCK=infinity`, as the packaged units do"},
	}, []string{"guides/resources.md"}},
	{status.Initialization, "An object was used before its preparation had succeeded.", []Case{
		{"a step of a Comch or DOCA program is missing or failed", "look at the first error"},
	}, []string{"guides/comch.md"}},
	{status.TimeOut, "The other side did not answer in time.", []Case{
		{"the target is stopped, or the network to it is cut",
			"`zc-relay status` says when the target was last heard of; look at the network"},
		{"the volume's storage takes longer than the channel's `io_timeout`",
			"look at the disk; `zc_target_io_latency_seconds` tells whether it is slow"},
		{"no relay serves this function under this name, seen by a client that connects",
			"`systemctl status zc-relay` on the DPU; compare `--device`, `--representor`, and " +
				"`--command-channel-name`"},
		{"a firewall drops packets to the target's RDMA port",
			"`zc-relay doctor` names the address that does not answer"},
	}, []string{"guides/faults.md"}},
	{status.Shutdown, "The other side, or this program itself, is being stopped.", []Case{
		{"somebody stops or drains the relay or the target",
			"nothing: clients that reconnect continue when it is back"},
		{"the program has closed the volume or the queue", "do not use it any more"},
	}, []string{"guides/relay.md#taking-a-relay-out-of-service"}},
	{status.ConnectionReset, "A connection ended without a good-bye. Requests in flight may or may " +
		"not have been carried out; none will be later.", []Case{
		{"the target or the relay died, or its machine did",
			"`systemctl status` and the journal there; clients with `--reconnect` continue when " +
				"it is back"},
		{"the relay rejected the client, seen by a client that connects over DOCA, which carries " +
			"no reason", "the relay's log has the reason"},
		{"the network reset the connection", "look for a firewall, and for lost links"},
	}, []string{"guides/reopening.md", "guides/faults.md"}},
	{status.ConnectionAborted, "This side ended the connection.", []Case{
		{"the peer violated the protocol, or a message could not be sent",
			"read the log of this side first, then the peer's; compare `version` on both"},
		{"a session could not be released in time, so its client was cut off",
			"`zc-relay status` shows what it waits for"},
	}, []string{"guides/faults.md"}},
	{status.ConnectionInProgress, "The connection is still being made.", []Case{
		{"a program used a connection too early", "wait for the event that it is connected"},
	}, []string{"guides/comch.md"}},
	{status.NotConnected, "The relay does not reach the target, or there is no connection at all.",
		[]Case{
			{"the target is down, restarts, or does not listen at the configured address",
				"`zc-relay status` shows the reason and the next attempt; check `target` of the channel"},
			{"the network or a firewall keeps the relay from the target's control or RDMA port",
				"`zc-relay doctor` connects to both"},
			{"the RDMA providers of relay and target do not fit",
				"set `rdma.provider` to the same value on both sides, for instance to `auto`"},
			{"all targets of the channel are stand-bys",
				"wait for one to take over, or look at the storage they share"},
		}, []string{"guides/relay.md#reconnecting-to-a-target", "guides/several-targets.md"}},
	{status.NoLock, "A lock that is needed is not held.", []Case{
		{"the target lost its lock on a Ceph image to another client",
			"`ceph osd blocklist ls`, and the log of the target that has the image"},
	}, []string{"guides/ceph.md"}},
	{status.NotFound, "There is no such thing.", []Case{
		{"the target has no volume of this name",
			"`zc-relay-target volume list`; compare `volume` of the channel"},
		{"no relay offers the channel on this device",
			"`zc-relay status` on the DPU; compare device and name"},
		{"the device, representor, or RDMA address does not exist yet",
			"`zc-relay devices` lists them; the relay tries again by itself"},
		{"the file, image, or session does not exist", "the error names it"},
	}, []string{"recipes/bluefield.md"}},
	{status.IOFailed, "The target's storage failed the request.", []Case{
		{"the disk or the file system reports an error, whose name follows, such as `ENOSPC` or " +
			"`EIO`", "the target's log has offset and length; look at the disk"},
		{"an earlier flush failed, or the file was truncated, removed, or replaced",
			"mend the cause, then `target volume remove` and `volume add`"},
		{"the volume cannot be opened", "`target volume list` says why; the target tries again"},
		{"writes that were not flushed were lost when the target restarted (`ErrWritesLost`)",
			"repeat what was written since the last successful flush"},
	}, []string{"guides/target.md", "guides/reopening.md"}},
	{status.BadState, "The object is not in a state that allows this.", []Case{
		{"a command changes by hand what the configuration file defines",
			"change it in the file, and reload"},
		{"the relay still has sessions, or a change is in progress", "wait for it, or use `--force`"},
	}, []string{"guides/relay.md#changing-channels-by-command"}},
	{status.UnsupportedVersion, "The two sides have no version of the protocol in common.", []Case{
		{"one side is of a much older or newer release, or of another program",
			"compare `version` on both sides, and `protocol` or `target_protocol` of the channel"},
	}, []string{"recipes/upgrade.md"}},
	{status.OperatingSystem, "A system call failed, and no other code fits its error number.", []Case{
		{"the text names the call and the error number", "look it up in the manual page of the call"},
	}, nil},
	{status.Driver, "The device or its driver failed.", []Case{
		{"firmware or driver are starting, were reset, or do not fit each other",
			"`dmesg`, and `zc-relay devices`; the relay tries again by itself"},
	}, []string{"guides/verbs.md"}},
	{status.Unexpected, "A peer did what its role does not allow.", []Case{
		{"a message out of order, or with content that contradicts an earlier one",
			"compare `version` on both sides, and report a bug"},
	}, nil},
	{status.AlreadyExist, "There is one of that name already.", []Case{
		{"another server has the name of the channel on this device and representor",
			"stop it, or give the channel another name"},
		{"`volume add` or `channel add` names what is there",
			"remove it first, or choose another name"},
		{"the file exists, and is not to be overwritten", "remove it, or name another one"},
	}, []string{"guides/relay.md#channels-that-cannot-be-opened-yet"}},
	{status.Full, "A limit on a number is reached.", []Case{
		{"sessions, queues, or connections of a channel or a target",
			"raise the limit that the error names, or look for a client that does not close its sessions"},
		{"file descriptors are short", "raise `LimitNOFILE`"},
	}, []string{"guides/resources.md"}},
	{status.Empty, "There is nothing to return.", []Case{
		{"a DOCA program asked for an item of an empty queue", "poll later"},
	}, nil},
	{status.InProgress, "The change goes on, and had not ended when the answer was due.", []Case{
		{"a command took longer than its `--timeout`", "`status` shows the outcome; or repeat it"},
		{"the requests of a holder that was preempted have not ended",
			"repeat the command: it waits again"},
	}, []string{"guides/administration.md"}},
	{status.TooBig, "Something is larger than a limit allows.", []Case{
		{"the data of one IO, the queues, or their depth exceed a limit of the channel",
			"lower them, or raise `channels[].limits`; the error names the limit"},
		{"a name, a message, or a list is longer than the protocol allows", "shorten it"},
	}, []string{"reference/configuration.md"}},
	{status.Authentication, "The peer could not prove who it is, or is not trusted.", []Case{
		{"certificates, authorities, or names do not fit",
			"`zc-relay-target access CERTIFICATE` says what is wrong; read the other side's log first"},
		{"one side has TLS and the other does not", "set `tls` on both, or on neither"},
		{"`security.data` of both sides do not agree", "set the same value"},
	}, []string{"guides/security.md"}},
	{status.BadConfig, "Settings or devices do not fit each other.", []Case{
		{"a reload has failed in part", "`zc-relay status` lists what failed; the rest applies"},
		{"the Comch device and the RDMA device of a channel cannot work together",
			"`zc-relay doctor` says which; `isolation: staged` works with any"},
	}, []string{"guides/configuration.md"}},
	{status.Skipped, "Something was left out because an earlier step failed.", []Case{
		{"a task of a DOCA program was not carried out", "look at the first error"},
	}, nil},
}
