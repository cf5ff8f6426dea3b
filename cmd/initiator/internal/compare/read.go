// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/report"
)

// Results is the content of one file.
type Results struct {
	Environment report.Environment
	Cases       []benchsuite.Case
}

// largestFile is the number of bytes that are read at most.
const largestFile = 256 << 20

// Read reads a file with documents of "initiator bench", each of which is a run or a sweep, or of
// "make bench-chain".
func Read(path string) (*Results, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := parse(io.LimitReader(file, largestFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func parse(content io.Reader) (*Results, error) {
	r := &Results{}
	decoder := json.NewDecoder(content)
	for number := 1; ; number++ {
		var document json.RawMessage
		err := decoder.Decode(&document)
		if err == io.EOF {
			break
		}
		if err == nil {
			err = r.add(document)
		}
		if syntax, is := errors.AsType[*json.SyntaxError](err); is && number == 1 {
			return nil, fmt.Errorf("no result of \"initiator bench\", because it is not JSON (%w): "+
				"write one with bench -o json", syntax)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("document %d is incomplete: the run was cut off", number)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
	}
	if decoder.InputOffset() == 0 {
		return nil, errors.New("the file is empty: write a result to it with bench -o json")
	}
	if len(r.Cases) == 0 {
		return nil, errors.New("nothing was measured")
	}
	return r, nil
}

// add adds the cases of one document.
func (r *Results) add(document json.RawMessage) error {
	var kind struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(document, &kind); err != nil {
		return errors.New("no result of \"initiator bench -o json\", which is an object with a schema")
	}
	switch kind.Schema {
	case bench.Schema:
		return r.addRun(document)
	case bench.SweepSchema:
		return r.addSweep(document)
	case benchsuite.Schema:
		return r.addSuite(document)
	}
	return fmt.Errorf("no result of \"initiator bench -o json\": schema %q is none of %s and %s (of initiator bench) and %s (of make bench-chain)",
		kind.Schema, bench.Schema, bench.SweepSchema, benchsuite.Schema)
}

// failure returns the error that a document reports, nil if there is none.
func failure(f *report.Failure) error {
	if f == nil {
		return nil
	}
	return fmt.Errorf("the run failed (%s, %s): %s", f.Phase, f.Code, f.Message)
}

func (r *Results) addRun(document json.RawMessage) error {
	var b bench.Report
	if err := json.Unmarshal(document, &b); err != nil {
		return err
	}
	return r.addReport(&b)
}

func (r *Results) addSweep(document json.RawMessage) error {
	var s bench.Sweep
	if err := json.Unmarshal(document, &s); err != nil {
		return err
	}
	if err := failure(s.Error); err != nil {
		return err
	}
	for i, run := range s.Runs {
		if err := r.addReport(run); err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	return nil
}

func (r *Results) addReport(b *bench.Report) error {
	if err := failure(b.Error); err != nil {
		return err
	}
	if b.Result.Operations == 0 {
		return errors.New("nothing was measured")
	}
	r.Environment = b.Environment
	r.merge(benchsuite.Case{System: "zc-relay", Workload: workloadOf(b),
		Runs: []benchsuite.Run{runOf(&b.Result)}})
	return nil
}

// workloadOf returns the workload of a run of "initiator bench".
func workloadOf(b *bench.Report) benchsuite.Workload {
	p := &b.Parameters
	w := benchsuite.Workload{
		Pattern: p.Pattern, BlockSize: p.BlockSize, QueueDepth: p.QueueDepth, Queues: p.Queues,
		Sessions: max(1, p.Sessions), Poll: p.Poll,
	}
	if b.Volume != nil {
		w.Volume = b.Volume.Name
	}
	if p.Pattern == benchsuite.RandomMixed {
		w.Condition = fmt.Sprintf("%d %% reads", p.ReadPercent)
	}
	if p.Rate > 0 {
		w.Condition += fmt.Sprintf(" %d/s", p.Rate)
	}
	if p.Validate {
		w.Condition += " validated"
	}
	if p.InPlace {
		w.Condition += " in place"
	}
	w.Condition = strings.TrimSpace(w.Condition)
	return w
}

func (r *Results) addSuite(document json.RawMessage) error {
	var d benchsuite.Document
	if err := json.Unmarshal(document, &d); err != nil {
		return err
	}
	if err := failure(d.Error); err != nil {
		return err
	}
	r.Environment = d.Environment
	for _, c := range d.Cases {
		r.merge(c)
	}
	return nil
}

// merge adds the runs of a case to the known case with the same system and workload, if any.
func (r *Results) merge(c benchsuite.Case) {
	if len(c.Runs) == 0 {
		return
	}
	if known := r.find(&c); known != nil {
		known.Runs = append(known.Runs, c.Runs...)
		return
	}
	r.Cases = append(r.Cases, c)
}

// find returns the case with the system and workload of c, nil if there is none.
func (r *Results) find(c *benchsuite.Case) *benchsuite.Case {
	for i := range r.Cases {
		if r.Cases[i].System == c.System && r.Cases[i].Workload == c.Workload {
			return &r.Cases[i]
		}
	}
	return nil
}

// runOf returns the run in a result of "initiator bench".
func runOf(r *bench.Result) benchsuite.Run {
	run := benchsuite.Run{IOPS: r.IOPS, BytesPerSecond: r.BytesPerSecond}
	if l := r.LatencyNs; l != nil {
		run.LatencyNs = &benchsuite.Latency{
			Min: &l.Min, Mean: &l.Mean, P50: &l.P50, P90: &l.P90, P99: &l.P99, P999: &l.P999,
			P9999: &l.P9999, Max: &l.Max,
		}
	}
	return run
}
