// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// nbdChain starts a chain with a volume in a file of the given size, and returns the file, too.
func nbdChain(t *testing.T, size string) (c *chain, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "disk.img")
	return startChain(t, "disk=file:"+file+",size="+size), file
}

// managedChain is nbdChain with a service manager that keeps files of the target, which lets the
// volume outlive a killed target without the suspicion of lost writes.
func managedChain(t *testing.T, size string) (c *chain, file string) {
	t.Helper()
	m := startServiceManager(t)
	file = filepath.Join(t.TempDir(), "disk.img")
	c = &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=file:" + file + ",size=" + size},
		manager: m, environ: m.environ("target"), address: listenAddress(t)}
	c.startTarget()
	c.relay = c.startRelay("comch")
	return c, file
}

// gateway starts a gateway that runs a shell script in the chain's directory.
func (c *chain) gateway(script string, flags ...string) *testkit.Process {
	c.t.Helper()
	script = fmt.Sprintf("set -eu; cd '%s'\n%s", c.dir, script)
	return c.initiator(append([]string{"nbd", "--reconnect-first-pause", "20ms",
		"--reconnect-longest-pause", "200ms", "--run", script}, flags...)...)
}

// mustServe runs a script with a gateway, which has to succeed, and returns its output.
func (c *chain) mustServe(script string, flags ...string) string {
	c.t.Helper()
	p := c.gateway(script, flags...)
	if code := p.Wait(); code != 0 {
		c.t.Fatalf("the script exited with %d:\n%s\n%s", code, tail(p.Stdout.String()),
			tail(p.Stderr.String()))
	}
	return p.Stdout.String()
}

func TestNBDInfoDescribesTheExport(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdinfo")
	c, _ := nbdChain(t, "64MiB")
	var document struct {
		Protocol string `json:"protocol"`
		Exports  []struct {
			Name      string `json:"export-name"`
			Size      uint64 `json:"export-size"`
			ReadOnly  bool   `json:"is_read_only"`
			MultiConn bool   `json:"can_multi_conn"`
			FUA       bool   `json:"can_fua"`
			FastZero  bool   `json:"can_fast_zero"`
			Minimum   uint64 `json:"block_size_minimum"`
			Maximum   uint64 `json:"block_size_maximum"`
		} `json:"exports"`
	}
	output := c.mustServe(`nbdinfo --json "$uri"`, "--export", "röt 1")
	if err := json.Unmarshal([]byte(output), &document); err != nil {
		t.Fatal(err)
	}
	e := document.Exports[0]
	if document.Protocol != "newstyle-fixed" || e.Name != "röt 1" || e.Size != 64<<20 ||
		e.ReadOnly || !e.MultiConn || !e.FUA || !e.FastZero || e.Minimum != 1 ||
		e.Maximum != 32<<20 {
		t.Errorf("nbdinfo prints %s", output)
	}
	for script, want := range map[string]string{
		`nbdinfo --is read-only "$uri" && nbdinfo --can write "$uri" || echo no`: "no",
		`nbdinfo --map "$uri"`: "0 67108864 3 hole,zero",
		`nbdinfo --list "nbd+unix:///?socket=$unixsocket" | grep -c '^export='`:     "1",
		`nbdinfo "nbd+unix:///other?socket=$unixsocket" >/dev/null 2>&1 || echo no`: "no",
	} {
		got := strings.TrimSpace(c.mustServe(script, "--read-only"))
		if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("%s prints %q, want %q", script, got, want)
		}
	}
}

// nbdSizeAs runs nbdinfo as a user, on a socket that this user can reach, and returns what it
// prints.
func nbdSizeAs(user uint32, socket string) (string, error) {
	c := exec.Command("nbdinfo", "--size", "nbd+unix:///?socket="+socket)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	output, err := c.CombinedOutput()
	return strings.TrimSpace(string(output)), err
}

func TestTheGatewayRefusesOtherUsers(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdinfo")
	if os.Geteuid() != 0 {
		t.Skip("only root can connect as another user")
	}
	const stranger, acquaintance = 65534, 1
	c, _ := nbdChain(t, "1MiB")
	for _, g := range []struct {
		name     string
		flags    []string
		admitted map[uint32]bool
	}{
		{"this user and root only", nil, map[uint32]bool{0: true, stranger: false}},
		{"one other user", []string{"--allow-user", fmt.Sprint(acquaintance)},
			map[uint32]bool{0: true, acquaintance: true, stranger: false}},
		{"any user", []string{"--allow-any-user"}, map[uint32]bool{acquaintance: true, stranger: true}},
	} {
		t.Run(g.name, func(t *testing.T) {
			// Everybody can reach this directory, unlike those of the test.
			directory, err := os.MkdirTemp("", "zc-relay-nbd")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(directory) })
			if err := os.Chmod(directory, 0o755); err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(directory, "socket")
			p := c.initiator(append([]string{"nbd", "--socket", socket}, g.flags...)...)
			p.AwaitLog("serving NBD clients")
			for user, admitted := range g.admitted {
				size, err := nbdSizeAs(user, socket)
				if admitted && (err != nil || size != "1048576") {
					t.Errorf("user %d is refused: %v, %s", user, err, size)
				} else if !admitted && err == nil {
					t.Errorf("user %d is admitted, and reads the size %s", user, size)
				}
			}
			if _, ok := g.admitted[acquaintance]; ok && !g.admitted[stranger] {
				// The socket lets everybody connect, so it is the gateway that refuses.
				p.AwaitLog("the user may not connect: see --allow-user")
				p.AwaitLog(fmt.Sprintf("of user %d", stranger))
			}
			p.Signal(syscall.SIGTERM)
			if code := p.Wait(); code != 0 {
				t.Errorf("the gateway exited with %d", code)
			}
		})
	}
}

