// SPDX-License-Identifier: Apache-2.0

//go:build ceph

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// These tests need a Ceph cluster of test/ceph/cluster.sh with two OSDs, and a target with librbd:
// make test-ceph. They are not parallel: they stop parts of their one cluster.

// cephCluster runs a command of cluster.sh.
func cephCluster(t *testing.T, command string, args ...string) {
	t.Helper()
	directory := os.Getenv("ZC_RELAY_CEPH_CLUSTER")
	if directory == "" {
		t.Fatal("ZC_RELAY_CEPH_CLUSTER names no cluster: run make test-ceph")
	}
	all := append([]string{command, directory}, args...)
	c := exec.Command("../ceph/cluster.sh", all...)
	c.Env = append(os.Environ(), fmt.Sprint("WAIT=", int(testkit.Patience.Seconds())))
	if output, err := c.CombinedOutput(); err != nil {
		t.Fatalf("cluster.sh %s: %v\n%s", strings.Join(all, " "), err, output)
	}
}

// imagePath returns the pool and the name of a test's image.
func imagePath(t testing.TB) string {
	return os.Getenv("CEPH_POOL") + "/" + strings.ToLower(t.Name())
}

// newImage returns the volume of a new image.
func newImage(t testing.TB, size string) string {
	return "disk=" + newImageAt(t, imagePath(t), size)
}

// newImageAt returns the backend of a new image.
func newImageAt(t testing.TB, path, size string) string {
	t.Cleanup(func() { _ = exec.Command("rbd", "rm", "--no-progress", path).Run() })
	return fmt.Sprintf("rbd:%s,conf=%s,create=%s", path, os.Getenv("CEPH_CONF"), size)
}

func TestCephVolumesServeTheChain(t *testing.T) {
	testkit.RequireTools(t, "nbdcopy", "nbdinfo", "qemu-io", "fio")
	c := startChain(t, newImage(t, "64MiB"))
	c.mustRun("verify", "--queues", "4", "--queue-depth", "32", "--length", "8MiB")
	content := someContent(5<<20 + 4711)
	writeFile(t, c.dir+"/data", content)
	c.mustRun("put", c.dir+"/data")
	c.target.Terminate()
	c.startTarget() // the content outlives the target
	c.mustRun("get", "--length", fmt.Sprint(len(content)), c.dir+"/copy")
	if string(readFile(t, c.dir+"/copy")) != string(content) {
		t.Error("what get has read differs from what put has written")
	}
	c.mustServe(`nbdinfo --map "$uri" | tee /dev/stderr | grep -q hole`)
	c.mustServe(fioVerify("--bsrange=512-64k", "--blockalign=512", "--size=2m"))
	c.mustServe(`nbdcopy data "$uri"; nbdcopy "$uri" back; cmp -n 5242880 data back
		qemu-io -f raw -c "write -P 0x11 0 1M" -c "write -z -u 4097 131072" -c "discard 8M 1M" \
		  -c "read -P 0 4097 131072" -c "read -P 0x11 0 4097" -c flush "$uri" |
			tee /dev/stderr | grep -qiE "fail|error" && exit 1
		:`)
}

// readEncrypted copies the first bytes of an encrypted image to stdout by the bindings of Ceph.
const readEncrypted = `
import os, sys, rados, rbd
pool, image = sys.argv[1].split("/")
with rados.Rados(conffile=os.environ["CEPH_CONF"]) as cluster:
    with cluster.open_ioctx(pool) as context, rbd.Image(context, image, read_only=True) as i:
        i.encryption_load(rbd.RBD_ENCRYPTION_FORMAT_LUKS2, open(sys.argv[2]).read())
        sys.stdout.buffer.write(i.read(0, int(sys.argv[3])))
`

