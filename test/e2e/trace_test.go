// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// tracedIDs returns how many events of each name a trace has by ID.
func tracedIDs(t *testing.T, path string) map[string]map[string]int {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var f trace.File
	if err := json.Unmarshal(content, &f); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	ids := make(map[string]map[string]int)
	for _, e := range f.TraceEvents {
		if e.ID == "" {
			continue
		}
		if ids[e.ID] == nil {
			ids[e.ID] = make(map[string]int)
		}
		ids[e.ID][e.Name]++
	}
	return ids
}

func TestAnIOIsTracedThroughTheWholeChain(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(t)}
	relayAdmin := "unix:" + filepath.Join(c.dir, "relay.sock")
	targetAdmin := "unix:" + filepath.Join(c.dir, "target.sock")
	c.startTarget("--admin-listen", targetAdmin)
	c.relay = c.startRelay("comch", "--admin-listen", relayAdmin)
	file := func(name string) string { return filepath.Join(c.dir, name+".json") }
	schema := schematest.Read(t, "../../docs/schemas/administration.schema.json")
	client := c.initiator("bench", "--rw", "randwrite", "--runtime", "1h", "--warmup", "0s",
		"--queue-depth", "4", "--trace", file("initiator"), "--trace-every", "100", "--overwrite")
	for i := 0; ; i++ {
		daemons := []*testkit.Process{
			spawn(t, "zc-relay", "trace", file("relay"), "--admin", relayAdmin, "--duration", "2s"),
			spawn(t, "target", "trace", file("target"), "--admin", targetAdmin, "--duration", "2s",
				"-o", "json"),
		}
		for _, d := range daemons {
			if code := d.Wait(); code != 0 {
				t.Fatalf("trace exited with %d: %s", code, d.Stderr.String())
			}
		}
		if text := daemons[0].Stderr.String(); !strings.Contains(text, "traced ") {
			t.Fatalf("trace prints %q", text)
		}
		var document map[string]any
		if err := json.Unmarshal([]byte(daemons[1].Stdout.String()), &document); err != nil {
			t.Fatal(err)
		}
		if err := schema.Check(document); err != nil || document["trace"] == nil {
			t.Fatalf("trace prints %v: %v", document, err)
		}
		if relay := tracedIDs(t, file("relay")); len(relay) > 0 || i == 60 {
			break
		}
	}
	client.Signal(os.Interrupt)
	client.Wait()
	initiator, relay, target := tracedIDs(t, file("initiator")), tracedIDs(t, file("relay")),
		tracedIDs(t, file("target"))
	common := 0
	for id, parts := range relay {
		if parts["zc-relay write"] != 2 || parts["wait for the target"] != 2 {
			t.Errorf("the relay's trace of %s has %v", id, parts)
		}
		if initiator[id]["initiator write"] == 2 && target[id]["target write"] == 2 &&
			target[id]["wait for the volume"] == 2 {
			common++
		}
	}
	if common == 0 {
		t.Errorf("no IO of %d at the initiator, %d at the relay, and %d at the target is the same",
			len(initiator), len(relay), len(target))
	}
}
