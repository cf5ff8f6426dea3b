// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAClientNamesAPeerThatIsNoDaemon(t *testing.T) {
	for reply, want := range map[string]string{
		"SSH-2.0-OpenSSH_9.6\r\n\r\n": "is not an admin listener of a daemon: it does not speak HTTP",
		"\x15\x03\x01\x00\x02\x02F":   "is not an admin listener of a daemon: it speaks TLS",
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		replied := make(chan error)
		go func() {
			conn, err := listener.Accept()
			if err == nil {
				_, _ = conn.Read(make([]byte, 1024)) // else the close would reset the connection
				_, err = conn.Write([]byte(reply))
				err = errors.Join(err, conn.Close())
			}
			replied <- err
		}()
		client, err := admin.New(listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Status(t.Context())
		if !errors.Is(err, status.Unexpected) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "malformed") {
			t.Errorf("%q: %v, want %q", reply, err, want)
		}
		if err := errors.Join(<-replied, listener.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestAddressesThatTheKernelRejectsAreExplained(t *testing.T) {
	for address, want := range map[string]string{
		"unix:/run/" + strings.Repeat("s", 104): "can have 107 bytes at most, and this one has 109",
		"[fe80::1]:9470":                        "write for instance fe80::1%eth0",
	} {
		if _, err := admin.New(address); !errors.Is(err, status.InvalidValue) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

func TestASocketThatNobodyListensAtAndASilentDaemonAreToldApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	client, err := admin.New(admin.UnixPrefix + path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err = client.SetLogLevel(ctx, "debug")
	if !errors.Is(err, status.TimeOut) || !strings.Contains(err.Error(), "it has not answered within ") ||
		!strings.Contains(err.Error(), "It may still do what it was asked to") {
		t.Errorf("a silent daemon: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = client.LogLevel(t.Context())
	if !errors.Is(err, status.NotConnected) || strings.Contains(err.Error(), "--admin-listen") ||
		!strings.Contains(err.Error(), "nobody listens: the daemon that made it has ended") {
		t.Errorf("a socket that is left: %v", err)
	}
}

func TestAFileThatIsNoSocketIsSaidToBeNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := admin.New(admin.UnixPrefix + path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Status(t.Context())
	if !errors.Is(err, status.NotConnected) || !strings.Contains(err.Error(), "is no socket") ||
		strings.Contains(err.Error(), "has ended") {
		t.Errorf("a file: %v", err)
	}
}

// TestTheWrongDaemonIsNamed asks daemons for what the other one has, or nobody.
func TestTheWrongDaemonIsNamed(t *testing.T) {
	for program, want := range map[string]struct{ volumes, channels string }{
		"zc-relay": {"has no volumes: it is a relay, and this takes a target: ", "another version"},
		"target": {"another version",
			"has no channels: it is a target, and this takes a relay: "},
		"": {"has no volumes: it is of another version",
			"has no channels: it is of another"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != admin.StatusPath || program == "" {
				http.NotFound(w, r)
				return
			}
			fmt.Fprintf(w, `{"program":%q}`, program)
		}))
		client, err := admin.New(server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, volumes := client.Volumes(t.Context())
		_, channels := client.Channels(t.Context())
		server.Close()
		for _, got := range []struct {
			err  error
			want string
		}{{volumes, want.volumes}, {channels, want.channels}} {
			if !errors.Is(got.err, status.NotSupported) ||
				!strings.Contains(got.err.Error(), got.want) {
				t.Errorf("%q: %v, want %q", program, got.err, got.want)
			}
		}
	}
}
