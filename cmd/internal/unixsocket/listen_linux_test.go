// SPDX-License-Identifier: Apache-2.0

package unixsocket_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/unixsocket"
)

func TestASocketIsPrivateAndWhatAKilledDaemonLeftIsReplaced(t *testing.T) {
	const mode = 0o600
	path := filepath.Join(t.TempDir(), "admin.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if _, err := unixsocket.Listen(path, mode); err == nil || !strings.Contains(err.Error(),
		"another process listens") {
		t.Errorf("a socket in use: %v", err)
	}
	if err := unixsocket.Check(path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a check of a socket in use: %v", err)
	}
	_ = stale.Close()
	if err := unixsocket.Check(path); err != nil {
		t.Errorf("a check of what a killed daemon left: %v", err)
	}
	l, err := unixsocket.Listen(path, mode)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != mode {
		t.Errorf("the socket's mode is %v", got)
	}
	public, err := unixsocket.Listen(filepath.Join(t.TempDir(), "public.sock"), 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer public.Close()
	if info, err = os.Stat(public.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o666 {
		t.Errorf("the mode of a socket for everybody is %v", got)
	}
	file := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := unixsocket.Listen(file, mode); err == nil || !strings.Contains(err.Error(),
		"not a socket") {
		t.Errorf("a file: %v", err)
	}
	if err := unixsocket.Check(file); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a check of a file: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error("the file was removed")
	}
	if err := unixsocket.Check(filepath.Join(t.TempDir(), "new")); err != nil {
		t.Errorf("a check of a new socket: %v", err)
	}
	if err := unixsocket.Check(file + "/none/new"); err == nil {
		t.Error("a check below a file succeeds")
	}
	if err := unixsocket.Check("/no/such/directory/new"); err == nil ||
		!strings.Contains(err.Error(), "its directory does not exist") {
		t.Errorf("a check without a directory: %v", err)
	}
}
