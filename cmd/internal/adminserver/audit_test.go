// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

type fakeSessions struct{}

func (fakeSessions) AdminSessions() []admin.Session { return nil }
func (fakeSessions) EndSession(id uint64) error {
	if id == 7 {
		return nil
	}
	return status.Errorf(status.NotFound, "there is no session %d", id)
}

type fakeDrainer struct{}

func (fakeDrainer) Drain()                       {}
func (fakeDrainer) Resume()                      {}
func (fakeDrainer) DrainState() admin.DrainState { return admin.DrainState{} }

// startAudited serves everything that changes a daemon. The outcome of a reload is reloaded.
func startAudited(t *testing.T, address string, reloaded *admin.Reload) (*http.Client,
	zap.AtomicLevel, func() []zapcore.Entry, func() map[string]any) {
	t.Helper()
	a, client, level, logs := startAdmin(t, address)
	a.HandleSessions(fakeSessions{})
	a.HandleDrain(fakeDrainer{})
	a.HandleVolumes(&fakeVolumes{})
	a.HandleTrace(trace.Program{Name: "test"}, &trace.Tracer{})
	a.HandleReload(func(context.Context) admin.Reload { return *reloaded })
	entries := func() (all []zapcore.Entry) {
		for _, e := range logs.FilterMessage("administration").All() {
			all = append(all, e.Entry)
		}
		return all
	}
	last := func() map[string]any {
		found := logs.FilterMessage("administration").All()
		if len(found) == 0 {
			return nil
		}
		return found[len(found)-1].ContextMap()
	}
	return client, level, entries, last
}

func TestEveryChangeLeavesALineThatSaysWho(t *testing.T) {
	now := time.Now()
	reloaded := admin.Reload{Started: now, Ended: &now}
	client, level, entries, last := startAudited(t,
		"unix:"+filepath.Join(t.TempDir(), "admin.sock"), &reloaded)
	level.SetLevel(zap.ErrorLevel) // which does not hide the lines
	failed := admin.Reload{Started: now, Ended: &now, Error: "line 3: no"}
	for i, c := range []struct {
		method, path, body string
		reload             *admin.Reload
		operation, object  string
		detail, outcome    string
	}{
		{method: "POST", path: "/drain", operation: "drain", object: "daemon", outcome: "done"},
		{method: "DELETE", path: "/drain", operation: "resume", object: "daemon", outcome: "done"},
		{method: "POST", path: "/reload", operation: "reload", object: "daemon", outcome: "done"},
		{method: "POST", path: "/reload", reload: &failed, operation: "reload", object: "daemon",
			outcome: "BAD_CONFIG"},
		{method: "POST", path: "/reload", reload: &admin.Reload{Started: now},
			operation: "reload", object: "daemon", outcome: "IN_PROGRESS"},
		{method: "DELETE", path: "/sessions/7", operation: "end_session", object: "session 7",
			outcome: "done"},
		{method: "DELETE", path: "/sessions/8", operation: "end_session", object: "session 8",
			outcome: "NOT_FOUND"},
		{method: "DELETE", path: "/sessions/x%0Ay", operation: "end_session", object: "session x y",
			outcome: "INVALID_VALUE"},
		{method: "POST", path: "/volumes", body: `{"name":"a","backend":"memory:1MiB"}`,
			operation: "add_volume", object: "volume a", detail: "memory:1MiB", outcome: "done"},
		{method: "POST", path: "/volumes", body: `{`, operation: "add_volume", object: "volume",
			outcome: "INVALID_VALUE"},
		{method: "POST", path: "/volumes/a/size", body: `{"size_bytes":4096,"shrink":true}`,
			operation: "resize_volume", object: "volume a", detail: "to 4096 bytes, may shrink",
			outcome: "done"},
		{method: "DELETE", path: "/volumes/a?force=true", operation: "remove_volume",
			object: "volume a", detail: "by force", outcome: "done"},
		{method: "DELETE", path: "/volumes/a?wait_ms=x", operation: "remove_volume",
			object: "volume a", outcome: "INVALID_VALUE"},
		{method: "DELETE", path: "/volumes/a/holders/b", operation: "preempt_holder",
			object: "volume a", detail: "holder b", outcome: "done"},
		{method: "POST", path: "/trace", operation: "start_trace", object: "daemon",
			outcome: "done"},
		{method: "DELETE", path: "/trace", operation: "stop_trace", object: "daemon",
			outcome: "done"},
		{method: "PUT", path: "/loglevel", body: `{"level":"loud"}`, operation: "log_level",
			object: "log level", outcome: "INVALID_VALUE"},
		{method: "PUT", path: "/loglevel", body: `{"level":"warn"}`, operation: "log_level",
			object: "log level", detail: "from error to warn", outcome: "done"},
	} {
		if c.reload != nil {
			reloaded = *c.reload
		}
		do(t, client, c.method, "http://localhost"+c.path, c.body)
		testkit.Eventually(t, "a line for "+c.operation, func() bool { return len(entries()) > i })
		line := last()
		detail, _ := line["detail"].(string)
		if line["operation"] != c.operation || line["object"] != c.object || detail != c.detail ||
			line["outcome"] != c.outcome || (line["error"] == nil) != (c.outcome == "done") {
			t.Errorf("%s %s is logged as %v", c.method, c.path, line)
		}
		if line["via"] != "unix" || fmt.Sprint(line["pid"]) != fmt.Sprint(os.Getpid()) ||
			fmt.Sprint(line["user_id"]) != fmt.Sprint(os.Geteuid()) || len(entries()) != i+1 {
			t.Errorf("%s %s: %d lines, the last is %v", c.method, c.path, len(entries()), line)
		}
	}
	before := len(entries())
	for _, path := range []string{"/drain", "/sessions", "/volumes", "/loglevel", "/status"} {
		do(t, client, http.MethodGet, "http://localhost"+path, "")
	}
	if n := len(entries()); n != before {
		t.Errorf("reading leaves %d lines", n-before)
	}
}

// Any user can reach a loopback address, and the kernel does not say who has.
func TestAChangeOverTCPIsLoggedWithItsAddress(t *testing.T) {
	client, _, entries, last := startAudited(t, "127.0.0.1:0", &admin.Reload{})
	do(t, client, http.MethodPost, "http://localhost/drain", "")
	testkit.Eventually(t, "a line", func() bool { return len(entries()) == 1 })
	if line := last(); line["via"] != "tcp" || line["peer"] == "" || line["pid"] != nil {
		t.Errorf("the line is %v", line)
	}
}
