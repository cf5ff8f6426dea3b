// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// writeHistograms writes the latencies of all workers, in nanoseconds, tagged "read" and "write". A
// kind without requests is left out.
func (c *Config) writeHistograms(run *supervisor.Supervisor, workers []*worker) error {
	if c.Histograms == nil {
		return nil
	}
	total := newRecorder()
	for _, w := range workers {
		total.merge(w.recorder)
	}
	first, last := measuredBetween(workers)
	startMs := run.WallTime(first).UnixMilli()
	var log []*hdrhistogram.Histogram
	for i, d := range []*distribution{&total.read, &total.write} {
		if d.count == 0 {
			continue
		}
		d.histogram.SetTag([]string{"read", "write"}[i])
		d.histogram.SetStartTimeMs(startMs)
		d.histogram.SetEndTimeMs(run.WallTime(last).UnixMilli())
		log = append(log, d.histogram)
	}
	return writeLog(c.Histograms, startMs, log)
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

// mergeSchema names the format of a Merge. Within a version, fields may be added, nothing else
// changes.
const mergeSchema = "zc-relay.bench-merge/1"

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
	return &Merge{Schema: mergeSchema, Logs: []string{}, Latencies: []MergedLatencies{},
		histograms: make(map[string]*hdrhistogram.Histogram)}
}

// Limits of what Add reads.
const (
	maxLogBytes  = 64 << 20
	maxLineBytes = 1 << 20
	maxTags      = 64
)

// Add adds the histograms of the log at path. The latencies in it are nanoseconds. Add fails if any
// line is damaged: percentiles of a part would be wrong.
func (m *Merge) Add(ctx context.Context, path string) error {
	m.Logs = append(m.Logs, path)
	about, err := os.Stat(path)
	if err == nil && !about.Mode().IsRegular() {
		err = status.Errorf(status.InvalidValue, "%s is not a regular file", path)
	}
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = file.Close() }()
	content := &io.LimitedReader{R: file, N: maxLogBytes + 1}
	lines := bufio.NewScanner(content)
	lines.Buffer(nil, maxLineBytes)
	var times logTimes
	found := false
	for number := 1; lines.Scan(); number++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("merge logs: %w", err)
		}
		line := strings.TrimSpace(lines.Text())
		if line == "" || times.note(line) || strings.HasPrefix(line, `"StartTimestamp"`) {
			continue
		}
		h, err := times.decode(line)
		if err == nil {
			err = m.add(h)
		}
		if err != nil {
			return status.Errorf(status.InvalidValue, "log %s, line %d: %w", path, number, err)
		}
		found = true
	}
	switch {
	case content.N == 0:
		return status.Errorf(status.TooBig, "log %s is larger than %d MiB", path, maxLogBytes>>20)
	case lines.Err() != nil:
		return fmt.Errorf("log %s: %w", path, lines.Err())
	case !found:
		return status.Errorf(status.InvalidValue,
			"log %s contains no histograms: write one with initiator bench --hlog", path)
	}
	return nil
}

// logTimes is what a log says about its times, in seconds since the epoch.
type logTimes struct{ start, base float64 }

// maxTime bounds times, in seconds: the year 36812.
const maxTime = 1 << 40

// note reports whether a line is a comment, and notes the times in it.
func (t *logTimes) note(line string) bool {
	// A comment in another form is no error.
	_, _ = fmt.Sscanf(line, "#[StartTime: %f", &t.start)
	_, _ = fmt.Sscanf(line, "#[BaseTime: %f", &t.base)
	return strings.HasPrefix(line, "#")
}

var errNoLog = errors.New("not a line of an HdrHistogram log, which " +
	"\"initiator bench --hlog FILE\" writes")

// decode decodes a line of the form [Tag=TAG,]BEGIN,LENGTH,MAXIMUM,HISTOGRAM.
func (t *logTimes) decode(line string) (*hdrhistogram.Histogram, error) {
	fields := strings.Split(line, ",")
	tag, hasTag := strings.CutPrefix(fields[0], "Tag=")
	if hasTag {
		fields = fields[1:]
	} else {
		tag = ""
	}
	if len(fields) != 4 {
		return nil, errNoLog
	}
	begin, err := strconv.ParseFloat(fields[0], 64)
	length, lengthErr := strconv.ParseFloat(fields[1], 64)
	if err != nil || lengthErr != nil {
		return nil, errNoLog
	}
	const year = 365 * 24 * 60 * 60
	switch {
	case t.base != 0:
		begin += t.base
	case begin < t.start-year: // it counts from the start of the log
		begin += t.start
	}
	if !(begin >= 0 && length >= 0 && begin+length <= maxTime) {
		return nil, fmt.Errorf("it begins at %v and takes %v seconds", begin, length)
	}
	h, err := hdrhistogram.Decode([]byte(fields[3]))
	if err != nil {
		return nil, err
	}
	h.SetTag(tag)
	h.SetStartTimeMs(int64(begin * 1000))
	h.SetEndTimeMs(int64((begin + length) * 1000))
	return h, nil
}

func (m *Merge) add(h *hdrhistogram.Histogram) error {
	total, known := m.histograms[h.Tag()]
	if !known {
		if len(m.histograms) == maxTags {
			return fmt.Errorf("there are more than %d tags", maxTags)
		}
		total = hdrhistogram.New(1, longestLatencyNs, significantDigits)
		total.SetTag(h.Tag())
		total.SetStartTimeMs(math.MaxInt64)
		m.histograms[h.Tag()] = total
	}
	if h.TotalCount() > math.MaxInt64-total.TotalCount() {
		return errors.New("there are more latencies than can be counted")
	}
	total.SetStartTimeMs(min(total.StartTimeMs(), h.StartTimeMs()))
	total.SetEndTimeMs(max(total.EndTimeMs(), h.EndTimeMs()))
	if dropped := total.Merge(h); dropped > 0 {
		return fmt.Errorf("%d latencies are longer than an hour: is the log in nanoseconds?",
			dropped)
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

// name returns the tag as it can be printed, or what stands for none.
func (l *MergedLatencies) name() string {
	if l.Tag == "" {
		return "(no tag)"
	}
	if quoted := strconv.Quote(l.Tag); quoted != `"`+l.Tag+`"` {
		return quoted
	}
	return l.Tag
}
