// SPDX-License-Identifier: Apache-2.0

package files

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOnlyRegularFilesWithinTheLimitAreRead(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, size := range map[string]int{"empty": 0, "full": 64, "large": 65} {
		if err := os.WriteFile(path(name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"fifo", "fifo with a writer"} {
		if err := syscall.Mkfifo(path(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	writer, err := os.OpenFile(path("fifo with a writer"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	listener, err := net.Listen("unix", path("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, link := range [][2]string{{"full", "link"}, {"fifo", "link to a fifo"}} {
		if err := os.Symlink(path(link[0]), path(link[1])); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path string
		size int
		want string // in the error
	}{
		{path: path("empty")}, {path: path("full"), size: 64}, {path: path("link"), size: 64},
		{path: path("large"), want: "large is larger than 64 bytes"},
		{path: path("fifo"), want: "fifo is a pipe, not a regular file"},
		{path: path("fifo with a writer"), want: "is a pipe"},
		{path: path("link to a fifo"), want: "is a pipe"},
		{path: path("socket"), want: "no such device"},
		{path: dir, want: "is a directory"},
		{path: "/dev/zero", want: "/dev/zero is a device"},
		{path: path("nothing"), want: "no such file"},
	} {
		content, err := Read(c.path, 64)
		switch {
		case c.want == "" && (err != nil || len(content) != c.size):
			t.Errorf("%s: %d bytes, %v", c.path, len(content), err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
}
