// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/target"
)

func newStatusCommand(daemon Daemon) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the status of a running relay or target",
		Long: `status queries a daemon on this machine, through its admin listener, for its channels,
sessions, queues and workers. docs/schemas/status.schema.json describes the JSON document.`,
		Args: cobra.NoArgs,
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		_ []string) error {
		content, err := client.Status(ctx)
		if err != nil {
			return o.report(cmd, operationStatus, program.CannotConnect(err))
		}
		if o.output == report.JSON && json.Valid(content) {
			// unchanged, also of a version that this program does not know
			_, err := cmd.OutOrStdout().Write(content)
			return err
		}
		var document adminserver.Document
		if err := json.Unmarshal(content, &document); err != nil {
			return o.report(cmd, operationStatus,
				fmt.Errorf("read the status of the daemon at %s: %w", o.address, err))
		}
		if document.Schema != adminserver.Schema {
			return fmt.Errorf("the daemon at %s reports its status as %q, but this program reads %q: use a program of the daemon's version, or -o json",
				o.address, document.Schema, adminserver.Schema)
		}
		writeStatus(cmd.OutOrStdout(), &document)
		return nil
	})
	return cmd
}

// writeStatus writes a status for people.
func writeStatus(w io.Writer, d *adminserver.Document) {
	fmt.Fprintf(w, "%s %s, process %d, up %v\n", d.Program, d.Version, d.PID,
		d.Now.Sub(d.Started).Round(time.Second))
	if d.Ready {
		fmt.Fprintln(w, "ready")
	} else {
		fmt.Fprintf(w, "not ready: %s\n", d.Reason)
	}
	if r := d.Reload; r != nil {
		fmt.Fprintf(w, "reload %v ago: %s\n", d.Now.Sub(r.Started).Round(time.Second),
			reloadText(r))
	}
	if len(d.RestartPending) > 0 {
		fmt.Fprintf(w, "restart pending: %s\n", strings.Join(d.RestartPending, ", "))
	}
	if s := d.Security; s != nil {
		fmt.Fprintf(w, "security: control %s, data %s, fabric %s\n", s.Control, s.Data, s.Fabric)
	}
	if d.Sessions != nil {
		fmt.Fprintf(w, "control connections: %d open, %d so far\n", d.Sessions.Open,
			d.Sessions.Total)
	}
	if summary := channelSummary(d); summary != "" {
		fmt.Fprintln(w, summary)
	}
	for i := range d.Channels {
		writeChannel(w, d.Now, &d.Channels[i])
	}
	for i := range d.Volumes {
		writeVolume(w, &d.Volumes[i], d.Now)
	}
	writeWorkers(w, d.Workers)
	writeFaults(w, d.Faults)
}

// channelSummary says on one line how many of the channels are ready, and which are not, with the
// state of the channel if clients cannot connect, or of its target; "" if there are no channels. A
// relay that is being drained is not ready although its channels are.
func channelSummary(d *adminserver.Document) string {
	if len(d.Channels) == 0 {
		return ""
	}
	var down []string
	for i := range d.Channels {
		switch c := &d.Channels[i]; {
		case isClosed(c):
			down = append(down, c.FullName+" ("+string(c.State)+")")
		case c.Link.State != relay.LinkReady:
			down = append(down, c.FullName+" (target "+linkStateText(c.Link.State)+")")
		}
	}
	up := len(d.Channels) - len(down)
	text := fmt.Sprintf("channels: %d of %d ready", up, len(d.Channels))
	if len(down) > 0 {
		text += "; not ready: " + strings.Join(down, ", ")
	}
	if !d.Ready && up > 0 {
		text += "; but the relay accepts no new sessions"
	}
	return text
}

// isClosed reports whether clients cannot connect. Relays of former releases do not say.
func isClosed(c *relay.ChannelStatus) bool {
	return c.State != "" && !c.Retiring && !relay.ChannelStates.Of(c.State).IsUsable
}