func TestNBDClientsSeeTheNewSizeOnReconnect(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdinfo", "qemu-io")
	c := &chain{t: t, dir: t.TempDir(), address: listenAddress(t),
		volumes: []string{"disk=file:" + filepath.Join(t.TempDir(), "disk.img") + ",size=1MiB"}}
	admin := "unix:" + filepath.Join(c.dir, "target.sock")
	c.startTarget("--admin-listen", admin)
	c.relay = c.startRelay("comch")
	p := c.gateway(`nbdinfo --size "$uri"
touch connected
while [ "$(nbdinfo --size "$uri")" = 1048576 ]; do sleep 0.05; done
nbdinfo --size "$uri"
qemu-io -f raw -c 'write -P 7 1984k 64k' -c flush -c 'read -P 7 1984k 64k' "$uri" >&2`)
	testkit.Eventually(t, "a client has seen the size", func() bool {
		_, err := os.Stat(filepath.Join(c.dir, "connected"))
		return err == nil
	})
	administrator{t, admin}.expect(0, "volume disk has 2MiB", "resize", "disk", "2MiB")
	if code := p.Wait(); code != 0 {
		t.Fatalf("the script exited with %d: %s", code, tail(p.Stderr.String()))
	}
	if got, want := strings.Fields(p.Stdout.String()), []string{"1048576", "2097152"}; !slices.Equal(
		got, want) {
		t.Errorf("clients see the sizes %q, want %q", got, want)
	}
}

func TestTheCodeOfACommandIsThatOfTheGateway(t *testing.T) {
	t.Parallel()
	c, _ := nbdChain(t, "1MiB")
	if code := c.gateway("exit 7").Wait(); code != 7 {
		t.Errorf("exit code %d", code)
	}
	// What a signal interrupts has not succeeded, and leaves nothing behind.
	p := c.gateway("sleep 1000 & echo $! >pid.new; mv pid.new pid; wait; exit 0")
	var pid int
	testkit.Eventually(t, "the command has begun", func() bool {
		text, err := os.ReadFile(filepath.Join(c.dir, "pid"))
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err == nil
	})
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("after SIGTERM the exit code is %d", code)
	}
	testkit.Eventually(t, "what the command has started has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z")
	})

	p = c.gateway("trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done")
	testkit.Eventually(t, "the next command has begun",
		func() bool { return strings.Contains(p.Stdout.String(), "begun") })
	p.Terminate() // that it has ended well counts
}

func TestAGatewayEndsWithItsParent(t *testing.T) {
	t.Parallel()
	c, _ := nbdChain(t, "1MiB")
	socket := filepath.Join(c.dir, "s")
	script := fmt.Sprintf(
		"'%s' nbd --emulated-dir '%s' --socket '%s' --exit-with-parent & exec sleep 1000",
		program(t, "initiator"), filepath.Join(c.dir, "comch"), socket)
	shell := spawnCommand(t, "shell", "/bin/sh", "-c", script)
	shell.AwaitLog("serving NBD clients")
	shell.Signal(syscall.SIGKILL)
	testkit.Eventually(t, "the gateway has removed its socket", func() bool {
		_, err := os.Stat(socket)
		return os.IsNotExist(err)
	})
}