// Every program that has the passphrase reads what clients have written, and nobody else.
func TestCephEncryptedVolumesServeTheChain(t *testing.T) {
	path, dir := imagePath(t), t.TempDir()
	t.Cleanup(func() { _ = exec.Command("rbd", "rm", "--no-progress", path).Run() })
	run := func(name string, args ...string) []byte {
		t.Helper()
		var output, messages bytes.Buffer
		c := exec.Command(name, args...)
		c.Stdout, c.Stderr = &output, &messages
		if err := c.Run(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, args[0], err, &messages)
		}
		return output.Bytes()
	}
	const passphrase = "open sesame"
	file := dir + "/passphrase"
	writeFile(t, file, []byte(passphrase))
	run("rbd", "create", "--size", "64M", path)
	run("rbd", "encryption", "format", path, "luks2", file)
	c := startChain(t, fmt.Sprintf("disk=rbd:%s,conf=%s,passphrase-file=%s", path,
		os.Getenv("CEPH_CONF"), file))
	plain := []byte("everybody can read this line, unless it is encrypted\n")
	content := bytes.Repeat(plain, 5<<20/len(plain))
	writeFile(t, dir+"/data", content)
	c.mustRun("put", dir+"/data")
	c.mustRun("verify", "--offset", "8MiB", "--length", "8MiB")
	c.target.Terminate()
	c.startTarget()
	c.mustRun("get", "--length", fmt.Sprint(len(content)), dir+"/copy")
	if !bytes.Equal(readFile(t, dir+"/copy"), content) {
		t.Error("what get has read differs from what put has written")
	}
	c.target.Terminate()
	if raw := run("rbd", "export", "--no-progress", path, "-"); bytes.Contains(raw, plain[:16]) {
		t.Error("the cluster has what clients have written in plain text")
	}
	// The system's Python is the one that has the bindings.
	got := run("/usr/bin/python3", "-c", readEncrypted, path, file, fmt.Sprint(len(content)))
	if !bytes.Equal(got, content) {
		t.Errorf("Ceph's own bindings read something else: %.60q", got)
	}
}

// The next target fences a killed one and takes over, and what the cluster has acknowledged is
// there, flushed or not.
func TestCephVolumesMoveToTheNextTarget(t *testing.T) {
	checkFences := recordFences(t)
	c := startObservedChain(t, newImage(t, "64MiB")+",takeover")
	run := c.startIO(reconnectingVerify("--length", "8MiB")...)
	const rounds = 2
	for round := range rounds {
		c.restartTarget(round + 1) // by force first
		c.awaitIO()
	}
	interruptVerify(t, run)
	r := verifyReport(t, run).Result
	if r.LostBlocks > 0 || r.Reconnections.Count != rounds || r.Reconnections.LostWrites > 0 {
		t.Errorf("the result is %+v, reconnections %+v", r, r.Reconnections)
	}
	checkFences()
	t.Logf("%d blocks checked, the longest outage %v", r.BlocksChecked,
		time.Duration(r.Reconnections.LongestOutageNs).Round(time.Millisecond))
}

// While Ceph fails, IO waits, and every byte is right afterwards.
func TestCephSurvivesTheLossOfItsDaemons(t *testing.T) {
	c := startObservedChain(t, newImage(t, "64MiB"))
	run := c.startIO("verify", "--queues", "2", "--queue-depth", "16", "--length", "8MiB",
		"--runtime", patience, "--output", "json")
	for _, fault := range []struct {
		name             string
		begin, hold, end func()
	}{
		{"an OSD is killed and returns", func() { cephCluster(t, "stop", "osd.1") }, c.awaitIO,
			func() { cephCluster(t, "start", "osd.1") }},
		{"both OSDs stand still for 5 s",
			func() { cephCluster(t, "signal", "STOP", "osd.0", "osd.1") },
			func() {
				time.Sleep(time.Second) // what the OSDs have completed arrives
				before := c.ioTotal()
				time.Sleep(4 * time.Second) // the fault itself
				if during := c.ioTotal() - before; during > 0 {
					t.Errorf("%v IOs have completed without any OSD", during)
				}
			}, func() { cephCluster(t, "signal", "CONT", "osd.0", "osd.1") }},
		{"the monitor is stopped", func() { cephCluster(t, "stop", "mon.a", "TERM") }, c.awaitIO,
			func() { cephCluster(t, "start", "mon.a") }},
	} {
		start, before := time.Now(), c.ioTotal()
		fault.begin()
		fault.hold()
		during := c.ioTotal() - before
		fault.end()
		c.awaitIO()
		t.Logf("%s: %v IOs until the end of the fault, IO again after %v", fault.name, during,
			time.Since(start).Round(10*time.Millisecond))
		// OSDs that recover need the monitor, which is next.
		cephCluster(t, "up")
	}
	interruptVerify(t, run)
}

