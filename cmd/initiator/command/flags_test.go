// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAWrongValueIsAnsweredWithWhatIsAllowed(t *testing.T) {
	const bench, verify = "bench --rw read ", "verify "
	for _, c := range []struct{ line, want string }{
		{bench + "--rate 10q",
			`--rate "10q": must be a whole number from 1 to 1000000000, ` +
				"for instance 500 or 10k"},
		{bench + "--rate 0", `--rate "0": must be a whole number from 1 to`},
		{bench + "--rate 2G", `--rate "2G": must be a whole number from 1 to`},
		{bench + "--queue-depth x",
			`--queue-depth "x": must be a whole number from 1 to 65536, ` + "for instance 32"},
		{bench + "--queue-depth 10000000000000000000000",
			"must be a whole number from 1 to 65536"},
		{bench + "--queues -1", `--queues "-1": must be a whole number from 0 to 1024`},
		{bench + "--rwmix 120",
			`--rwmix "120": must be a whole number from 0 to 100, for instance 70`},
		{bench + "--sessions 0",
			`--sessions "0": must be a whole number from 1 to 65536, for instance 4`},
		{bench + "--sweep queues=1,0",
			`--sweep queues: "0": must be a whole number from 1 to 1024, ` + "for instance 4"},
		{bench + "--runtime 1", `--runtime "1": a duration needs a unit, for instance 1s or 1ms`},
		{bench + "--runtime x",
			`--runtime "x": must be a duration with a unit, for instance 500ms,`},
		{bench + "--runtime -1s", "--runtime -1s and --warmup 1s must not be negative"},
		{bench + "--reconnect --reconnect-first-pause 1",
			`--reconnect-first-pause "1": a duration needs`},
		{bench + "--validate-writes=maybe", `--validate-writes "maybe": must be true or false`},
		{bench + "--trace t --trace-every 0",
			`--trace-every "0": must be a whole number of at least 1`},
		{verify + "--passes -1",
			`--passes "-1": must be a whole number of at least 0, ` + "for instance 3"},
		{verify + "--seed -1", `--seed "-1": must be a whole number of at least 0`},
		{verify + "--io-timeout 5", `--io-timeout "5": a duration needs a unit, for instance 5s`},
		{"put - --queues 0", `--queues "0": must be a whole number from 1 to 1024`},
		{"nbd --socket s --connections 2000",
			`--connections "2000": must be a whole number from 1 to 1024`},
		{"nbd --socket /run/" + strings.Repeat("s", 104),
			"can have 107 bytes at most, and this one has 109"},
		{"nbd --listen [fe80::1]:1 --plain-text", "write for instance fe80::1%eth0"},
		{"nbd --listen 127.0.0.1:0 --allow-user root", "are for clients of a Unix socket: give --socket PATH"},
		{"nbd --run true --allow-any-user", "are for clients of a Unix socket: give --socket PATH"},
		{"nbd --socket s --plain-text", "--plain-text is for --listen ADDRESS:PORT"},
		{"nbd --socket s --metrics-listen [fe80::1]:1",
			`--metrics-listen "[fe80::1]:1": is a link-local`},
		{"info --log-sampling x", `--log-sampling "x": must be a whole number of at least 0`},

		{verify + "--bs 4k",
			"unknown flag --bs: verify chooses the length of each request: --max-io"},
		{verify + "--rw read",
			`unknown flag --rw: verify writes and reads every block: "initiator bench"`},
		{verify + "--ramp-time 5",
			"unknown flag --ramp-time: verify writes and reads every block"},
		{verify + "--rwmixread 5",
			"unknown flag --rwmixread: verify writes and reads every block"},
		{bench + "--ioengine=aio",
			"unknown flag --ioengine: an option of fio that this command does not"},
		{bench + "--time_based", "unknown flag --time_based: an option of fio"},
		{bench + "--filename=x", "--command-channel-name"},
		{bench + "--ramp-time 5", `--ramp-time "5": a duration needs a unit, for instance 5s`},
	} {
		o := new(relay).call(context.Background(), "", c.line)
		if o.code != program.ExitUsage || !strings.Contains(o.stderr, c.want) {
			t.Errorf("%s: exit code %d, want %q: %s", c.line, o.code, c.want, o.stderr)
		}
	}
}