func TestNBDCopyKeepsASparseImageSparse(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdcopy", "qemu-img")
	const size, data = 4 << 30, 64 << 20
	file := filepath.Join(t.TempDir(), "disk.img")
	c := startObservedChain(t, "disk=file:"+file+",size=4GiB")
	image, err := os.Create(filepath.Join(c.dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	for i := range int64(16) {
		if _, err := image.WriteAt(someContent(data/16), i*size/16+i*4711); err != nil {
			t.Fatal(err)
		}
	}
	if err := image.Truncate(size); err != nil {
		t.Fatal(err)
	}
	c.mustServe(`nbdcopy image "$uri"`)
	read := func() float64 {
		var reads strings.Builder
		for line := range strings.Lines(c.scrape(c.target)) {
			if strings.Contains(line, `op="read"`) {
				reads.WriteString(line)
			}
		}
		return sumMetric(reads.String(), "zc_target_io_bytes_total")
	}
	before := read()
	c.mustServe(`nbdcopy --flush "$uri" copy`)
	if n := read() - before; n < data || n > 2*data {
		t.Errorf("to copy %d bytes of data, %v were read", data, n)
	}
	c.mustServe(`qemu-img compare -f raw -F raw image copy
		qemu-img compare -f raw image -F raw "$uri"
		qemu-img map --output=json -f raw "$uri" >map`)
	var extents []struct {
		Length int64
		Data   bool
	}
	if err := json.Unmarshal(readFile(t, filepath.Join(c.dir, "map")), &extents); err != nil {
		t.Fatal(err)
	}
	mapped := int64(0)
	for _, e := range extents {
		if e.Data {
			mapped += e.Length
		}
	}
	if mapped < data || mapped > 2*data || len(extents) < 32 {
		t.Errorf("qemu-img map finds %d bytes of data in %d extents", mapped, len(extents))
	}
	if n := allocated(t, file); n > 2*data {
		t.Errorf("the volume's file occupies %d bytes for %d bytes of data", n, data)
	}
	if n := allocated(t, filepath.Join(c.dir, "copy")); n > 2*data {
		t.Errorf("the copy occupies %d bytes for %d bytes of data", n, data)
	}
}

func TestQEMUUsesTheExport(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "qemu-img", "qemu-io")
	c, _ := nbdChain(t, "256MiB")
	writeFile(t, filepath.Join(c.dir, "data"), someContent(64<<20))
	c.mustServe(`
		qemu-img convert -n -f raw -O raw -W data "$uri"
		qemu-img compare -f raw data -F raw "$uri"
		qemu-img create -q -f qcow2 "$uri" 128M
		qemu-img convert -n -f raw -O qcow2 data "$uri"
		qemu-img check -f qcow2 "$uri"
		qemu-img compare -f raw data -F qcow2 "$uri"
		qemu-img convert -f qcow2 -O raw "$uri" back
		cmp -n 67108864 data back
		qemu-img bench -f raw -c 2000 -d 16 -s 4096 -w --flush-interval 100 "$uri"
		qemu-img bench -f raw -c 2000 -d 16 -s 65536 -o 3584 "$uri"`)
	// Odd offsets and lengths, across the boundaries of blocks and of buffers.
	c.mustServe(`
		q() {
			qemu-io -f raw "$@" "$uri" | tee /dev/stderr |
				grep -qiE "fail|error|unable" && exit 1
			:
		}
		q -c "write -P 0x11 0 1M" -c "write -P 0x22 1 1" -c "write -P 0x33 511 2" \
		  -c "write -P 0x44 4095 4099" -c "write -P 0x55 262143 262147" -c "flush" \
		  -c "read -P 0x11 0 1" -c "read -P 0x22 1 1" -c "read -P 0x11 2 509" \
		  -c "read -P 0x33 511 2" -c "read -P 0x11 513 3582" -c "read -P 0x44 4095 4099" \
		  -c "read -P 0x11 8194 253949" -c "read -P 0x55 262143 262147" \
		  -c "read -P 0x11 524290 524286"
		q -c "write -z 4097 8191" -c "read -P 0 4097 8191" -c "read -P 0x44 4096 1" \
		  -c "read -P 0x11 12288 1" -c "write -f -P 0x66 12345 54321" \
		  -c "read -P 0x66 12345 54321" -c "write -z -u 1M 1M" -c "read -P 0 1M 1M" \
		  -c "discard 2M 1M" -c "write -P 0x77 33554431 33554431" \
		  -c "read -P 0x77 33554431 33554431"`)
}

func TestFIOVerifiesTheExport(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "fio")
	c, _ := nbdChain(t, "64MiB")
	c.mustServe(fioVerify("--bsrange=512-128k", "--blockalign=512", "--size=48m"))
	c.mustServe(fioVerify("--bs=1000", "--size=4000000")) // no block is written as a whole
}

// fioVerify returns a command that writes and verifies at random.
func fioVerify(flags ...string) string {
	return `fio --name=verify --ioengine=nbd --uri="$uri" --rw=randrw --iodepth=32 ` +
		`--verify=crc32c --verify_fatal=1 --do_verify=1 --verify_backlog=512 --randrepeat=0 ` +
		`--minimal ` + strings.Join(flags, " ")
}

func TestNBDKitForwardsTheExport(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdkit", "nbdcopy")
	c, file := nbdChain(t, "32MiB")
	writeFile(t, filepath.Join(c.dir, "data"), someContent(32<<20))
	c.mustServe(`nbdkit --exit-with-parent -U - nbd uri="$uri" \
		--run 'nbdcopy data "$uri" && nbdcopy "$uri" copy'; cmp data copy`)
	content := readFile(t, file)
	if string(content) != string(someContent(32<<20)) {
		t.Error("the volume's file differs from what was copied")
	}
}

