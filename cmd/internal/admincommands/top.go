// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

const defaultTopInterval = time.Second

// shortestTopInterval keeps the view from becoming a load on the daemon.
const shortestTopInterval = 100 * time.Millisecond

func newTopCommand(daemon Daemon) *cobra.Command {
	var connection Connection
	interval := defaultTopInterval
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch a running relay or target",
		Long: `top shows the channels or volumes of a daemon, its sessions, queues and workers, with live
rates, until q is pressed. The space bar pauses it; the arrows scroll. It needs a terminal,
for instance that of ssh; for programs there is "status -o json".`,
		Args: cobra.NoArgs,
	}
	connection.Add(cmd, daemon)
	cmd.Flags().DurationVar(&interval, "interval", interval, "time between two readings")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := connection.Client()
		if err != nil {
			return err
		}
		if interval < shortestTopInterval {
			return program.Usagef("--interval %v is shorter than %v", interval, shortestTopInterval)
		}
		if !output.IsTerminal(cmd.OutOrStdout()) {
			return program.Usagef("top needs a terminal: use \"status\"")
		}
		return runTop(cmd, client, interval)
	}
	return cmd
}

func runTop(cmd *cobra.Command, client *admin.Client, interval time.Duration) error {
	m := &top{ctx: cmd.Context(), client: client, interval: interval}
	first := m.read()
	if first.err != nil {
		return failure(first.err)
	}
	m.accept(first)
	_, err := tea.NewProgram(m, tea.WithContext(cmd.Context()),
		tea.WithOutput(cmd.OutOrStdout()), tea.WithInput(cmd.InOrStdin())).Run()
	if cmd.Context().Err() != nil {
		return nil // SIGTERM ends it like q
	}
	return err
}

// top is the model of the view (tea.Model).
type top struct {
	ctx      context.Context
	client   *admin.Client
	interval time.Duration

	now, before   *adminserver.Document
	err           error // of the last reading
	paused        bool
	width, height int
	scroll        int
	history       [len(graphs)][]float64 // oldest first
}

// graphs are the quantities with a sparkline.
var graphs = [...]struct {
	name   string
	value  func(rates) float64
	format func(rates) string
}{
	{"IOPS", func(r rates) float64 { return r.ios },
		func(r rates) string { return fmt.Sprintf("%.0f", r.ios) }},
	{"throughput", func(r rates) float64 { return r.bytes },
		func(r rates) string { return size.FormatThroughput(r.bytes) }},
	{"latency", func(r rates) float64 { return float64(r.latency) }, latencyOf},
	{"in flight", func(r rates) float64 { return float64(r.inFlight) },
		func(r rates) string { return strconv.FormatInt(r.inFlight, 10) }},
}

func latencyOf(r rates) string {
	if r.latency == 0 {
		return "-"
	}
	return size.FormatDuration(r.latency)
}

// reading is a status, or why there is none.
type reading struct {
	document *adminserver.Document
	err      error
}

type tick struct{}

func (m *top) read() reading {
	ctx, cancel := context.WithTimeout(m.ctx, DefaultTimeout)
	defer cancel()
	content, err := m.client.Status(ctx)
	if err != nil {
		return reading{err: err}
	}
	d := new(adminserver.Document)
	if err := json.Unmarshal(content, d); err != nil {
		return reading{err: fmt.Errorf("read the status: %w", err)}
	}
	return reading{document: d}
}

// accept makes a reading the current one.
func (m *top) accept(r reading) {
	if m.err = r.err; r.err != nil {
		return
	}
	if m.before = m.now; m.before != nil && !m.before.Started.Equal(r.document.Started) {
		m.before = nil // the daemon was restarted
	}
	m.now = r.document
	total := m.total()
	for i := range graphs {
		m.history[i] = append(m.history[i], graphs[i].value(total))
		if len(m.history[i]) > sparklineWidth {
			m.history[i] = m.history[i][1:]
		}
	}
}

func (m *top) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
}

