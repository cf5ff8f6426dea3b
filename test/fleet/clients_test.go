// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"syscall"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

// client is an initiator that verifies a range of a volume until it is ended.
type client struct {
	*testkit.Process
	channel *channel
}

// pace delays each request of a client, so that fifty of them leave the processors to others.
// Requests do not wait in the relay, whose rate limits would raise an alert.
const pace = "volume:any:delay=80ms"

// verify starts an initiator that verifies a range of the volume of a channel.
func (f *fleet) verify(c *channel, more ...string) *testkit.Process {
	f.t.Helper()
	args := append([]string{testkit.Plain.Program(f.t, "initiator"), "verify", "--emulated-dir", c.relay.comch(),
		"--device", c.representor, "--command-channel-name", c.name, "--overwrite",
		"--queues", "1", "--queue-depth", "1", "--poll", "event", "--max-io-size", "8KiB",
		"--seed", fmt.Sprint(seedtest.Of(f.t)), "--output", "json"}, more...)
	// The daemons and Prometheus come first where processors are scarce.
	p := testkit.Start(f.t, exec.Command("nice", args...))
	p.Name = "verify on " + c.relay.name + " " + c.name
	return p
}

// startClient starts a client that reopens the volume when it loses it.
func (f *fleet) startClient(c *channel) *client {
	return &client{channel: c, Process: f.verify(c, "--length", "128KiB", "--runtime", "24h",
		"--reconnect", "--allow-faults", "--fault", pace)}
}

// verification is the part of a report that the test looks at.
type verification struct {
	Result struct {
		PassesCompleted int            `json:"passes_completed"`
		BlocksChecked   int            `json:"blocks_checked"`
		Errors          int            `json:"errors"`
		ErrorsByCause   map[string]int `json:"errors_by_cause"`
		FindingCount    int            `json:"finding_count"`
		Interrupted     bool           `json:"interrupted"`
		Reconnections   struct {
			Count int `json:"count"`
		} `json:"reconnections"`
	} `json:"result"`
}

// reportOf returns the report of an initiator that has ended.
func (f *fleet) reportOf(p *testkit.Process) (report verification) {
	f.t.Helper()
	if err := json.Unmarshal([]byte(p.Stdout.String()), &report); err != nil {
		f.t.Errorf("%s: no report: %v", p.Name, err)
	}
	return report
}

// endClients ends all clients and checks what they report.
func (f *fleet) endClients() {
	f.t.Helper()
	for _, c := range f.clients {
		if c.HasEnded() {
			f.t.Errorf("%s has ended before", c.Name)
		}
		c.Signal(syscall.SIGINT)
	}
	var checked, reopened int
	for _, c := range f.clients {
		f.receive(c.Name+" ends", c.Ended())
		r := f.reportOf(c.Process).Result
		checked += r.BlocksChecked
		reopened += r.Reconnections.Count
		if !r.Interrupted || r.Errors != 0 || r.FindingCount != 0 || r.PassesCompleted == 0 {
			f.t.Errorf("%s: %+v", c.Name, r)
		}
	}
	f.t.Logf("%d clients have checked %d blocks, and reopened their volumes %d times",
		len(f.clients), checked, reopened)
}