func TestFileSystemsSurviveTheTrip(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdcopy", "mke2fs", "e2fsck", "debugfs", "mkfs.xfs", "xfs_repair", "xfs_db")
	c, _ := nbdChain(t, "512MiB")
	c.mustServe(`
		mkdir -p tree/d; head -c 3000000 /dev/urandom >tree/file; tac tree/file >tree/d/other
		truncate -s 256M ext4; mke2fs -q -t ext4 -d tree ext4
		nbdcopy ext4 "$uri"; nbdcopy "$uri" back; truncate -s 256M back; cmp ext4 back
		e2fsck -fn back
		for file in file d/other; do debugfs -R "cat $file" back | cmp - "tree/$file"; done

		echo 'boot 0 0 d--755 0 0 file ---644 0 0 tree/file
			d d--755 0 0 other ---644 0 0 tree/d/other $ $' >prototype
		truncate -s 512M xfs; mkfs.xfs -q -p prototype xfs
		nbdcopy xfs "$uri"; nbdcopy "$uri" back; cmp xfs back; xfs_repair -n -f back
		size=$(xfs_db -r -c 'sb 0' -c 'print agblocks' back | sed 's/.* //')
		for file in file d/other; do
			rm -f content
			xfs_db -r -c "path /$file" -c bmap back | # data offset 0 startblock 9 (2/3) count 7 …
				sed -En 's|.*set ([0-9]+) .*\(([0-9]+)/([0-9]+)\) count ([0-9]+).*|\1 \2 \3 \4|p' |
				while read -r offset group block count; do
					dd if=back of=content bs=4096 conv=notrunc status=none seek="$offset" \
						skip=$((group * size + block)) count="$count"
				done
			cmp -n 3000000 content "tree/$file"
		done`)
}

func TestTheGatewayServesMetricsAndStatus(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdinfo")
	c, _ := nbdChain(t, "1MiB")
	socket := filepath.Join(c.dir, "s")
	p := c.initiator("nbd", "--socket", socket, "--metrics-listen", "127.0.0.1:0", "--print-uri",
		"--metrics-per-client", "4")
	uri := printedURI(t, p)
	info := exec.Command("nbdinfo", "--size", uri)
	if output, err := info.CombinedOutput(); err != nil ||
		strings.TrimSpace(string(output)) != "1048576" {
		t.Fatalf("nbdinfo --size %s prints %s, error %v", uri, output, err)
	}
	name := fmt.Sprintf(`"process %d of user %d"`, info.ProcessState.Pid(), os.Geteuid())
	awaitLine(t, p, "NBD client connected", name)
	awaitLine(t, p, "NBD client disconnected", name)
	c.awaitMetrics(p, `zc_relay_nbd_connections_total{export=""} 1`,
		`zc_relay_nbd_connections{export=""} 0`, `zc_relay_nbd_size_bytes{export=""} 1.048576e+06`,
		`zc_relay_nbd_requests_total{command="trim",error="EIO",export=""} 0`,
		fmt.Sprintf(`zc_relay_nbd_client_failures_total{client="user %d",export=""} 0`,
			os.Geteuid()))
	var status struct {
		Schema  string
		Exports []struct{ Bytes uint64 }
	}
	_, body := get(t, p, "/status")
	if err := json.Unmarshal([]byte(body), &status); err != nil ||
		status.Schema != "zc-relay.nbd-status/1" || status.Exports[0].Bytes != 1<<20 {
		t.Errorf("status is %s, error %v", body, err)
	}
	checkNBDStatus(t, body)
	p.Terminate()
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// checkNBDStatus compares the status document of a gateway with its schema.
func checkNBDStatus(t *testing.T, body string) {
	t.Helper()
	var document any
	err := json.Unmarshal([]byte(body), &document)
	if err == nil {
		err = schematest.Read(t, "../../docs/schemas/nbd-status.schema.json").Check(document)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, body)
	}
}

// awaitLine waits until one line of the log of a process contains all of the given texts.
func awaitLine(t *testing.T, p *testkit.Process, texts ...string) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%s logs a line with %q", p.Name, texts), func() bool {
		for line := range strings.Lines(p.Stderr.String()) {
			isMissing := func(text string) bool { return !strings.Contains(line, text) }
			if !slices.ContainsFunc(texts, isMissing) {
				return true
			}
		}
		return false
	})
}

// printedURI waits until a gateway with --print-uri serves clients, and returns its URI.
func printedURI(t *testing.T, p *testkit.Process) string {
	t.Helper()
	p.AwaitLog("serving NBD clients")
	testkit.Eventually(t, "the URI is printed",
		func() bool { return strings.HasSuffix(p.Stdout.String(), "\n") })
	return strings.TrimSpace(p.Stdout.String())
}

