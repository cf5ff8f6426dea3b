package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/program/report/schematest"
	"github.com/zc-relay/zc-relay/internal/statusreport"
)

// startAdministeredChain is a chain whose relay has an admin socket, which is
// returned.
func startAdministeredChain(t *testing.T) (c *chain, admin string) {
	t.Helper()
	c = &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"}, address: listenAddress()}
	admin = "unix:" + filepath.Join(c.dir, "admin.sock")
	c.startTarget("--metrics-listen", "127.0.0.1:0")
	c.relay = c.startRelay("comch", "--metrics-listen", "127.0.0.1:0", "--admin-listen", admin)
	return c, admin
}

func TestStatusShowsTheSessionsThatAreOpen(t *testing.T) {
	c, admin := startAdministeredChain(t)
	c.startIO(bench(8)...)
	schema := schematest.Read(t, "../../docs/status.schema.json")
	var d statusreport.Document
	eventually(t, "the status shows a session with IO", func() bool {
		p := spawn(t, "zc-relay", "status", "--admin", admin, "-o", "json")
		if p.wait() != 0 {
			t.Fatal("status failed")
		}
		d = statusreport.Document{}
		var document any
		for _, into := range []any{&d, &document} {
			if err := json.Unmarshal([]byte(p.stdout.String()), into); err != nil {
				t.Fatal(err)
			}
		}
		for _, problem := range schema.Check(document) {
			t.Error(problem)
		}
		return len(d.Channels) == 1 && d.Channels[0].Open == 1 && len(d.Channels[0].Queues) > 0 && d.Channels[0].Queues[0].Operations["read"].Succeeded > 0
	})
	if !d.Ready || d.Channels[0].Link.State != "ready" || d.Channels[0].Volume != "disk" {
		t.Errorf("the status is %+v", d)
	}
	p := spawn(t, "zc-relay", "status", "--admin", admin)
	if code, text := p.wait(), p.stdout.String(); code != 0 || !strings.Contains(text, "volume disk: ready") || !strings.Contains(text, "sessions  1 open") {
		t.Errorf("status as text ended with %d:\n%s", code, text)
	}
}

func TestStatusSaysWhyThereIsNone(t *testing.T) {
	p := spawn(t, "zc-relay", "status", "--admin", "unix:"+filepath.Join(t.TempDir(), "none"))
	if code := p.wait(); code != 3 || !strings.Contains(p.stderr.String(), "does it run with --admin-listen") {
		t.Errorf("status ended with %d", code)
	}
	if p = spawn(t, "zc-relay", "status", "--admin", "somewhere"); p.wait() != 2 {
		t.Error("an address that is none is no usage error")
	}
}