// Init starts to read.
func (m *top) Init() tea.Cmd { return m.wait() }

// Update handles an event.
func (m *top) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch e := message.(type) {
	case tick:
		if m.paused {
			return m, m.wait()
		}
		return m, func() tea.Msg { return m.read() }
	case reading:
		m.accept(e)
		return m, m.wait()
	case tea.WindowSizeMsg:
		m.width, m.height = e.Width, e.Height
	case tea.KeyPressMsg:
		switch e.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		case "space":
			m.paused = !m.paused
		case "down", "j":
			m.scroll++
		case "up", "k":
			m.scroll = max(0, m.scroll-1)
		}
	}
	return m, nil
}

// seconds returns the time between the last two readings, 0 if there is only one.
func (m *top) seconds() float64 {
	if m.before == nil {
		return 0
	}
	return m.now.Now.Sub(m.before.Now).Seconds()
}

// total returns the rates of the whole daemon.
func (m *top) total() rates {
	var now, before counts
	for _, o := range ownersOf(m.now) {
		now.sum(&o.counts)
	}
	if m.before != nil {
		for _, o := range ownersOf(m.before) {
			before.sum(&o.counts)
		}
	}
	return ratesBetween(now, before, m.seconds())
}

func (c *counts) sum(other *counts) {
	c.ios += other.ios
	c.bytes += other.bytes
	c.sumNs += other.sumNs
	c.failed += other.failed
	c.inFlight += other.inFlight
	c.includeP99(other.p99)
}

// View returns the screen.
func (m *top) View() tea.View {
	v := tea.NewView(m.visible())
	v.AltScreen = true
	return v
}

// visible returns the lines that fit on the screen.
func (m *top) visible() string {
	lines := strings.Split(strings.TrimRight(m.text(), "\n"), "\n")
	m.scroll = min(m.scroll, max(0, len(lines)+1-m.height))
	if room := max(1, m.height-1); m.height > 0 && len(lines) > room {
		lines = lines[m.scroll:][:room]
	}
	if m.height != 1 {
		lines = append(lines, "q quits, space pauses, ↑↓ scroll")
	}
	for i, line := range lines {
		if m.width > 0 {
			lines[i] = shorten(line, m.width)
		}
	}
	return strings.Join(lines, "\n")
}

// wrap breaks a text at spaces into lines that fit on the screen.
func (m *top) wrap(text string) string {
	if m.width <= 0 {
		return text
	}
	var b strings.Builder
	length := 0
	for i, word := range strings.Split(text, " ") {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case length+1+n > m.width:
			b.WriteByte('\n')
			length = 0
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += n
	}
	return b.String()
}

func (m *top) text() string {
	d := m.now
	var b strings.Builder
	ready := "ready"
	if !d.Ready {
		ready = "not ready: " + d.Reason
	}
	b.WriteString(m.wrap(fmt.Sprintf("%s %s, process %d, up %v, %s", d.Program, d.Version, d.PID,
		d.Now.Sub(d.Started).Round(time.Second), ready)))
	switch {
	case m.err != nil:
		b.WriteString("\n" + m.wrap(fmt.Sprintf("no reading since %s: %v",
			d.Now.Format(time.TimeOnly), m.err)))
	case m.paused:
		b.WriteString("\npaused: the space bar continues")
	default:
		b.WriteString("\n" + m.wrap(channelSummary(d)+volumeSummary(d)))
	}
	b.WriteString("\n\n")
	total := m.total()
	for i, g := range graphs {
		const textWidth = 29
		shown := m.history[i]
		if room := m.width - textWidth; m.width > 0 && len(shown) > room {
			shown = shown[len(shown)-max(0, room):]
		}
		fmt.Fprintf(&b, "%-12s %14s  %s\n", g.name, g.format(total), sparkline(shown))
	}
	m.writeOwners(&b)
	m.writeSessions(&b)
	m.writeTargetSessions(&b)
	m.writeQueues(&b)
	m.writeWorkers(&b)
	return b.String()
}

