// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

// originals maps the names of DOCA applications to the programs that stand for them.
var originals = map[string]string{
	"doca_dma_copy":                          "dma-copy",
	"doca_storage_zero_copy_initiator_comch": "initiator",
	"doca_storage_initiator_comch":           "initiator",
	"doca_storage_zero_copy_comch_to_rdma":   "zc-relay",
	"doca_storage_comch_to_rdma_zero_copy":   "zc-relay",
	"doca_storage_zero_copy_target_rdma":     "target",
	"doca_storage_target_rdma":               "target",
}

// documented runs command lines as NVIDIA's guides print them. What a guide chooses for its
// machines is replaced: the directories of files, the address of the target, and the core.
type documented struct {
	t       *testing.T
	dir     string
	cpu     int
	address netip.Addr // of the target
}

func newDocumented(t *testing.T) *documented {
	t.Helper()
	allowed, err := affinity.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	d := &documented{t: t, dir: t.TempDir(), cpu: allowed[0],
		address: listenAddress(t).Addr()}
	for original, ours := range originals {
		if err := os.Symlink(program(t, ours), d.path(original)); err != nil {
			t.Fatal(err)
		}
	}
	for _, side := range []string{"host", "dpu"} {
		if err := os.Mkdir(d.path(side), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (d *documented) path(name string) string { return filepath.Join(d.dir, name) }

// start runs a line, with flags of the test's own behind it.
func (d *documented) start(line string, more ...string) *testkit.Process {
	d.t.Helper()
	arguments := strings.Fields(strings.NewReplacer(
		"/opt/mellanox/doca/applications/dma_copy/bin/", d.dir+"/", "./", d.dir+"/",
		"/tmp/", d.path("dpu")+"/", "/root/", d.path("host")+"/",
		"172.17.0.1:", d.address.String()+":",
		"--cpu 0", fmt.Sprint("--cpu ", d.cpu),
	).Replace(line))
	return spawnCommand(d.t, line, append(arguments, more...)...)
}

// comch returns flags that keep a line's Comch apart from that of other tests.
func (d *documented) comch(more ...string) []string {
	return append([]string{"--emulated-dir", d.path("comch")}, more...)
}

func TestDocumentedLinesOfDMACopy(t *testing.T) {
	t.Parallel()
	const directory = "/opt/mellanox/doca/applications/dma_copy/bin/"
	files := map[string]string{
		"dpu.json": `{
	"doca_dpdk_flags": {},
	"doca_general_flags": {
		// -l - set the log level for the program
		"log-level": 60,
		"sdk-log-level": 40
	},
	"doca_program_flags": {
		"file": "%[1]s/dpu/file_to_read.txt",
		"dev-pci": "03:00.1",
		"rep-pci": "b1:00.1"
	}
}`,
		"host.json": `{
	"doca_general_flags": {"log-level": "INFO"},
	"doca_program_flags": {"file": "%[1]s/host/file_to_create.txt", "pci-addr": "b1:00.1"}
}`,
	}
	for name, lines := range map[string]struct{ dpu, host, warning string }{
		"guide": {dpu: directory + "doca_dma_copy -d 03:00.1 -r b1:00.1 -f /tmp/file_to_read.txt",
			host: directory + "doca_dma_copy -d b1:00.1 -f /root/file_to_create.txt"},
		"flags of the table": {
			dpu:  "./doca_dma_copy -p 03:00.1 --rep-pci b1:00.1 --file /tmp/file_to_read.txt -l 50",
			host: "./doca_dma_copy --dev-pci b1:00.1 --file /root/file_to_create.txt --log-level 20"},
		"flags of later versions": {
			dpu:  "./doca_dma_copy --pci-addr 03:00.1 -r b1:00.1 -f /tmp/file_to_read.txt --sdk-log-level 40",
			host: "./doca_dma_copy -p b1:00.1 -f /root/file_to_create.txt -l WARNING"},
		"JSON": {dpu: "./doca_dma_copy --json /root/dpu.json",
			host: "./doca_dma_copy -j /root/host.json"},
		"DPDK flags": {
			dpu:     "./doca_dma_copy -a 00:00.0 -l 0-1 -- -d 03:00.1 -r b1:00.1 -f /tmp/file_to_read.txt",
			host:    "./doca_dma_copy -- -d b1:00.1 -f /root/file_to_create.txt",
			warning: "ignored -a 00:00.0 -l 0-1: these are DPDK flags"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDocumented(t)
			for file, format := range files {
				writeFile(t, d.path("host/"+file), fmt.Appendf(nil, format, d.dir))
			}
			content := someContent(1 << 20)
			writeFile(t, d.path("dpu/file_to_read.txt"), content)
			more := d.comch("--connect-timeout", patience, "--timeout", patience)
			dpu, host := d.start(lines.dpu, more...), d.start(lines.host, more...)
			if a, b := dpu.Wait(), host.Wait(); a != 0 || b != 0 {
				t.Fatalf("the DPU exited with %d, the host with %d", a, b)
			}
			if !bytes.Equal(readFile(t, d.path("host/file_to_create.txt")), content) {
				t.Error("the files differ")
			}
			if !strings.Contains(dpu.Stderr.String(), lines.warning) {
				t.Errorf("the DPU warned with %q", dpu.Stderr.String())
			}
		})
	}
}

func TestEveryOriginalTellsItsVersionAndFlags(t *testing.T) {
	t.Parallel()
	d := newDocumented(t)
	for name := range originals {
		for flag, want := range map[string]string{"-v": "version", "--version": "version",
			"-h": "Usage", "--help": "Usage"} {
			p := d.start("./" + name + " " + flag)
			if code := p.Wait(); code != 0 || p.Stdout.String() == "" ||
				want == "Usage" && !strings.Contains(p.Stdout.String(), "Usage:") {
				t.Errorf("%s %s exited with %d: %s", name, flag, code, p.Stdout.String())
			}
		}
	}
}

// startStorage runs the lines of a target and a relay.
func (d *documented) startStorage(target, relay string) {
	d.t.Helper()
	t := d.start(target, "--listen-address", d.address.String(),
		"--keep-alive-dead-after", patience)
	t.AwaitLog("listening for relays")
	r := d.start(relay, d.comch("--keep-alive-dead-after", patience, "--io-timeout", patience,
		"--session-wait", patience)...)
	r.AwaitLog("listening for clients")
	d.t.Cleanup(func() {
		r.Terminate()
		t.Terminate()
	})
}

// initiate runs a line of an initiator, and fails the test unless it ends with 0 and prints text.
func (d *documented) initiate(line, want string) {
	d.t.Helper()
	more := d.comch("--io-timeout", patience)
	if !strings.Contains(line, "--control-timeout") {
		more = append(more, "--control-timeout", patience)
	}
	p := d.start(line, more...)
	if code := p.Wait(); code != 0 || !strings.Contains(p.Stdout.String(), want) {
		d.t.Errorf("%s exited with %d and printed %s", line, code, p.Stdout.String())
	}
}

func TestDocumentedLinesOfTheStorageApplicationsOf210(t *testing.T) {
	t.Parallel()
	d := newDocumented(t)
	d.startStorage("./doca_storage_zero_copy_target_rdma -d 03:00.0 --listen-port 12345 --cpu 0",
		"./doca_storage_zero_copy_comch_to_rdma -d 03:00.0 -r 3b:00.0 --storage-server 172.17.0.1:12345 --cpu 0")
	const initiator = "./doca_storage_zero_copy_initiator_comch -d 3b:00.0 --run-limit-operation-count 1000 --cpu 0 "
	for line, want := range map[string]string{
		"--operation read":                    "1000 (4096000 bytes)",
		"--operation write":                   "1000 (4096000 bytes)",
		"--operation write --validate-writes": "operations, 0 with wrong data",
		"--operation read --per-cpu-buffer-count 32 --buffer-size 8192 --batch-size 4": "queues 1 of depth 32",
		"--operation read --control-timeout 1800 -l 60 --sdk-log-level 50":             "1000 (",
		"--operation read --command-channel-name storage_zero_copy_comch":              "1000 (",
	} {
		d.initiate(initiator+line, want)
	}
}

func TestDocumentedLinesOfTheStorageApplicationsOf3x(t *testing.T) {
	t.Parallel()
	d := newDocumented(t)
	const blocks, blockSize = 64, 512
	content := someContent(blocks * blockSize)
	header := binary.BigEndian.AppendUint64(nil, 0xDEADF00D1337FADE)
	header = binary.BigEndian.AppendUint32(header, blockSize)
	header = binary.BigEndian.AppendUint32(header, blocks)
	writeFile(t, d.path("host/disk.sbc"), append(header, content...))
	writeFile(t, d.path("host/disk.bin"), content)
	writeFile(t, d.path("host/initiator.json"), []byte(`{
	"doca_general_flags": {"log-level": 50},
	"doca_program_flags": {
		"device": "3b:00.0", "cpu": [`+fmt.Sprint(d.cpu)+`],
		"execution-strategy": "read_throughput_test", "run-limit-operation-count": 100
	}
}`))
	for _, target := range []string{
		"--binary-content /root/disk.sbc",
		"--block-count 64 --block-size 512 --binary-content /root/disk.bin",
	} {
		t.Run(target, func(t *testing.T) {
			d := &documented{t: t, dir: d.dir, cpu: d.cpu, address: d.address}
			d.startStorage("./doca_storage_target_rdma -d 03:00.0 --listen-port 12345 --cpu 0 "+target,
				"./doca_storage_comch_to_rdma_zero_copy -d 03:00.0 -r 3b:00.0 --storage-server 172.17.0.1:12345 --cpu 0 --command-channel-name doca_storage_comch --control-timeout 1800")
			const initiator = "./doca_storage_initiator_comch -d 3b:00.0 --cpu 0 --command-channel-name doca_storage_comch --run-limit-operation-count 100 --execution-strategy "
			for _, run := range []struct{ flags, want string }{
				{"read_only_data_validity_test --storage-plain-content /root/disk.bin",
					"operations, 0 with wrong data"},
				{"read_throughput_test", "100 (51200 bytes)"},
				{"read_throughput_test --blocks-per-io 4 --transaction-count 8", "100 (204800 bytes)"},
				{"read_throughput_test --local-io-region-size 4096", "queues 1 of depth 8"},
				{"read_throughput_test --task-count 16 --batch-size 4 --control-timeout 1800",
					"queues 1 of depth 16"},
				{"write_throughput_test --transaction-count 16", "100 (51200 bytes)"},
				{"read_write_data_validity_test --transaction-count 16",
					"operations, 0 with wrong data"},
			} {
				d.initiate(initiator+run.flags, run.want)
			}
			d.initiate("./doca_storage_initiator_comch --json /root/initiator.json --command-channel-name doca_storage_comch",
				"100 (51200 bytes)")
			d.initiate("./doca_storage_initiator_comch -l 0 -- -j /root/initiator.json --command-channel-name doca_storage_comch",
				"100 (51200 bytes)")
		})
	}
}

func TestLinesThatTheOriginalsRejectAreExplained(t *testing.T) {
	t.Parallel()
	d := newDocumented(t)
	writeFile(t, d.path("host/short.bin"), make([]byte, 100))
	writeFile(t, d.path("host/short.sbc"), make([]byte, 10))
	for line, want := range map[string]string{
		"./doca_dma_copy -f /tmp/x":                                                                                 "--pci-addr is missing",
		"./doca_dma_copy -d b1:00.1 -f /tmp/x --dpdk":                                                               "unknown flag --dpdk",
		"./doca_storage_target_rdma -d 03:00.0 --listen-port 70000":                                                 "65535",
		"./doca_storage_target_rdma -d 03:00.0 --block-count 0":                                                     "--block-count 0 is no volume",
		"./doca_storage_target_rdma --binary-content /root/short.bin":                                               "100 bytes of content, but 128 blocks of 4096 are 524288 bytes",
		"./doca_storage_target_rdma --binary-content /root/short.sbc":                                               "does not begin like an .sbc file",
		"./doca_storage_target_rdma --binary-content /root/none.sbc":                                                "no such file",
		"./doca_storage_target_rdma --binary-content /tmp/":                                                         "is not a file",
		"./doca_storage_target_rdma --volume a=memory:1MiB --block-count 2":                                         "use it without --config and --volume",
		"./doca_storage_comch_to_rdma_zero_copy -d 03:00.0 -r 3b:00.0":                                              "--storage-server",
		"./doca_storage_initiator_comch -d 3b:00.0 --execution-strategy none":                                       "read_throughput_test",
		"./doca_storage_initiator_comch -d 3b:00.0 --cpu 0":                                                         "execution-strategy",
		"./doca_storage_initiator_comch -d 3b:00.0 --execution-strategy read_throughput_test --control-timeout 0":   "(--control-timeout) is not positive",
		"./doca_storage_initiator_comch -d 3b:00.0 --execution-strategy read_throughput_test --sdk-log-level 55":    "not one of 10, 20",
		"./doca_storage_initiator_comch -d 3b:00.0 --execution-strategy read_throughput_test --matrix-type vanilla": "unknown flag --matrix-type",
	} {
		p := d.start(line)
		if code := p.Wait(); code != 2 || !strings.Contains(p.Stderr.String(), want) {
			t.Errorf("%s exited with %d: %s", line, code, p.Stderr.String())
		}
	}
}