func TestAnEmptyInputIsAnErrorUnlessItIsAllowed(t *testing.T) {
	o := newRelay().call(context.Background(), "", "put -")
	if o.code != program.ExitFailure || !strings.Contains(o.stderr, "standard input was empty, so "+
		"nothing was written: has the command that made it failed? (--allow-empty accepts it)") {
		t.Errorf("exit code %d: %s", o.code, o.stderr)
	}
	newRelay().mustCall(t, "put - --allow-empty")
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o = newRelay().call(context.Background(), "", "put "+file)
	if o.code != program.ExitFailure || !strings.Contains(o.stderr, `empty" is empty, so nothing`) {
		t.Errorf("exit code %d: %s", o.code, o.stderr)
	}
	newRelay().mustCall(t, "put --allow-empty "+file)
}

func TestAnEmptyRangeIsNotCopied(t *testing.T) {
	r := newRelay()
	o := r.call(context.Background(), "", "get - --offset 4MiB")
	if o.code != program.ExitUsage || !strings.Contains(o.stderr, "--offset 4MiB is the end of volume") {
		t.Errorf("exit code %d: %s", o.code, o.stderr)
	}
}

func TestAnExportIsANameAndAChannel(t *testing.T) {
	r := newRelay()
	r.openError = status.NotFound
	for line, want := range map[string]string{
		"--export disk=":    `--export "disk=" names no channel after "="`,
		"--export disk=a=b": `the channel is "a=b": a name of an export cannot contain "="`,
	} {
		o := r.call(context.Background(), "", "nbd --socket "+t.TempDir()+"/s "+line)
		if o.code == program.ExitOK || !strings.Contains(o.stderr, want) {
			t.Errorf("%s: exit code %d, want %q: %s", line, o.code, want, o.stderr)
		}
	}
}

func TestNumbersMayEndInThousands(t *testing.T) {
	d := benchDocument(t, newRelay().mustCall(t, "bench --rw read --dry-run -o json --rate 10k "+
		"--run-limit-operation-count 2M --seed 3K --queues 1"))
	if p := d.Parameters; p.Rate != 10_000 || p.OperationLimit != 2_000_000 || p.Seed != 3000 {
		t.Errorf("parameters are %+v", p)
	}
}

func TestNamesOfFiosOptionsAreFlags(t *testing.T) {
	for _, line := range []string{
		"--readwrite=randrw --bs=8k --iodepth=16 --numjobs=2 --size=1M --ramp_time=2s " +
			"--rwmixread=30 --name=night --number_ios=5k --rate_iops=7 --randseed=9 --offset=4k",
		"--rw randrw --blocksize 8k --iodepth 16 --numjobs 2 --size 1m --ramp-time 2s " +
			"--rwmixread 30 --name night --number-ios 5000 --rate-iops 7 --randseed 9 --offset 4k",
	} {
		d := benchDocument(t, newRelay().mustCall(t, "bench --dry-run -o json "+line))
		p := d.Parameters
		if p.Pattern != "randrw" || p.BlockSize != 8192 || p.QueueDepth != 16 || p.Queues != 2 ||
			p.Length != 1<<20 || p.Warmup.Seconds() != 2 || p.ReadPercent != 30 ||
			d.Title != "night" || p.OperationLimit != 5000 || p.Rate != 7 || p.Seed != 9 ||
			p.Offset != 4096 {
			t.Errorf("%s: parameters are %+v", line, p)
		}
	}
	o := newRelay().mustCall(t, "verify --iodepth 2 --numjobs 1 --size 64k --randseed 4 --loops 2")
	if !strings.Contains(o.stdout, "seed") {
		t.Errorf("verify printed %q", o.stdout)
	}
}