// listenText says why clients cannot connect, for people.
func listenText(c *relay.ChannelStatus, now time.Time) string {
	text := fmt.Sprintf("cannot connect for %v (%s)", now.Sub(c.Since).Round(time.Second), c.State)
	if !c.NextAttempt.IsZero() {
		text += fmt.Sprintf(", attempt %d follows in %v", c.Attempt+1,
			max(0, c.NextAttempt.Sub(now)).Round(time.Millisecond))
	}
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

func reloadText(r *admin.Reload) string {
	switch {
	case r.Error != "":
		return r.Error
	case r.Ended == nil:
		return "in progress"
	case len(r.Applied) == 0:
		return "done"
	}
	var keys []string
	for _, c := range r.Applied {
		keys = append(keys, c.Key)
	}
	return "done, applied " + strings.Join(keys, ", ")
}

func writeChannel(w io.Writer, now time.Time, c *relay.ChannelStatus) {
	fmt.Fprintf(w, "\nchannel %s\n", c.FullName)
	if isClosed(c) {
		fmt.Fprintf(w, "  clients   %s\n", listenText(c, now))
	}
	if !c.Target.IsValid() {
		fmt.Fprintf(w, "  target    not known yet, volume %s\n", c.Volume)
	} else {
		fmt.Fprintf(w, "  target    %s, volume %s: %s\n", c.Target, c.Volume,
			linkText(&c.Link, now))
	}
	for i := range c.Targets {
		if t := &c.Targets[i]; t.Address != c.Target {
			fmt.Fprintf(w, "  also      %s: %s\n", t.Address, linkText(&t.Link, now))
		}
	}
	if c.TargetMoves > 0 {
		fmt.Fprintf(w, "  moved     %s from one target to another\n", times(c.TargetMoves))
	}
	fmt.Fprintf(w, "  sessions  %d open, %d so far, %d refused, %s exported\n", c.Sessions,
		c.SessionsAccepted, c.SessionsRefused, size.FormatBytes(c.ExportedBytes))
	switch {
	case c.MemoryPathReason != "":
		fmt.Fprintf(w, "  memory    %s, because of %s\n", c.MemoryPath,
			strings.ReplaceAll(c.MemoryPathReason, "\n", "; "))
	case c.MemoryPath != "":
		fmt.Fprintf(w, "  memory    %s\n", c.MemoryPath)
	}
	if !c.QoS.IsZero() {
		fmt.Fprintf(w, "  limits    %s\n", limitsText(&c.QoS))
	}
	if c.Retiring {
		fmt.Fprintln(w, "  removed   from the configuration; waits for its sessions to end")
	}
	sessions := table{indent: "  ", heads: []string{"SESSION", "CLIENT", "USER", "NAME", "OPEN FOR",
		"QUEUES", "RDMA", "IOS", "FAILED", "BYTES", "MEAN", "THROTTLED", "IN FLIGHT OF DEPTH"},
		texts: []string{"NAME"}}
	for i := range c.OpenSessions {
		s := &c.OpenSessions[i]
		client, user := strconv.Itoa(s.ClientPID), strconv.FormatUint(uint64(s.ClientUID), 10)
		if s.ClientUnknown {
			client, user = "host", "-"
		}
		sum := countsOfSession(s)
		sessions.add(s.ID, client, user, orNone(s.ClientName),
			now.Sub(s.Opened).Round(time.Second), len(s.Queues), transportsOf(s), sum.ios,
			sum.failed, size.FormatBytes(sum.bytes), latencyText(sum.meanNs()), throttledOf(s),
			loadOf(s, sum.inFlight))
	}
	sessions.write(w)
	writeQueues(w, c.Queues)
}

// limitsText returns limits for people.
func limitsText(q *relay.QoS) string {
	var texts []string
	for _, level := range []struct {
		limits datapath.RateLimits
		whose  string
	}{{q.Channel, "in all"}, {q.Session, "a session"}} {
		if n := level.limits.IOPS; n > 0 {
			texts = append(texts, fmt.Sprintf("%d IOPS %s", n, level.whose))
		}
		if n := level.limits.Bandwidth; n > 0 {
			texts = append(texts, fmt.Sprintf("%s/s %s", size.FormatBytes(n), level.whose))
		}
	}
	return strings.Join(texts, ", ")
}

// throttledOf returns how long the limits made a session's queues wait, added up.
func throttledOf(s *relay.SessionStatus) time.Duration {
	var total time.Duration
	for _, q := range s.Queues {
		total += q.Throttled
	}
	return total.Round(time.Millisecond)
}

// transportsOf returns the RDMA transports of a session's queues, each once.
func transportsOf(s *relay.SessionStatus) string {
	var names []string
	for _, q := range s.Queues {
		if q.Transport != "" && !slices.Contains(names, q.Transport) {
			names = append(names, q.Transport)
		}
	}
	return orNone(strings.Join(names, "+"))
}

// loadOf returns the number of IOs in flight and their limit, and whether the session waits for its
// release, and why.
func loadOf(s *relay.SessionStatus, inFlight int64) string {
	depth := 0
	for _, q := range s.Queues {
		depth += q.Depth
	}
	text := fmt.Sprintf("%d of %d", inFlight, depth)
	if s.Unreleased {
		text += ", ended but not released"
		if s.UnreleasedReason != "" {
			text += ": " + s.UnreleasedReason
		}
	}
	return text
}

// linkStateText returns a state for people. Relays of former releases write "given_up".
func linkStateText(s relay.LinkState) string { return strings.ReplaceAll(string(s), "_", " ") }

func linkText(l *relay.LinkStatus, now time.Time) string {
	text := linkStateText(l.State)
	if l.Attempt > 0 {
		text += fmt.Sprintf(", attempt %d", l.Attempt)
		if l.MaxAttempts != nil {
			text += fmt.Sprintf(" of %d", *l.MaxAttempts)
		}
	}
	if l.NextAttempt != nil {
		text += fmt.Sprintf(", next in %v", max(0, l.NextAttempt.Sub(now)).Round(time.Millisecond))
	}
	if l.Losses > 0 {
		text += ", lost " + times(l.Losses)
	}
	if l.Reason != "" {
		text += ": " + l.Reason
	}
	return text
}

func writeVolume(w io.Writer, v *target.VolumeStatus, now time.Time) {
	readOnly := ""
	if v.ReadOnly {
		readOnly = ", read-only"
	}
	fmt.Fprintf(w, "\nvolume %s\n", v.Name)
	if v.Size > 0 { // it has been opened
		fmt.Fprintf(w, "  size  %s (%d bytes) in blocks of %d bytes%s, UUID %s\n",
			size.FormatBytes(v.Size), v.Size, v.BlockSize, readOnly, v.UUID)
	}
	state := string(v.State)
	if v.Reason != "" {
		state += " since " + v.Since.Format(time.RFC3339) + ": " + v.Reason
	}
	fmt.Fprintf(w, "  state %s\n", state)
	if !v.NextAttempt.IsZero() {
		fmt.Fprintf(w, "  open  attempt %d follows in %v\n", v.Attempt+1,
			max(0, v.NextAttempt.Sub(now)).Round(time.Millisecond))
	}
	if v.Holder != "" {
		fmt.Fprintf(w, "  open  exclusively by %s, holder %s\n", v.Holder, v.HolderID)
	}
	writeQueues(w, v.Queues)
}

func writeQueues(w io.Writer, queues []datapath.QueueStatus) {
	t := table{indent: "  ", heads: []string{"QUEUE", "OPERATION", "SUCCEEDED", "FAILED", "BYTES",
		"MEAN", "P50", "P99", "P99.9", "IN FLIGHT", "BACK PRESSURE"},
		texts: []string{"OPERATION", "FAILED", "BACK PRESSURE"}}
	for i := range queues {
		q := &queues[i]
		// Values of the whole queue are in the row of its first operation.
		index, inFlight, pressure := fmt.Sprint(q.Index), fmt.Sprint(q.InFlight),
			countsText(q.BackPressure)
		for _, name := range slices.Sorted(maps.Keys(q.Operations)) {
			o := q.Operations[name]
			l := &o.Latency
			t.add(index, name, o.Succeeded, countsText(o.Failed), size.FormatBytes(o.Bytes),
				latencyText(l.Mean), latencyText(l.P50), latencyText(l.P99), latencyText(l.P999),
				inFlight, pressure)
			index, inFlight, pressure = "", "", ""
		}
	}
	t.write(w)
}

func writeWorkers(w io.Writer, workers []datapath.WorkerStatus) {
	t := table{heads: []string{"WORKER", "CORE", "QUEUES", "POLL HITS", "MISSES", "SLEEPS",
		"LATE WAKE-UPS"}}
	for _, worker := range workers {
		core := "any"
		if worker.CPU != nil {
			core = fmt.Sprint(*worker.CPU)
		}
		t.add(worker.Index, core, worker.Queues, worker.Hits, worker.Misses, worker.Sleeps,
			worker.LateWakeups)
	}
	t.write(w)
}

func writeFaults(w io.Writer, faults []adminserver.Fault) {
	t := table{heads: []string{"FAULT RULE", "OPERATIONS", "MATCHES"},
		texts: []string{"FAULT RULE"}}
	for _, f := range faults {
		t.add(f.Rule, f.Operations, f.Matches)
	}
	t.write(w)
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func countsText(counts map[string]uint64) string {
	if len(counts) == 0 {
		return "0"
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}

// leastLatency is the bound of the first bucket of latencies, in nanoseconds. IOs that begin and
// end between two readings of the clock take no time at all.
var leastLatency = uint64(datapath.LatencyBound(0) * 1e9)

func latencyText(ns *uint64) string {
	switch {
	case ns == nil:
		return "-"
	case *ns <= leastLatency:
		return "<1µs"
	}
	return size.FormatDuration(time.Duration(*ns))
}