func TestNBDClientsUseTLS(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdinfo")
	c, _ := nbdChain(t, "1MiB")
	authority := mutualtlstest.NewAuthority(t)
	own := authority.Write(filepath.Join(c.dir, "gateway"), []string{"localhost", "127.0.0.1"})
	p := c.initiator(append([]string{"nbd", "--listen", "127.0.0.1:0", "--print-uri",
		"--tls-allowed-name", "client.test"}, tlsFlagsOf(own)...)...)
	uri := printedURI(t, p)
	port := uri[strings.LastIndex(uri, ":"):]
	for _, test := range []struct {
		name, uri string
		authority *mutualtlstest.Authority
		welcome   bool
	}{
		{"client.test", "nbds://localhost" + port, authority, true},
		{"other.test", "nbds://localhost" + port, authority, false},
		{"client.test", "nbds://localhost" + port, mutualtlstest.NewAuthority(t), false},
		{"client.test", "nbd://localhost" + port, authority, false}, // without TLS
	} {
		// The names of the files are those that libnbd expects.
		directory := t.TempDir()
		files := test.authority.Write(directory, []string{test.name})
		for from, to := range map[string]string{files.Certificate: "client-cert.pem",
			files.Key: "client-key.pem", own.CA: "ca-cert.pem"} {
			writeFile(t, filepath.Join(directory, to), readFile(t, from))
		}
		output, err := exec.Command("nbdinfo", "--size",
			test.uri+"?tls-certificates="+directory).CombinedOutput()
		if test.welcome != (err == nil && strings.TrimSpace(string(output)) == "1048576") {
			t.Errorf("%s at %s: error %v, nbdinfo prints %s", test.name, test.uri, err, output)
		}
	}
	awaitLine(t, p, "NBD client connected", `"127.0.0.1:`, `(client.test)"`, `"tls": true`)
	awaitLine(t, p, "NBD client disconnected", `"127.0.0.1:`, `(client.test)"`)
	p.Terminate()
}

// Two connections on different queues are one disk: one reads what the other has written, and its
// flush covers it, so that a killed target has lost nothing.
func TestNBDConnectionsAreOneDisk(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdsh")
	c, _ := nbdChain(t, "1MiB")
	writeFile(t, filepath.Join(c.dir, "connections.py"), []byte(`
import errno, os
a, b = nbd.NBD(), nbd.NBD()
for connection in (a, b):
    connection.connect_uri(os.environ["uri"])
    assert connection.can_multi_conn()
def loses(connection):
    try:
        connection.flush()
    except nbd.Error as e:
        assert e.errnum == errno.EIO, e
    else:
        raise AssertionError("the flush reports no loss")
a.pwrite(b"a" * 4096, 0)
assert b.pread(4096, 0) == b"a" * 4096
b.flush()
print("flushed", flush=True)
open("first").read()
a.flush()
b.flush()
a.pwrite(b"b" * 4096, 0)
print("written", flush=True)
open("second").read()
loses(b)
loses(a)
a.flush()
b.flush()
`))
	p := c.gateway(`mkfifo first second; PATH=/usr/bin:$PATH nbdsh -c - <connections.py`,
		"--queues", "2")
	for _, step := range []struct{ says, goOn string }{{"flushed", "first"},
		{"written", "second"}} {
		testkit.Eventually(t, "the client has "+step.says, func() bool {
			return strings.Contains(p.Stdout.String(), step.says)
		})
		c.killDaemon(p, 1) // the target
		writeFile(t, filepath.Join(c.dir, step.goOn), nil)
	}
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, tail(p.Stderr.String()))
	}
}

// A client dies with writes in progress while the relay is down. Others write the same blocks and
// flush: one that was connected all the time, and one that comes after its death.
func TestADeadNBDClientWritesNothingMore(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdsh")
	c, _ := nbdChain(t, "16MiB")
	writeFile(t, filepath.Join(c.dir, "victim.py"), []byte(`
import os, time
h.connect_uri(os.environ["uri"])
data = nbd.Buffer.from_bytearray(bytearray(b"X" * 262144))
for i in range(60):
    h.aio_pwrite(data, i * 262144)
while h.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
    h.poll(10)
open("sent", "w").close()
time.sleep(1000)
`))
	writeFile(t, filepath.Join(c.dir, "heirs.py"), []byte(`
import os
heirs = [nbd.NBD(), nbd.NBD()]
heirs[0].connect_uri(os.environ["uri"])
print("standing", flush=True)
open("go").read()
heirs[1].connect_uri(os.environ["uri"])
data = nbd.Buffer.from_bytearray(bytearray(b"Y" * 4096))
for i in reversed(range(60)):
    heirs[i % 2].aio_pwrite(data, i * 262144)
for heir in heirs:
    while heir.aio_in_flight():
        heir.poll(1)
    heir.flush()
h.connect_uri(os.environ["uri"])
lost = [i for i in range(60) if h.pread(4096, i * 262144) != b"Y" * 4096]
assert not lost, lost
`))
	p := c.gateway(`mkfifo go; PATH=/usr/bin:$PATH
		nbdsh -c - <heirs.py & heirs=$!
		while [ ! -e down ]; do sleep 0.05; done
		nbdsh -c - <victim.py & victim=$!
		while [ ! -e sent ]; do sleep 0.05; done
		kill -9 $victim; wait $victim || true
		echo dead; echo >go; wait $heirs`, "--queues", "2", "--memory", "16MiB")
	says := func(word string) {
		testkit.Eventually(t, "the script says "+word, func() bool {
			return strings.Contains(p.Stdout.String(), word+"\n")
		})
	}
	says("standing")
	c.relay.Signal(syscall.SIGKILL)
	c.relay.Wait()
	writeFile(t, filepath.Join(c.dir, "down"), nil)
	says("dead")
	c.relay = c.startRelay("comch")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, tail(p.Stderr.String()))
	}
}

