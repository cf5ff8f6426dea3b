// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// Of three clients, the first is counted by its name.
func TestOperatorsSeeWhatEachClientDoes(t *testing.T) {
	s := newSite(t)
	ended := s.start("ZC_TARGET__OPERATIONS__LISTEN=127.0.0.1:0",
		"ZC_TARGET__OPERATIONS__ADMIN=unix:"+s.path("target.sock"),
		"ZC_TARGET__METRICS__PER_SESSION=1", "ZC_TARGET__METRICS__QUEUES=false",
		"ZC_RELAY__OPERATIONS__LISTEN=127.0.0.1:0",
		"ZC_RELAY__OPERATIONS__ADMIN=unix:"+s.path("relay.sock"),
		"ZC_RELAY__METRICS__PER_SESSION=1", "ZC_RELAY__METRICS__QUEUES=false")
	if ended != nil {
		t.Fatalf("%s ended at its start", ended.Name)
	}
	const blocks = 3
	for _, name := range []string{"bad\nname", "second", "third"} {
		v, err := client.Open(t.Context(), client.Config{
			Provider: emulated.New(emulated.Options{Directory: s.path("comch")}),
			Device:   emulated.DefaultHostDevice, Queues: 2, BufferSize: 4096,
			ControlTimeout: testkit.Patience, IOTimeout: testkit.Patience,
			Owner: client.NewOwner(name),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.Abort)
		for i := range blocks {
			if _, err := v.WriteAt(make([]byte, 4096), int64(i)*4096); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := admin.IO{Succeeded: blocks, Bytes: blocks * 4096}
	for _, d := range []struct {
		daemon *testkit.Process
		socket string
		labels string
	}{
		{s.relay, "relay.sock", `channel="[^"]+",client="%",op="write"`},
		{s.target, "target.sock", `client="%",op="write",volume="disk"`},
	} {
		a, err := admin.New("unix:" + s.path(d.socket))
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, d.socket+" lists what three sessions have done", func() bool {
			sessions, err := a.Sessions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			names := ""
			for _, session := range sessions {
				io := session.IO
				io.LatencyNs = 0
				if session.Volume == "disk" && io == want {
					names += session.Client + "|"
				}
			}
			return names == "bad name|second|third|"
		})
		for name, count := range map[string]string{"bad name": "3", "other": "6"} {
			pattern := regexp.MustCompile(`(?m)^zc_[a-z]+_client_io_total\{` +
				strings.ReplaceAll(d.labels, "%", name) + `\} ` + count + `$`)
			testkit.Eventually(t, "the metrics count "+name, func() bool {
				return pattern.MatchString(scrape(t, d.daemon))
			})
		}
		text := scrape(t, d.daemon)
		if strings.Contains(text, `queue="`) || strings.Contains(text, `client="second"`) {
			t.Errorf("there are metrics of queues, or of the second client:\n%s", text)
		}
		if !regexp.MustCompile(`(?m)^zc_[a-z]+_io_total\{[^}]*op="write"[^}]*\} 9$`).MatchString(text) {
			t.Error("the sum over all queues is missing")
		}
	}
	a, err := admin.New("unix:" + s.path("relay.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.EndSession(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	s.relay.AwaitLog(fmt.Sprintf(`"operation": "end_session", "object": "session 3", `+
		`"via": "unix", "user_id": %d, "pid": %d`, os.Geteuid(), os.Getpid()))
	content, err := a.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var document adminserver.Document
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	for _, session := range document.Channels[0].OpenSessions {
		writes := session.Operations["write"]
		if writes.Succeeded != blocks || writes.Latency.P99 == nil || session.ClientName == "" {
			t.Errorf("the status of session %d is %+v", session.ID, session)
		}
	}
}
