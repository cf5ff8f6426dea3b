// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// readers are the kinds of readers of a log that can go away or stop reading, each with what a
// shell does before it starts the program.
var readers = map[string]struct {
	connect func() (reader, writer *os.File, err error)
	prepare string
	stays   bool // but reads no more
}{
	"pipe":            {connect: os.Pipe},
	"socket":          {connect: socketPair},
	"ignored SIGPIPE": {connect: os.Pipe, prepare: "trap '' PIPE; "},
	"full pipe":       {connect: os.Pipe, stays: true},
}

func socketPair() (a, b *os.File, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b"), nil
}

// fill writes to a pipe, whose reader it gets, until it is full.
func fill(t *testing.T, reader *os.File) {
	t.Helper()
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", reader.Fd()),
		os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	raw, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Write(func(descriptor uintptr) bool {
		var err error
		for page := make([]byte, 4096); err == nil; {
			_, err = syscall.Write(int(descriptor), page)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDaemonsOutliveTheReadersOfTheirLogs lets the reader of every log leave once the program
// serves. The programs serve on, and end in order.
func TestDaemonsOutliveTheReadersOfTheirLogs(t *testing.T) {
	t.Parallel()
	for name, kind := range readers {
		t.Run(name, func(t *testing.T) {
			c := &chain{t: t, dir: t.TempDir()}
			// start starts a program and stops reading its log when that contains ready.
			start := func(ready, name string, args ...string) *testkit.Process {
				reader, writer, err := kind.connect()
				if err != nil {
					t.Fatal(err)
				}
				if kind.stays {
					t.Cleanup(func() { _ = reader.Close() })
				} else {
					defer reader.Close()
				}
				shell := []string{"sh", "-c", kind.prepare + `exec "$0" "$@" 2>&3 3>&-`,
					program(t, name)}
				p := spawnWith(t, inheritance{files: []*os.File{writer}}, name,
					append(shell, args...)...)
				if err := writer.Close(); err != nil {
					t.Fatal(err)
				}
				for lines := bufio.NewScanner(reader); !strings.Contains(lines.Text(), ready); {
					if !lines.Scan() {
						t.Fatalf("%s ended before it logged %q", name, ready)
					}
				}
				if kind.stays {
					fill(t, reader)
				}
				return p
			}
			disk, addressFile := filepath.Join(c.dir, "disk"), filepath.Join(c.dir, "address")
			target := start("listening for relays", "target", "--volume",
				"disk=file:"+disk+",size=1MiB", "--address-file", addressFile,
				"--listen-address", listenAddress(t).Addr().String(), "--listen-port", "0")
			var address string
			testkit.Eventually(t, "the target has written its address", func() bool {
				text, err := os.ReadFile(addressFile)
				address = strings.TrimSpace(string(text))
				return err == nil
			})
			relay := start("listening for clients", "zc-relay", "run", "--volume", "disk",
				"--storage-server", address, "--emulated-dir", filepath.Join(c.dir, "comch"))
			file, content := filepath.Join(c.dir, "file"), someContent(1<<20)
			writeFile(t, file, content)
			c.mustRun("put", file)
			socket := filepath.Join(c.dir, "socket")
			gateway := start("serving NBD clients", "initiator", "nbd", "--socket", socket,
				"--emulated-dir", filepath.Join(c.dir, "comch"))
			for range 2 { // whoever breaks the protocol is logged
				greetAndLeave(t, socket)
			}
			c.mustRun("info")
			for _, p := range []*testkit.Process{gateway, relay, target} {
				p.Terminate()
			}
			if _, err := os.Stat(socket); !os.IsNotExist(err) {
				t.Errorf("the gateway has left its socket behind, or %v", err)
			}
			if !bytes.Equal(readFile(t, disk), content) {
				t.Error("the volume does not hold what was written")
			}
		})
	}
}

// greetAndLeave connects to a gateway, breaks the protocol, and waits to be disconnected.
func greetAndLeave(t *testing.T, socket string) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(bytes.Repeat([]byte{0xff}, 64)); err != nil {
		t.Fatal(err)
	}
	for buffer := make([]byte, 256); err == nil; {
		_, err = conn.Read(buffer)
	}
}