func TestTheEndOfAnNBDExportLeavesTheOthers(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdinfo", "qemu-io")
	c := startChain(t, "disk=file:"+filepath.Join(t.TempDir(), "disk.img")+",size=1MiB",
		"ram=memory:2MiB")
	c.startRelay("comch", "--command-channel-name", "second", "--volume", "ram")
	socket := filepath.Join(c.dir, "s")
	p := c.initiator("nbd", "--socket", socket, "--export", "A", "--export", "B=second",
		"--reconnect-first-pause", "20ms", "--reconnect-longest-pause", "200ms",
		"--metrics-listen", "127.0.0.1:0")
	p.AwaitLog("serving NBD clients")
	size := func(export string) string {
		output, _ := exec.Command("nbdinfo", "--size",
			"nbd+unix:///"+export+"?socket="+socket).Output()
		return strings.TrimSpace(string(output))
	}
	for export, want := range map[string]string{"A": "1048576", "B": "2097152", "": "1048576"} {
		if got := size(export); got != want {
			t.Errorf("export %q has %s bytes, want %s", export, got, want)
		}
	}
	c.target.Signal(syscall.SIGKILL) // the volume in memory is lost
	c.target.Wait()
	c.startTarget()
	awaitLine(t, p, "export ended", `"export": "B"`)
	testkit.Eventually(t, "export B is not offered any more", func() bool { return size("B") == "" })
	awaitLine(t, p, "NBD negotiation failed", `there is no export \"B\"`)
	var status struct {
		Exports []struct{ Name, State, Reason string }
	}
	_, body := get(t, p, "/status")
	if err := json.Unmarshal([]byte(body), &status); err != nil || len(status.Exports) != 2 {
		t.Fatalf("status is %s, error %v", body, err)
	}
	for _, e := range status.Exports {
		state, reason := "serving", ""
		if e.Name == "B" {
			state, reason = "ended", "different volume"
		}
		if e.State != state || !strings.Contains(e.Reason, reason) {
			t.Errorf("export %+v", e)
		}
	}
	output, err := exec.Command("qemu-io", "-f", "raw", "-c", "write -P 7 0 64k", "-c", "flush",
		"-c", "read -P 7 0 64k", "nbd+unix:///A?socket="+socket).CombinedOutput()
	if err != nil {
		t.Errorf("export A: %v: %s", err, output)
	}
	p.Terminate()
}

// anonymousMemory returns the memory that a process does not share with others, in bytes.
func anonymousMemory(t *testing.T, p *testkit.Process) int {
	t.Helper()
	text := string(readFile(t, fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid)))
	_, rest, _ := strings.Cut(text, "\nRssAnon:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		t.Fatalf("the status of %s has no RssAnon: %s", p.Name, text)
	}
	kilobytes, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}

func TestHalfOpenNBDConnectionsCostAGatewayLittle(t *testing.T) {
	// Not parallel: it uses most of the descriptors of this process.
	testkit.RequireTools(t, "nbdinfo")
	// At most pending are negotiating (nbd.DefaultMaxPending). More memory would be less than 4 KiB
	// for each attacker.
	const attackers, pending, memory = 10_000, 64, 32 << 20
	c, _ := nbdChain(t, "1MiB")
	p := c.initiator("nbd", "--listen", "127.0.0.1:0", "--print-uri")
	uri := printedURI(t, p)
	address := strings.Trim(strings.TrimPrefix(uri, "nbd://"), "/")
	memoryBefore, descriptorsBefore := anonymousMemory(t, p), p.Descriptors()
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	for i := range attackers {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07")[:i%17])
		if open = append(open, conn); len(open) > 500 { // as many descriptors as a test may have
			_ = open[0].Close()
			open = open[1:]
		}
		if i%1000 > 0 {
			continue
		}
		output, err := exec.Command("nbdinfo", "--size", uri).CombinedOutput()
		if err != nil || strings.TrimSpace(string(output)) != "1048576" {
			t.Fatalf("after %d attackers nbdinfo prints %s, error %v", i, output, err)
		}
		if n := anonymousMemory(t, p) - memoryBefore; n > memory {
			t.Fatalf("%d attackers cost %d bytes", i, n)
		}
	}
	testkit.Eventually(t, "only the pending connections are left", func() bool {
		return p.Descriptors() <= descriptorsBefore+pending
	})
	p.Terminate()
}

func TestAGatewayEndsWhenItsVolumeDoesNotComeBack(t *testing.T) {
	t.Parallel()
	c := startChain(t, "ram=memory:1MiB")
	p := c.gateway("exec sleep 1000", "--reconnect-timeout", "100ms")
	p.AwaitLog("serving NBD clients")
	c.relay.Signal(syscall.SIGKILL)
	if code := p.Wait(); code != 3 {
		t.Errorf("exit code %d", code)
	}
}

