package statusreport

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/zc-relay/zc-relay/internal/size"
)

// WriteText writes the status for people.
func (d *Document) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s %s, process %d, up %v\n", d.Program, d.Version, d.PID,
		d.Now.Sub(d.Started).Round(time.Second))
	if d.Ready {
		fmt.Fprintln(w, "ready")
	} else {
		fmt.Fprintf(w, "not ready: %s\n", d.Reason)
	}
	if r := d.Reload; r != nil {
		fmt.Fprintf(w, "reload %v ago: %s\n", d.Now.Sub(r.Started).Round(time.Second), r.text())
	}
	if d.Sessions != nil {
		fmt.Fprintf(w, "control connections: %d open, %d so far\n", d.Sessions.Open,
			d.Sessions.Total)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := range d.Channels {
		d.writeChannel(table, &d.Channels[i])
	}
	for i := range d.Volumes {
		writeVolume(table, &d.Volumes[i])
	}
	writeWorkers(table, d.Workers)
	writeFaults(table, d.Faults)
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	return nil
}

func (r *Reload) text() string {
	switch {
	case r.Error != "":
		return r.Error
	case r.Ended == nil:
		return "in progress"
	}
	return "done"
}

func (d *Document) writeChannel(w io.Writer, c *Channel) {
	fmt.Fprintf(w, "\nchannel %s\n", c.Name)
	fmt.Fprintf(w, "  target\t%s, volume %s: %s\n", c.Target, c.Volume, c.Link.text(d.Now))
	fmt.Fprintf(w, "  sessions\t%d open, %d so far, %d refused, %s exported\n", c.Open, c.Total,
		c.Refused, size.Bytes(c.Exported))
	if c.Retiring {
		fmt.Fprintln(w, "  removed\tfrom the configuration; waits for its sessions to end")
	}
	if len(c.Sessions) > 0 {
		fmt.Fprintln(w, "\n  SESSION\tCLIENT\tUSER\tOPEN FOR\tQUEUES\tIN FLIGHT OF DEPTH")
	}
	for i := range c.Sessions {
		s := &c.Sessions[i]
		client, user := strconv.Itoa(s.ClientPID), strconv.FormatUint(uint64(s.ClientUID), 10)
		if s.ClientUnknown {
			client, user = "host", "-"
		}
		fmt.Fprintf(w, "  %d\t%s\t%s\t%v\t%d\t%s\n", s.ID, client, user,
			d.Now.Sub(s.Opened).Round(time.Second), len(s.Queues), s.load())
	}
	writeQueues(w, c.Queues)
}

// load returns the number of IOs in flight and their limit, and whether the session waits for its
// release.
func (s *Session) load() string {
	inFlight, depth := 0, 0
	for _, q := range s.Queues {
		inFlight += q.InFlight
		depth += q.Depth
	}
	text := fmt.Sprintf("%d of %d", inFlight, depth)
	if s.Unreleased {
		text += ", ended but not released"
	}
	return text
}

func (l *Link) text(now time.Time) string {
	text := strings.ReplaceAll(l.State, "_", " ")
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
		text += fmt.Sprintf(", lost %d times", l.Losses)
	}
	if l.Reason != "" {
		text += ": " + l.Reason
	}
	return text
}

func writeVolume(w io.Writer, v *Volume) {
	readOnly := ""
	if v.ReadOnly {
		readOnly = ", read-only"
	}
	fmt.Fprintf(w, "\nvolume %s\n  size\t%s (%d bytes) in blocks of %d bytes%s, UUID %s\n", v.Name,
		size.Bytes(v.Size), v.Size, v.BlockSize, readOnly, v.UUID)
	writeQueues(w, v.Queues)
}

func writeQueues(w io.Writer, queues []Queue) {
	if len(queues) == 0 {
		return
	}
	fmt.Fprintln(w,
		"\n  QUEUE\tOPERATION\tSUCCEEDED\tFAILED\tBYTES\tMEAN\tP50\tP99\tIN FLIGHT\tBACK PRESSURE")
	for i := range queues {
		q := &queues[i]
		// Values of the whole queue are in the row of its first operation.
		index, rest := fmt.Sprint(q.Index), fmt.Sprintf("\t%d\t%s", q.InFlight,
			countsText(q.BackPressure))
		for _, name := range slices.Sorted(maps.Keys(q.Operations)) {
			o := q.Operations[name]
			fmt.Fprintf(w, "  %s\t%s\t%d\t%s\t%s\t%s\t%s\t%s%s\n", index, name, o.Succeeded,
				countsText(o.Failed), size.Bytes(o.Bytes),
				latencyText(o.Latency.Mean), latencyText(o.Latency.P50), latencyText(o.Latency.P99),
				rest)
			index, rest = "", ""
		}
	}
}

func writeWorkers(w io.Writer, workers []Worker) {
	fmt.Fprintln(w, "\nWORKER\tCORE\tQUEUES\tPOLL HITS\tMISSES\tSLEEPS\tLATE WAKE-UPS")
	for _, worker := range workers {
		core := "any"
		if worker.CPU != nil {
			core = fmt.Sprint(*worker.CPU)
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\t%d\n", worker.Index, core, worker.Queues,
			worker.Hits, worker.Misses, worker.Sleeps, worker.LateWakeups)
	}
}

func writeFaults(w io.Writer, faults []Fault) {
	if len(faults) == 0 {
		return
	}
	fmt.Fprintln(w, "\nFAULT RULE\tOPERATIONS\tMATCHES")
	for _, f := range faults {
		fmt.Fprintf(w, "%s\t%d\t%d\n", f.Rule, f.Operations, f.Matches)
	}
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

func latencyText(ns *uint64) string {
	if ns == nil {
		return "-"
	}
	return time.Duration(*ns).Round(100 * time.Nanosecond).String()
}
