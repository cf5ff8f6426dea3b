// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestATracerRecordsOnlyWhileItIsOn(t *testing.T) {
	var none *trace.Tracer
	none.Record(&trace.Record{ID: 1})
	if none.IsOn() {
		t.Error("nil is on")
	}
	var tracer trace.Tracer
	tracer.Record(&trace.Record{ID: 1})
	if records, _ := tracer.Stop(); tracer.IsOn() || len(records) != 0 {
		t.Errorf("a tracer that was never on has %v", records)
	}
	tracer.Start()
	tracer.Record(&trace.Record{ID: 2})
	tracer.Start() // forgets
	tracer.Record(&trace.Record{ID: 3})
	if !tracer.IsOn() {
		t.Error("the tracer is off after Start")
	}
	records, lost := tracer.Stop()
	tracer.Record(&trace.Record{ID: 4})
	if len(records) != 1 || records[0].ID != 3 || lost != 0 || tracer.IsOn() {
		t.Errorf("records %v, lost %d", records, lost)
	}
}

func TestATracerKeepsABoundedNumberOfRecords(t *testing.T) {
	var tracer trace.Tracer
	tracer.Start()
	r := trace.Record{}
	if n := testing.AllocsPerRun(trace.MaxRecords+9, func() { r.ID++; tracer.Record(&r) }); n != 0 {
		t.Errorf("recording allocates %v times", n)
	}
	records, lost := tracer.Stop()
	if len(records) != trace.MaxRecords || lost != 10 || records[0].ID != 1 ||
		records[len(records)-1].ID != trace.MaxRecords {
		t.Errorf("%d records, lost %d", len(records), lost)
	}
}

// The format is that of "Trace Event Format", section "Nestable Async Events".
func TestAFileHasThePartsOfEachIO(t *testing.T) {
	var content bytes.Buffer
	err := trace.NewFile(trace.Program{Name: "zc-relay", Process: 7, Next: "the target"},
		[]trace.Record{
			{ID: 0xab, Operation: iomsg.OpRead, Queue: 1, Offset: 4096, Size: 512,
				BeginNs: 1000, NextBeginNs: 2000, NextEndNs: 3000, EndNs: 4500},
			{ID: 0xac, Operation: iomsg.OpFlush, Result: status.IOFailed, BeginNs: 5000,
				NextBeginNs: 5500, EndNs: 6000},
		}, 3).Write(&content)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(content.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(`{
		"displayTimeUnit": "ns", "otherData": {"program": "zc-relay", "lost": 3}, "traceEvents": [
		{"name": "process_name", "ph": "M", "ts": 0, "pid": 7, "tid": 0, "args": {"name": "zc-relay"}},
		{"name": "zc-relay read", "ph": "b", "cat": "io", "id": "0xab", "ts": 1, "pid": 7, "tid": 1,
			"args": {"offset_bytes": 4096, "size_bytes": 512}},
		{"name": "wait for the target", "ph": "b", "cat": "io", "id": "0xab", "ts": 2, "pid": 7, "tid": 1},
		{"name": "wait for the target", "ph": "e", "cat": "io", "id": "0xab", "ts": 3, "pid": 7, "tid": 1},
		{"name": "zc-relay read", "ph": "e", "cat": "io", "id": "0xab", "ts": 4.5, "pid": 7, "tid": 1},
		{"name": "zc-relay flush", "ph": "b", "cat": "io", "id": "0xac", "ts": 5, "pid": 7, "tid": 0,
			"args": {"offset_bytes": 0, "size_bytes": 0}},
		{"name": "zc-relay flush", "ph": "e", "cat": "io", "id": "0xac", "ts": 6, "pid": 7, "tid": 0,
			"args": {"result": "IO_FAILED"}}
	]}`), &want); err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Errorf("the file differs (-want +got):\n%s", difference)
	}
}