// nbdRequests returns how many requests of NBD clients the metrics count whose labels contain all
// that are given.
func nbdRequests(metrics, labels string) (sum float64) {
	for line := range strings.Lines(metrics) {
		if strings.Contains(line, labels) {
			sum += sumMetric(line, "zc_relay_nbd_requests_total")
		}
	}
	return sum
}

func failedNBDRequests(metrics string) float64 {
	return nbdRequests(metrics, "") - nbdRequests(metrics, `error="success"`)
}

// nbdKills is how often target or relay are killed under load.
var nbdKills = 4

func TestNBDClientsNoticeNoKill(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "fio")
	c, _ := managedChain(t, "32MiB")
	p := c.gateway(`while [ ! -e stop ]; do `+fioVerify("--bs=4k", "--size=24m", "--fsync=50")+
		`; echo round; done; echo passed`, "--metrics-listen", "127.0.0.1:0")
	p.AwaitLog("NBD client connected")
	for i := range nbdKills {
		c.killDaemon(p, i)
		time.Sleep(50 * time.Millisecond) // IO between two kills
	}
	// fio ignores errors of flushes.
	if body := c.scrape(p); failedNBDRequests(body) > 0 ||
		nbdRequests(body, `command="flush",error="success"`) == 0 {
		t.Errorf("a request has failed, or there were no flushes:\n%s", body)
	}
	writeFile(t, filepath.Join(c.dir, "stop"), nil)
	if code := p.Wait(); code != 0 || !strings.Contains(p.Stdout.String(), "passed\n") {
		t.Errorf("exit code %d: fio has failed, or a flush reported a loss", code)
	}
	t.Logf("%d kills, %d rounds of fio", nbdKills, strings.Count(p.Stdout.String(), "round\n"))
}

// killDaemon kills the relay or the target, starts it again, and waits until the gateway has
// reopened its volume, for a client that goes on.
func (c *chain) killDaemon(gateway *testkit.Process, i int) {
	c.t.Helper()
	const reopened = "volume reopened"
	before := strings.Count(gateway.Stderr.String(), reopened)
	if i%2 == 0 {
		c.relay.Signal(syscall.SIGKILL)
		c.relay.Wait()
		c.relay = c.startRelay("comch")
	} else {
		c.target.Signal(syscall.SIGKILL)
		c.target.Wait()
		c.startTarget()
	}
	testkit.Eventually(c.t, fmt.Sprintf("the volume is reopened after %d kills", i+1), func() bool {
		select {
		case <-gateway.Ended():
			c.t.Fatalf("the client has ended after %d kills:\n%s", i+1,
				tail(gateway.Stdout.String()))
		default:
		}
		return strings.Count(gateway.Stderr.String(), reopened) > before
	})
}

// TestNBDClientsNoticeNoStoppedRelay stops the relay while NBD requests are in flight, until the
// gateway leaves its memory to it, and continues it.
func TestNBDClientsNoticeNoStoppedRelay(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "fio", "nbdcopy")
	c := startFileChain(t)
	p := c.gateway(`while [ ! -e stop ]; do `+fioVerify("--bs=16k", "--size=24m")+
		`; done; head -c 32M /dev/urandom >data; nbdcopy --flush data "$uri"; nbdcopy "$uri" copy
		cmp data copy; echo passed`, "--metrics-listen", "127.0.0.1:0",
		"--io-timeout", "1s", "--control-timeout", "4s", "--reconnect-timeout", patience)
	p.AwaitLog("NBD client connected")
	logs := func(text string, than int) {
		testkit.Eventually(t, "the gateway logs "+text, func() bool {
			select {
			case <-p.Ended():
				t.Fatalf("the client has ended:\n%s", tail(p.Stdout.String()))
			default:
			}
			return strings.Count(p.Stderr.String(), text) > than
		})
	}
	const kept, left = "has not released the data memory", "has released the data memory"
	for range 2 {
		c.awaitIO()
		c.relay.Stop()
		testkit.Eventually(t, "NBD requests are in flight", func() bool {
			return sumMetric(c.scrape(p), "zc_relay_nbd_requests_in_flight") > 0
		})
		before := p.Stderr.String()
		logs(kept, strings.Count(before, kept))
		c.relay.Continue()
		logs("volume reopened", strings.Count(before, "volume reopened"))
		logs(left, strings.Count(before, left))
	}
	c.awaitIO()
	if body := c.scrape(p); failedNBDRequests(body) > 0 {
		t.Errorf("a request has failed:\n%s", body)
	}
	writeFile(t, filepath.Join(c.dir, "stop"), nil)
	if code := p.Wait(); code != 0 || !strings.HasSuffix(p.Stdout.String(), "passed\n") {
		t.Errorf("exit code %d: a client saw an error or a wrong byte", code)
	}
}