// While no OSD answers for longer than the relay waits for an IO, the session ends with TIME_OUT. A
// later session, of any client, begins when nothing of the former one can take effect any more.
func TestCephIOThatTimesOutTakesNoEffectLater(t *testing.T) {
	c := startObservedChain(t, newImage(t, "64MiB"), "--io-timeout", "2s")
	const writes, length = 64, 4096
	v, err := client.Open(testkit.Context(t), c.clientConfig(writes))
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	for i := range v.Memory() {
		v.Memory()[i] = 0x0d
	}
	cephCluster(t, "signal", "STOP", "osd.0", "osd.1")
	resume := sync.OnceFunc(func() { cephCluster(t, "signal", "CONT", "osd.0", "osd.1") })
	defer resume()
	queue := v.Queue(0)
	for i := range uint64(writes) {
		if err := queue.Submit(&client.Request{Type: client.Write, Length: length,
			Offset: i * length, Memory: i * length, Tag: i}); err != nil {
			t.Fatal(err)
		}
	}
	queue.Ring()
	testkit.Eventually(t, "the session ends", func() bool { return v.Err() != nil })
	c.relay.AwaitLog("target did not respond to an IO within 2s [TIME_OUT]")
	// The relay gives the client no reason while the target still has the IO: to the client, a
	// reason means that its memory is released.
	if err := v.Err(); !errors.Is(err, status.TimeOut) && !errors.Is(err, status.Shutdown) &&
		!errors.Is(err, status.ConnectionReset) {
		t.Errorf("the session ended with %v", err)
	}
	results := make([]client.Result, writes)
	for _, r := range results[:queue.Poll(results)] {
		if r.Code == status.Success {
			t.Errorf("write %d was acknowledged while no OSD was there", r.Tag)
		}
	}
	v.Abort()
	resume()
	config := c.clientConfig(writes)
	config.SyncDepth = 0
	// The OSDs may need longer than the relay waits for an IO.
	config.Reconnect = &retry.Policy{Total: retry.Within(testkit.Patience)}
	next, err := client.Open(testkit.Context(t), config)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Abort()
	want := bytes.Repeat([]byte{0xf1}, writes*length)
	if _, err := next.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	const pause = 250 * time.Millisecond
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(pause) {
		if _, err := next.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		for i, b := range got {
			if b != want[i] {
				t.Fatalf("%d bytes differ from what the later session has written: the first one, "+
					"at offset %d, is %#02x", len(got)-bytes.Count(got, want[:1]), i, b)
			}
		}
	}
}