// volumeSummary says on one line how many volumes are serving, and which are not; "" if there are
// none.
func volumeSummary(d *adminserver.Document) string {
	if len(d.Volumes) == 0 {
		return ""
	}
	var down []string
	for i := range d.Volumes {
		if v := &d.Volumes[i]; v.State != volume.Serving {
			down = append(down, fmt.Sprintf("%s (%s)", v.Name, v.State))
		}
	}
	text := fmt.Sprintf("volumes: %d of %d serving", len(d.Volumes)-len(down), len(d.Volumes))
	if len(down) > 0 {
		text += "; not serving: " + strings.Join(down, ", ")
	}
	return text
}

// formerOwners returns the channels or volumes of the reading before, by name.
func (m *top) formerOwners() map[string]owner {
	before := make(map[string]owner)
	if m.before != nil {
		for _, o := range ownersOf(m.before) {
			before[o.name] = o
		}
	}
	return before
}

func (m *top) writeOwners(b *strings.Builder) {
	before := m.formerOwners()
	t := table{heads: []string{"CHANNEL OR VOLUME", "STATE", "SESSIONS", "IOPS",
		"THROUGHPUT", "LATENCY", "P99", "IN FLIGHT", "FAILED/S"},
		texts: []string{"CHANNEL OR VOLUME", "STATE"}, width: m.width,
		optional: []string{"SESSIONS", "IN FLIGHT", "FAILED/S", "THROUGHPUT", "LATENCY"}}
	for _, o := range ownersOf(m.now) {
		r := ratesBetween(o.counts, before[o.name].counts, m.seconds())
		t.add(o.name, o.state, o.sessions, fmt.Sprintf("%.0f", r.ios),
			size.FormatThroughput(r.bytes), latencyOf(r), latencyText(o.counts.p99), r.inFlight,
			fmt.Sprintf("%.0f", r.failed))
	}
	t.write(b)
}

func (m *top) writeSessions(b *strings.Builder) {
	t := table{heads: []string{"SESSION", "CHANNEL", "CLIENT", "OPEN FOR", "QUEUES",
		"IOPS", "THROUGHPUT", "LATENCY", "P99", "IN FLIGHT", "FAILED/S", "NAME"},
		texts: []string{"CHANNEL", "NAME"}, width: m.width, optional: []string{"QUEUES", "OPEN FOR",
			"IN FLIGHT", "FAILED/S", "THROUGHPUT", "CLIENT", "LATENCY", "CHANNEL"}}
	now, before := sessionCounts(m.now), sessionCounts(m.before)
	for i := range m.now.Channels {
		c := &m.now.Channels[i]
		for j := range c.OpenSessions {
			s := &c.OpenSessions[j]
			client, seconds := strconv.Itoa(s.ClientPID), 0.0
			if s.ClientUnknown {
				client = "host"
			}
			if _, isListed := before[s.ID]; isListed {
				seconds = m.seconds()
			}
			r := ratesBetween(now[s.ID], before[s.ID], seconds)
			t.add(s.ID, c.FullName, client, m.now.Now.Sub(s.Opened).Round(time.Second),
				len(s.Queues), fmt.Sprintf("%.0f", r.ios), size.FormatThroughput(r.bytes),
				latencyOf(r), latencyText(now[s.ID].p99), r.inFlight,
				fmt.Sprintf("%.0f", r.failed), orNone(s.ClientName))
		}
	}
	t.write(b)
}

