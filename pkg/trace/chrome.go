// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// File is a trace in the JSON format of Chrome's trace viewer, which Perfetto reads, too ("Trace
// Event Format"). Files of several programs are combined by joining their TraceEvents.
type File struct {
	TraceEvents []event `json:"traceEvents"`
	// DisplayTimeUnit makes viewers show nanoseconds.
	DisplayTimeUnit string `json:"displayTimeUnit"`
	OtherData       origin `json:"otherData"`
}

// origin says where a file comes from.
type origin struct {
	Program string `json:"program"`
	// Lost is how many IOs are missing because there were too many.
	Lost uint64 `json:"lost"`
}

// event is the start or the end of a part of an IO, or the name of a process. All parts of an IO
// have its ID.
type event struct {
	Name  string `json:"name"`
	Phase string `json:"ph"`
	// Category and ID belong to asynchronous events: IOs of a queue overlap.
	Category string `json:"cat,omitempty"`
	ID       string `json:"id,omitempty"`
	// Timestamp is in microseconds since 1970.
	Timestamp float64        `json:"ts"`
	Process   int            `json:"pid"`
	Thread    int            `json:"tid"` // the queue
	Arguments map[string]any `json:"args,omitempty"`
}

// Program names the program of a file.
type Program struct {
	Name    string // as viewers show it
	Process int    // its ID
	// Next is what the program passes IOs on to.
	Next string
}

// NewFile returns the trace of a program.
func NewFile(p Program, records []Record, lost uint64) *File {
	f := &File{DisplayTimeUnit: "ns", OtherData: origin{Program: p.Name, Lost: lost},
		TraceEvents: []event{{Name: "process_name", Phase: "M", Process: p.Process,
			Arguments: map[string]any{"name": p.Name}}}}
	for i := range records {
		f.add(&p, &records[i])
	}
	return f
}

func (f *File) add(p *Program, r *Record) {
	part := func(name, phase string, atNs int64, arguments map[string]any) {
		f.TraceEvents = append(f.TraceEvents, event{Name: name, Phase: phase, Category: "io",
			ID: fmt.Sprintf("%#x", r.ID), Timestamp: float64(atNs) / 1000, Process: p.Process,
			Thread: r.Queue, Arguments: arguments})
	}
	name := p.Name + " " + r.Operation.String()
	part(name, "b", r.BeginNs, map[string]any{"offset_bytes": r.Offset, "size_bytes": r.Size})
	if r.NextBeginNs != 0 && r.NextEndNs != 0 {
		part("wait for "+p.Next, "b", r.NextBeginNs, nil)
		part("wait for "+p.Next, "e", r.NextEndNs, nil)
	}
	var outcome map[string]any
	if r.Result != status.Success {
		outcome = map[string]any{"result": r.Result.String()}
	}
	part(name, "e", r.EndNs, outcome)
}

// Write writes the file as JSON.
func (f *File) Write(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(f); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}