// BenchmarkCephBesideFio compares the chain with fio, which uses librbd itself, on the same image
// by turns. The metrics are the medians of the rounds, in IOs per second, and their ratio.
func BenchmarkCephBesideFio(b *testing.B) {
	const size = 256 << 20
	c := &chain{t: b, dir: b.TempDir(), address: listenAddress(b),
		volumes: []string{newImage(b, strconv.Itoa(size))}}
	c.startTarget() // which creates the image
	c.relay = c.startRelay("comch")
	c.target.Terminate()
	image := strings.ToLower(b.Name())
	config := strings.Replace(string(readFile(b, os.Getenv("CEPH_CONF"))), "[client]",
		"[client]\nrbd cache = false", 1)
	writeFile(b, c.dir+"/ceph.conf", []byte(config))
	fio := func(flags ...string) []byte {
		command := exec.Command("fio", append([]string{"--name=run", "--ioengine=rbd",
			"--clientname=admin", "--pool=" + os.Getenv("CEPH_POOL"), "--rbdname=" + image,
			"--output-format=json", "--output=" + c.dir + "/fio.json"}, flags...)...)
		command.Env = append(os.Environ(), "CEPH_CONF="+c.dir+"/ceph.conf")
		if output, err := command.CombinedOutput(); err != nil {
			b.Fatalf("fio: %v\n%s", err, output)
		}
		return readFile(b, c.dir+"/fio.json")
	}
	fio("--rw=write", "--bs=1M", "--iodepth=8")
	compare := func(b *testing.B, pattern, depth string, rounds int) {
		var chainIOPS, fioIOPS []float64
		for range b.N * rounds {
			var ours struct{ Result struct{ IOPS float64 } }
			c.startTarget()
			decode(b, []byte(c.mustRun("bench", "--rw", pattern, "--block-size", "4KiB",
				"--queues", "1", "--queue-depth", depth, "--warmup", "1s", "--runtime", "4s",
				"--output", "json")), &ours)
			c.target.Terminate() // fio needs the image's lock
			chainIOPS = append(chainIOPS, ours.Result.IOPS)

			var theirs struct {
				Jobs []struct{ Read, Write struct{ IOPS float64 } }
			}
			decode(b, fio("--rw="+pattern, "--bs=4k", "--iodepth="+depth, "--time_based",
				"--ramp_time=1", "--runtime=4"), &theirs)
			fioIOPS = append(fioIOPS, theirs.Jobs[0].Read.IOPS+theirs.Jobs[0].Write.IOPS)
		}
		slices.Sort(chainIOPS)
		slices.Sort(fioIOPS)
		middle := len(fioIOPS) / 2
		b.ReportMetric(chainIOPS[middle], "chain-IOPS")
		b.ReportMetric(fioIOPS[middle], "fio-IOPS")
		b.ReportMetric(chainIOPS[middle]/fioIOPS[middle], "ratio")
		b.ReportMetric(0, "ns/op")
	}
	for _, cluster := range []struct {
		name   string
		delay  string // the longest of a request at an OSD, in seconds
		rounds int
	}{
		{"cores", "0", 5},      // the cores bound both
		{"cluster", "0.02", 3}, // as with OSDs on spinning disks
	} {
		setDelay(b, cluster.delay)
		for _, pattern := range []string{"randread", "randwrite"} {
			for _, depth := range []string{"1", "32", "128"} {
				b.Run("bound="+cluster.name+"/"+pattern+"/depth="+depth, func(b *testing.B) {
					compare(b, pattern, depth, cluster.rounds)
				})
			}
		}
	}
}

// BenchmarkCephImages measures what images cost a target that does no IO, beside one with a volume
// in memory. Each group has a connection to the cluster.
func BenchmarkCephImages(b *testing.B) {
	const most = 8
	images := make([]string, most)
	for i := range images {
		images[i] = newImageAt(b, fmt.Sprint(imagePath(b), i), "64MiB")
	}
	c := &chain{t: b, dir: b.TempDir(), address: listenAddress(b)}
	measure := func(b *testing.B, volumes []string) (rested use, cpu time.Duration) {
		c.volumes = volumes
		c.startTarget()
		defer c.target.Terminate()
		started := useOf(b, c.target)
		time.Sleep(10 * time.Second) // the subject of the measurement
		rested = useOf(b, c.target)
		return rested, rested.cpu - started.cpu
	}
	without, _ := measure(b, []string{"disk=memory:64MiB"})
	for _, groups := range []string{"one", "each"} {
		for count := 1; count <= most; count *= 2 {
			b.Run(fmt.Sprintf("group=%s/images=%d", groups, count), func(b *testing.B) {
				var volumes []string
				for i, image := range images[:count] {
					volume := fmt.Sprintf("disk%d=%s", i, image)
					if groups == "each" {
						volume += fmt.Sprintf(",group=g%d", i)
					}
					volumes = append(volumes, volume)
				}
				for range b.N {
					with, cpu := measure(b, volumes)
					b.ReportMetric(float64(with.threads-without.threads), "threads")
					b.ReportMetric(float64(with.descriptors-without.descriptors), "descriptors")
					b.ReportMetric(float64(with.residentBytes-without.residentBytes)/(1<<20), "MiB")
					b.ReportMetric(float64(cpu.Milliseconds())/10, "ms-CPU/s")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// setDelay makes the OSDs delay the requests of clients that connect from now on, each for a random
// time of at most longest seconds.
func setDelay(t testing.TB, longest string) {
	t.Helper()
	probability := "1"
	if longest == "0" {
		probability = "0"
	}
	for option, value := range map[string]string{"type": "client", "probability": probability,
		"max": longest} {
		command := exec.Command("ceph", "config", "set", "osd", "ms_inject_delay_"+option, value)
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command.Args, err, output)
		}
	}
}

func decode(t testing.TB, document []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(document, into); err != nil {
		t.Fatal(err)
	}
}
