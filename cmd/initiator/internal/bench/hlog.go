package bench

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// writeHistograms writes the latencies of all workers, in nanoseconds, tagged "read" and "write". A
// kind without requests is left out.
func (c *Config) writeHistograms(workers []*worker) error {
	if c.Histograms == nil {
		return nil
	}
	total, now := newRecorder(), time.Now()
	for _, w := range workers {
		total.merge(w.recorder)
	}
	var log []*hdrhistogram.Histogram
	for i, d := range []*distribution{&total.read, &total.write} {
		if d.count == 0 {
			continue
		}
		d.histogram.SetTag([]string{"read", "write"}[i])
		d.histogram.SetStartTimeMs(now.Add(-c.Parameters.Runtime).UnixMilli())
		d.histogram.SetEndTimeMs(now.UnixMilli())
		log = append(log, d.histogram)
	}
	return writeLog(c.Histograms, now.UnixMilli(), log)
}

// writeLog writes histograms with their tags in the format of HdrHistogram's logs.
func writeLog(w io.Writer, startMs int64, histograms []*hdrhistogram.Histogram) error {
	log := hdrhistogram.NewHistogramLogWriter(w)
	steps := []func() error{log.OutputLogFormatVersion,
		func() error { return log.OutputStartTime(startMs) }, log.OutputLegend}
	for _, h := range histograms {
		steps = append(steps, func() error { return log.OutputIntervalHistogram(h) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("write histograms: %w", err)
		}
	}
	return nil
}

// MergeSchema names the format of a Merge. Within a version, fields may be added, nothing else
// changes.
const MergeSchema = "zc-relay.bench-merge/1"

// Merge holds the latencies of several logs taken together, as if one run had measured them.
type Merge struct {
	Schema string `json:"schema"`
	// Logs are the paths of the logs.
	Logs []string `json:"logs"`
	// Latencies are in the order of their tags.
	Latencies []MergedLatencies `json:"latencies"`
	Error     *report.Failure   `json:"error,omitempty"`

	histograms map[string]*hdrhistogram.Histogram // by tag
}

// MergedLatencies are the latencies with one tag. All values have the resolution of the histogram.
type MergedLatencies struct {
	Tag        string  `json:"tag"`
	Operations uint64  `json:"operations"`
	LatencyNs  Latency `json:"latency_ns"`
}

// NewMerge returns a Merge of no logs.
func NewMerge() *Merge {
	return &Merge{Schema: MergeSchema, Logs: []string{}, Latencies: []MergedLatencies{},
		histograms: make(map[string]*hdrhistogram.Histogram)}
}

// Limits of what Add reads.
const (
	maxLogBytes = 256 << 20
	maxTags     = 64
)

// Add adds the histograms of the log at path. The latencies in it are nanoseconds.
func (m *Merge) Add(path string) error {
	m.Logs = append(m.Logs, path)
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = file.Close() }()
	content := &io.LimitedReader{R: file, N: maxLogBytes + 1}
	log := hdrhistogram.NewHistogramLogReader(content)
	for found := false; ; found = true {
		h, err := log.NextIntervalHistogram()
		switch {
		case content.N == 0:
			return status.Errorf(status.TooBig, "log %s is larger than %d MiB", path, maxLogBytes>>20)
		case err != nil:
			return status.Errorf(status.InvalidValue,
				"log %s is no HdrHistogram log, or damaged (%v): write one with initiator bench --hlog",
				path, err)
		case h == nil && !found:
			return status.Errorf(status.InvalidValue,
				"log %s has no histogram: write one with initiator bench --hlog", path)
		case h == nil:
			return nil
		}
		if err := m.add(h); err != nil {
			return fmt.Errorf("log %s: %w", path, err)
		}
	}
}

func (m *Merge) add(h *hdrhistogram.Histogram) error {
	total, known := m.histograms[h.Tag()]
	if !known {
		if len(m.histograms) == maxTags {
			return status.Errorf(status.TooBig, "there are more than %d tags", maxTags)
		}
		total = hdrhistogram.New(1, longestLatencyNs, significantDigits)
		total.SetTag(h.Tag())
		total.SetStartTimeMs(math.MaxInt64)
		m.histograms[h.Tag()] = total
	}
	total.SetStartTimeMs(min(total.StartTimeMs(), h.StartTimeMs()))
	total.SetEndTimeMs(max(total.EndTimeMs(), h.EndTimeMs()))
	if dropped := total.Merge(h); dropped > 0 {
		return status.Errorf(status.TooBig,
			"%d latencies are longer than an hour: is the log in nanoseconds?", dropped)
	}
	return nil
}

// Complete computes Latencies from what was added.
func (m *Merge) Complete() {
	for _, tag := range slices.Sorted(maps.Keys(m.histograms)) {
		h := m.histograms[tag]
		d := distribution{histogram: h, count: uint64(h.TotalCount()), minNs: h.Min(),
			maxNs: h.Max()}
		if l := d.latency(); l != nil {
			l.Mean = int64(h.Mean())
			m.Latencies = append(m.Latencies,
				MergedLatencies{Tag: tag, Operations: d.count, LatencyNs: *l})
		}
	}
}

// WriteLog writes a log of one histogram for each tag.
func (m *Merge) WriteLog(w io.Writer) error {
	var log []*hdrhistogram.Histogram
	startMs := int64(math.MaxInt64)
	for _, tag := range slices.Sorted(maps.Keys(m.histograms)) {
		log = append(log, m.histograms[tag])
		startMs = min(startMs, m.histograms[tag].StartTimeMs())
	}
	return writeLog(w, startMs, log)
}

// WriteText prints a row for each tag.
func (m *Merge) WriteText(w io.Writer) error {
	t := &text{}
	t.Row("logs", "%d", len(m.Logs))
	for _, l := range m.Latencies {
		t.Row(l.name(), "%d operations", l.Operations)
	}
	t.latencyHeader()
	for _, l := range m.Latencies {
		t.latency(l.name(), &l.LatencyNs)
	}
	_, err := io.WriteString(w, t.String())
	return err
}

// name returns the tag, or what stands for none.
func (l *MergedLatencies) name() string {
	if l.Tag == "" {
		return "(no tag)"
	}
	return l.Tag
}
