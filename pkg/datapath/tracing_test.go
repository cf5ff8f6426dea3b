// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// expectRecord checks the only record of a tracer, of an IO that began after the given time.
func expectRecord(t *testing.T, tracer *trace.Tracer, begun time.Time, want trace.Record) {
	t.Helper()
	records, lost := tracer.Stop()
	if len(records) != 1 || lost != 0 {
		t.Fatalf("%d records, %d lost: %+v", len(records), lost, records)
	}
	r := records[0]
	// Both clocks are read one after the other, so the times are not exact.
	earliest := begun.Add(-time.Second).UnixNano()
	if r.BeginNs < earliest || r.NextBeginNs < r.BeginNs || r.NextEndNs < r.NextBeginNs ||
		r.EndNs < r.NextEndNs || r.EndNs > time.Now().Add(time.Second).UnixNano() {
		t.Errorf("the times are not in order: %+v", r)
	}
	r.BeginNs, r.NextBeginNs, r.NextEndNs, r.EndNs = 0, 0, 0, 0
	if r != want {
		t.Errorf("recorded %+v, want %+v", r, want)
	}
}

func TestARelayLaneRecordsTracedIOs(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	begun := time.Now()
	for id, isTraced := range map[uint32]bool{76: false, 77: true} {
		r.tracer.Start()
		request := readRequest(42)
		request.Trace = id
		if isTraced {
			request.Flags = iomsg.Traced
		}
		r.client.send(request)
		m := r.target.receive(iomsg.DataConnection)
		if m.Trace != id {
			t.Errorf("the target gets trace %d, want %d", m.Trace, id)
		}
		m.Type, m.Result = iomsg.Result, status.IOFailed
		r.target.send(iomsg.DataConnection, &m)
		r.response()
		if !isTraced {
			if records, _ := r.tracer.Stop(); len(records) != 0 {
				t.Errorf("an IO that is not traced is recorded: %+v", records)
			}
			continue
		}
		expectRecord(t, &r.tracer, begun, trace.Record{ID: id, Operation: iomsg.OpRead,
			Result: status.IOFailed, Queue: testQueue, Offset: request.StorageOffset,
			Size: request.IOSize})
	}
}

func TestATargetLaneRecordsTracedIOs(t *testing.T) {
	r := newTargetRig(t)
	begun := time.Now()
	r.tracer.Start()
	for flags, id := range map[iomsg.Flags]uint32{0: 79, iomsg.Traced: 78} {
		r.relay.send(iomsg.DataConnection, &iomsg.Message{Type: iomsg.Write, IOSize: testBlockSize,
			StorageOffset: 7 * testBlockSize, Flags: flags, Trace: id})
		if got := r.relay.receive(iomsg.DataConnection); got.Result != status.Success ||
			got.Trace != id {
			t.Errorf("completed with %+v", got)
		}
	}
	expectRecord(t, &r.tracer, begun, trace.Record{ID: 78, Operation: iomsg.OpWrite,
		Queue: testQueue, Offset: 7 * testBlockSize, Size: testBlockSize})
}
