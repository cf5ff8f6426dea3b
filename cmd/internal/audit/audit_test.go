// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns this side of a connection from this process.
func connect(t *testing.T, network, address string) net.Conn {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial(network, listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server
}

// record returns the fields of a line, and its severity.
func record(t *testing.T, e Entry) (map[string]any, string) {
	t.Helper()
	core, logs := observer.New(zap.ErrorLevel)
	New(zap.New(core)).Record(e)
	if logs.Len() != 1 {
		t.Fatalf("there are %d lines", logs.Len())
	}
	line := logs.All()[0]
	return line.ContextMap(), line.LoggerName + " " + line.Level.String()
}

func TestALineSaysWhoHasAskedForAChange(t *testing.T) {
	self, err := user.Current()
	if err != nil {
		t.Skip(err)
	}
	line, level := record(t, Entry{Operation: "drain", Object: "daemon",
		By: Peer(connect(t, "unix", filepath.Join(t.TempDir(), "s")))})
	if line["user_id"] != uint32(os.Geteuid()) || line["pid"] != int32(os.Getpid()) ||
		line["user"] != self.Username || line["outcome"] != "done" || level != "audit info" {
		t.Errorf("the process is logged as %v (%s)", line, level)
	}
	line, _ = record(t, Entry{By: Peer(connect(t, "tcp", "127.0.0.1:0"))})
	if line["via"] != "tcp" || !strings.HasPrefix(line["peer"].(string), "127.0.0.1:") {
		t.Errorf("the peer is logged as %v", line)
	}
	line, level = record(t, Entry{Operation: "reload", By: Signal(syscall.SIGHUP),
		Err: status.Errorf(status.BadConfig, "line 3:\nno")})
	if line["via"] != "signal" || line["signal"] != "hangup" || line["outcome"] != "BAD_CONFIG" ||
		line["error"] != "line 3: no [BAD_CONFIG]" || level != "audit warn" {
		t.Errorf("the signal is logged as %v (%s)", line, level)
	}
}

func TestALineIsBounded(t *testing.T) {
	line, _ := record(t, Entry{Object: strings.Repeat("x\n", 10_000),
		Detail: strings.Repeat("y", 10_000), By: Signal(syscall.SIGHUP)})
	object, detail := line["object"].(string), line["detail"].(string)
	if len(object) > maxText || len(detail) > maxText || strings.Contains(object, "\n") {
		t.Errorf("the line has %d and %d bytes of text", len(object), len(detail))
	}
}

func TestAUserWithoutANameHasNone(t *testing.T) {
	var u users
	const nobody = 4_000_000_000
	for range 2 {
		if name := u.name(nobody); name != "" {
			t.Errorf("the name is %q", name)
		}
	}
	if len(u.names) != 1 {
		t.Errorf("there are %d lookups", len(u.names))
	}
}
