// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// receive returns the next message, and the content of the file that came with it, if any.
func (m *manager) receive() (message, content string) {
	m.t.Helper()
	if err := m.socket.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		m.t.Fatal(err)
	}
	b, rights := make([]byte, 4096), make([]byte, 4096)
	n, controls, _, _, err := m.socket.ReadMsgUnix(b, rights)
	if err != nil {
		m.t.Fatal(err)
	}
	parsed, err := unix.ParseSocketControlMessage(rights[:controls])
	if err != nil {
		m.t.Fatal(err)
	}
	for i := range parsed {
		descriptors, err := unix.ParseUnixRights(&parsed[i])
		if err != nil {
			m.t.Fatal(err)
		}
		file := os.NewFile(uintptr(descriptors[0]), "received")
		defer file.Close()
		all, err := io.ReadAll(file)
		if err != nil {
			m.t.Fatal(err)
		}
		content += string(all)
	}
	return string(b[:n]), content
}

func someFile(t *testing.T, content string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTheManagerStoresFiles(t *testing.T) {
	m := newManager(t)
	t.Setenv("LISTEN_PID", "")
	s := NewStore(zap.NewNop())
	s.Keep(someFile(t, "one"), "a-1")
	s.Keep(someFile(t, "two"), "b-1")
	if file, name := s.Take("c-"); file != nil {
		t.Errorf("took %q", name)
	}
	file, name := s.Take("a-")
	if file == nil || name != "a-1" {
		t.Fatalf("took %q", name)
	}
	s.Keep(file, "a-2")
	s.Forget("a-1") // is not there
	s.ForgetIf(func(name string) bool { return !strings.HasPrefix(name, "b-") })
	s.Forget("b-1")
	for _, want := range [][2]string{
		{"FDSTORE=1\nFDPOLL=0\nFDNAME=a-1", "one"},
		{"FDSTORE=1\nFDPOLL=0\nFDNAME=b-1", "two"},
		{"FDSTOREREMOVE=1\nFDNAME=a-1", ""},
		{"FDSTORE=1\nFDPOLL=0\nFDNAME=a-2", ""}, // its end was reached above
		{"FDSTOREREMOVE=1\nFDNAME=a-2", ""},
		{"FDSTOREREMOVE=1\nFDNAME=b-1", ""},
	} {
		if message, content := m.receive(); message != want[0] || content != want[1] {
			t.Errorf("the manager hears %q and reads %q, want %q", message, content, want)
		}
	}
}

func TestAStoreBeginsWithWhatTheManagerHasKept(t *testing.T) {
	if os.Getenv("STORE_TEST_CHILD") == "" {
		kept := someFile(t, "")
		defer kept.Close()
		process, err := os.StartProcess("/bin/sh", []string{"sh", "-c",
			`LISTEN_PID=$$ exec "$0" -test.run ` + t.Name(), os.Args[0]}, &os.ProcAttr{
			Env: append(os.Environ(), "STORE_TEST_CHILD=1", "LISTEN_FDS=1",
				"LISTEN_FDNAMES=volume-7", "NOTIFY_SOCKET="),
			Files: []*os.File{nil, os.Stdout, os.Stderr, kept},
		})
		if err != nil {
			t.Fatal(err)
		}
		if state, err := process.Wait(); err != nil || !state.Success() {
			t.Errorf("%v, %v", state, err)
		}
		return
	}
	s := NewStore(zap.NewNop())
	file, name := s.Take("volume-")
	if file == nil || name != "volume-7" || os.Getenv("LISTEN_FDS") != "" {
		t.Fatal(fmt.Errorf("took %v %q", file, name))
	}
	_ = file.Close()
}