// writeTargetSessions writes the sessions of a target, without the standing connections of relays,
// which have no client and no queues.
func (m *top) writeTargetSessions(b *strings.Builder) {
	t := table{heads: []string{"SESSION", "VOLUME", "RELAY", "OPEN FOR", "QUEUES", "RDMA", "IOPS",
		"THROUGHPUT", "LATENCY", "IN FLIGHT", "FAILED/S", "NAME"},
		texts: []string{"VOLUME", "RELAY", "NAME"}, width: m.width, optional: []string{"QUEUES",
			"OPEN FOR", "IN FLIGHT", "FAILED/S", "THROUGHPUT", "RELAY", "RDMA", "VOLUME"}}
	before := make(map[uint64]counts)
	if m.before != nil {
		for i := range m.before.OpenSessions {
			before[m.before.OpenSessions[i].ID] = countsOf(&m.before.OpenSessions[i].IO)
		}
	}
	for i := range m.now.OpenSessions {
		s := &m.now.OpenSessions[i]
		if s.Client == "" && s.Queues == 0 {
			continue
		}
		seconds := 0.0
		was, isListed := before[s.ID]
		if isListed {
			seconds = m.seconds()
		}
		r := ratesBetween(countsOf(&s.IO), was, seconds)
		t.add(s.ID, orNone(s.Volume), s.Peer, m.now.Now.Sub(s.Opened).Round(time.Second), s.Queues,
			orNone(strings.Join(s.Transports, "+")), fmt.Sprintf("%.0f", r.ios),
			size.FormatThroughput(r.bytes), latencyOf(r), r.inFlight,
			fmt.Sprintf("%.0f", r.failed), orNone(s.Client))
	}
	t.write(b)
}

// writeQueues writes the queues that have done anything. The daemon counts queues of the same index
// in all sessions together.
func (m *top) writeQueues(b *strings.Builder) {
	before := m.formerOwners()
	t := table{heads: []string{"CHANNEL OR VOLUME", "QUEUE", "IOPS", "THROUGHPUT",
		"LATENCY", "P99", "IN FLIGHT", "FAILED/S"}, texts: []string{"CHANNEL OR VOLUME"},
		width: m.width, optional: []string{"IN FLIGHT", "FAILED/S", "THROUGHPUT", "LATENCY"}}
	for _, o := range ownersOf(m.now) {
		for _, index := range slices.Sorted(maps.Keys(o.queues)) {
			q := o.queues[index]
			if q.ios == 0 && q.inFlight == 0 {
				continue
			}
			r := ratesBetween(q, before[o.name].queues[index], m.seconds())
			t.add(o.name, index, fmt.Sprintf("%.0f", r.ios), size.FormatThroughput(r.bytes),
				latencyOf(r), latencyText(q.p99), r.inFlight, fmt.Sprintf("%.0f", r.failed))
		}
	}
	t.write(b)
}

func (m *top) writeWorkers(b *strings.Builder) {
	t := table{heads: []string{"WORKER", "CORE", "QUEUES", "HIT RATE", "SLEEPS/S",
		"LATE WAKE-UPS"}, width: m.width, optional: []string{"LATE WAKE-UPS", "SLEEPS/S"}}
	for i, w := range m.now.Workers {
		core, hitRate, sleeps := "any", "-", "-"
		if w.CPU != nil {
			core = strconv.Itoa(*w.CPU)
		}
		if seconds := m.seconds(); seconds > 0 && i < len(m.before.Workers) {
			was := m.before.Workers[i]
			hits, misses := grown(w.Hits, was.Hits), grown(w.Misses, was.Misses)
			if hits+misses > 0 {
				hitRate = fmt.Sprintf("%.1f %%", 100*hits/(hits+misses))
			}
			sleeps = fmt.Sprintf("%.0f", grown(w.Sleeps, was.Sleeps)/seconds)
		}
		t.add(w.Index, core, w.Queues, hitRate, sleeps, w.LateWakeups)
	}
	t.write(b)
}

// sparklineWidth is the number of readings that a sparkline shows.
const sparklineWidth = 60

// sparkline draws values relative to their maximum.
func sparkline(values []float64) string {
	const bars = "▁▂▃▄▅▆▇█"
	levels := []rune(bars)
	highest := 0.0
	for _, v := range values {
		highest = max(highest, v)
	}
	line := make([]rune, len(values))
	for i, v := range values {
		level := 0
		if highest > 0 {
			level = int(v / highest * float64(len(levels)-1))
		}
		line[i] = levels[level]
	}
	return string(line)
}
