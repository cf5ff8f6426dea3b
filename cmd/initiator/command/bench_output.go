// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
)

// streamSchema names the format of the lines of --json-stream. Within a version fields and events
// may be added, nothing else changes.
const streamSchema = "zc-relay.bench-stream/1"

// streamLine is one line of --json-stream.
type streamLine struct {
	Schema string `json:"schema"`
	// Event is "start", "interval", or "end".
	Event string `json:"event"`
	// Report is a bench.Report: with "start" without a result, with "end" the whole of it.
	Report   *bench.Report   `json:"report,omitempty"`
	Interval *bench.Interval `json:"interval,omitempty"`
}

// defaultStreamInterval is the interval of --json-stream.
const defaultStreamInterval = time.Second

// benchOutput holds the flags that decide what bench reports, and reports it.
type benchOutput struct {
	format     report.Output
	stream     bool
	interval   time.Duration
	histograms string // path of the file, "" for none
	title      string
	labels     []string
	dryRun     bool

	cmd     *cobra.Command
	columns bool // have been printed
}

func (o *benchOutput) add(cmd *cobra.Command) {
	o.cmd, o.format = cmd, report.Text
	f := cmd.Flags()
	o.format.AddFlag(f)
	f.DurationVar(&o.interval, "interval", 0,
		"report what completed in each interval, on standard error or with --json-stream (default there: 1s)")
	f.BoolVar(&o.stream, "json-stream", false,
		"print a line of JSON at the start, after each interval, and at the end")
	f.StringVar(&o.histograms, "hlog", "",
		"write the latencies to this file, in the format of HdrHistogram's logs")
	f.StringVar(&o.title, "title", "", "title of the run, in the report")
	f.StringArrayVar(&o.labels, "label", nil, "`NAME=VALUE` for the report; repeatable")
	f.BoolVar(&o.dryRun, "dry-run", false,
		"check the call and print the parameters, without a relay")
	cmd.MarkFlagsMutuallyExclusive("json-stream", "output")
}

// begin adds to a report what the user says of the run.
func (o *benchOutput) begin(r *bench.Report) error {
	r.Title, r.DryRun = o.title, o.dryRun
	for _, label := range o.labels {
		name, value, found := strings.Cut(label, "=")
		if !found || name == "" {
			return program.Usagef("--label %q is not of the form NAME=VALUE", label)
		}
		if r.Labels == nil {
			r.Labels = make(map[string]string)
		}
		r.Labels[name] = value
	}
	if o.stream && o.interval == 0 {
		o.interval = defaultStreamInterval
	}
	return nil
}

// write prints a line of the stream.
func (o *benchOutput) write(line streamLine) error {
	line.Schema = streamSchema
	content, err := json.Marshal(line)
	if err == nil {
		_, err = o.cmd.OutOrStdout().Write(append(content, '\n'))
	}
	if err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

// start reports that the run begins.
func (o *benchOutput) start(r *bench.Report) error {
	if !o.stream {
		return nil
	}
	r.Environment = report.CurrentEnvironment()
	return o.write(streamLine{Event: "start", Report: r})
}

// intervals returns what reports an interval, nil if nobody asks for them. A reader of the stream
// that has gone is noticed at the end.
func (o *benchOutput) intervals() func(bench.Interval) {
	switch {
	case o.interval == 0:
		return nil
	case o.stream:
		return func(i bench.Interval) { _ = o.write(streamLine{Event: "interval", Interval: &i}) }
	}
	return o.printInterval
}

// printInterval prints an interval as a row of a table.
func (o *benchOutput) printInterval(i bench.Interval) {
	w := o.cmd.ErrOrStderr()
	if !o.columns {
		o.columns = true
		fmt.Fprintf(w, "%15s %10s %14s %9s %9s %9s %9s\n", "interval s", "IOPS", "throughput",
			"p50", "p99", "max", "errors")
	}
	p50, p99, longest := "-", "-", "-"
	if l := i.LatencyNs; l != nil {
		p50, p99, longest = size.FormatDuration(time.Duration(l.P50)),
			size.FormatDuration(time.Duration(l.P99)), size.FormatDuration(time.Duration(l.Max))
	}
	stage := ""
	if i.WarmingUp {
		stage = "  (warm-up)"
	}
	fmt.Fprintf(w, "%7.2f-%-7.2f %10.0f %14s %9s %9s %9s %9d%s\n",
		time.Duration(i.StartNs).Seconds(), time.Duration(i.EndNs).Seconds(), i.IOPS,
		size.FormatThroughput(float64(i.BytesPerSecond)), p50, p99, longest, i.Errors, stage)
}

// openHistograms returns the file for histograms, nil if there is none, and what finishes it.
func (o *benchOutput) openHistograms() (w io.Writer, finish func(error) error, err error) {
	if o.histograms == "" {
		return nil, func(err error) error { return err }, nil
	}
	file, err := output.Create(o.histograms)
	if err != nil {
		return nil, nil, program.Usage(fmt.Errorf("--hlog: %w", err))
	}
	return file.Sink(), file.Finish, nil
}

// end prints the result, and returns failure, if any.
func (o *benchOutput) end(r *bench.Report, failure error) error {
	if !o.stream {
		worthText := (r.Volume != nil || r.DryRun && failure == nil) && !program.IsUsage(failure)
		return printResult(o.cmd, o.format, r, worthText, failure)
	}
	if err := o.write(streamLine{Event: "end", Report: r}); failure == nil {
		return err
	}
	return failure
}