func TestAFlushReportsWhatAKilledTargetMayHaveLost(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "qemu-io")
	t.Run("without a service manager", func(t *testing.T) {
		c, _ := nbdChain(t, "1MiB")
		c.flushAfterKill("EIO")
	})
	t.Run("with a service manager", func(t *testing.T) {
		c, _ := managedChain(t, "1MiB")
		c.flushAfterKill("success")
	})
}

// flushAfterKill kills the target between a write and a flush, which has to have the given outcome.
func (c *chain) flushAfterKill(outcome string) {
	c.t.Helper()
	p := c.gateway(`mkfifo go end
		(echo "write -P 1 0 4096"; cat go; echo flush) |
			qemu-io -t writeback -f raw "$uri" || true
		qemu-io -t writeback -f raw -c "write -P 2 0 4096" -c flush "$uri"; cat end`,
		"--metrics-listen", "127.0.0.1:0")
	const write = `zc_relay_nbd_requests_total{command="write",error="success",export=""} `
	flush := `command="flush",error="` + outcome + `"`
	c.awaitMetrics(p, write+"1")
	c.target.Signal(syscall.SIGKILL)
	c.target.Wait()
	c.startTarget()
	p.AwaitLog("volume reopened")
	if outcome == "EIO" {
		p.AwaitLog("writes may be lost")
	}
	writeFile(c.t, filepath.Join(c.dir, "go"), nil)
	c.awaitMetrics(p, write+"2")
	testkit.Eventually(c.t, "a flush ends with "+outcome,
		func() bool { return nbdRequests(c.scrape(p), flush) > 0 })
	if outcome == "success" && failedNBDRequests(c.scrape(p)) > 0 {
		c.t.Error("a flush has reported a loss")
	}
	writeFile(c.t, filepath.Join(c.dir, "end"), nil)
	if code := p.Wait(); code != 0 { // the second client's flush has succeeded
		c.t.Errorf("exit code %d", code)
	}
}

func TestTheLossOfAMemoryVolumeEndsTheExport(t *testing.T) {
	t.Parallel()
	c := startChain(t, "ram=memory:1MiB")
	p := c.gateway("exec sleep 1000")
	p.AwaitLog("serving NBD clients")
	c.target.Signal(syscall.SIGKILL)
	c.target.Wait()
	c.startTarget()
	if code := p.Wait(); code != 1 || !strings.Contains(p.Stderr.String(), "different volume") {
		t.Errorf("exit code %d", code)
	}
}

// Requests that violate what the export has announced, which libnbd sends only in its unsafe mode,
// fail with the error that the specification demands, and the connection goes on.
func TestNBDShellGetsTheErrorsOfTheSpecification(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdsh")
	c, _ := nbdChain(t, "64MiB")
	writeFile(t, filepath.Join(c.dir, "writable.py"), []byte(`
import errno, os
h.set_strict_mode(0)
h.connect_uri("nbd+unix:///?socket=" + os.environ["unixsocket"])
def fails(call, *wanted):
    try:
        call()
    except nbd.Error as e:
        assert e.errnum in wanted, (e, wanted)
    else:
        raise AssertionError("succeeded instead of %s" % (wanted,))
    h.pwrite(b"x" * 512, 512)
    assert h.pread(512, 512) == b"x" * 512
size = h.get_size()
fails(lambda: h.pread(512, size), errno.EINVAL)
fails(lambda: h.pread(512, size - 1), errno.EINVAL)
fails(lambda: h.pwrite(b"1" * 512, size), errno.ENOSPC)
fails(lambda: h.pwrite(b"1" * 512, size - 511), errno.ENOSPC)
fails(lambda: h.zero(512, size), errno.ENOSPC)
fails(lambda: h.trim(512, size), errno.EINVAL)
fails(lambda: h.cache(512, size), errno.EINVAL)
fails(lambda: h.pread(33 << 20, 0), errno.EINVAL)
fails(lambda: h.pwrite(b"1" * (33 << 20), 0), errno.EINVAL)
fails(lambda: h.pread(512, 0, 1 << 9), errno.EINVAL)
fails(lambda: h.pwrite(b"1" * 512, 0, 1 << 9), errno.EINVAL)
fails(lambda: h.flush(1 << 9), errno.EINVAL)
h.shutdown()
`))
	c.mustServe(`PATH=/usr/bin:$PATH nbdsh -c - <writable.py`)
	writeFile(t, filepath.Join(c.dir, "read-only.py"), []byte(`
import errno, os
h.set_strict_mode(0)
h.connect_uri("nbd+unix:///?socket=" + os.environ["unixsocket"])
for call in (lambda: h.pwrite(b"1" * 512, 0), lambda: h.zero(512, 0), lambda: h.trim(512, 0)):
    try:
        call()
    except nbd.Error as e:
        assert e.errnum == errno.EPERM, e
    else:
        raise AssertionError("succeeded")
    assert h.pread(512, 512) == b"x" * 512
h.flush()
h.shutdown()
`))
	c.mustServe(`PATH=/usr/bin:$PATH nbdsh -c - <read-only.py`, "--read-only")
}
