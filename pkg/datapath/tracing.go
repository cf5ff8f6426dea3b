// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// next is when a traced IO was passed on, and when its outcome arrived: see trace.Record.
type next struct{ beginNs, endNs int64 }

// begin notes that the IO of a message is passed on. IOs that are not traced, nearly all of them,
// cost one comparison here, in end, and in traced. The compiler inlines these three, because what
// they call is not inlined into them.
func (n *next) begin(m *message) {
	if iomsg.IsTraced(m[:]) {
		n.noteBegin()
	}
}

//go:noinline
func (n *next) noteBegin() { *n = next{beginNs: nanotime()} }

// end notes that the outcome has arrived.
func (n *next) end(m *message) {
	if iomsg.IsTraced(m[:]) {
		n.noteEnd()
	}
}

//go:noinline
func (n *next) noteEnd() { n.endNs = nanotime() }

// traced records the IO of a request that completes, if it is traced.
func (l *lane) traced(queue int, request *message, result status.Code, beginNs int64, n *next) {
	if iomsg.IsTraced(request[:]) {
		l.record(queue, request, result, beginNs, n)
	}
}

func (l *lane) record(queue int, request *message, result status.Code, beginNs int64, n *next) {
	if iomsg.TraceID(request[:]) == 0 || !l.tracer.IsOn() {
		return
	}
	var m iomsg.Message
	iomsg.Decode(request[:], &m)
	nowNs := nanotime()
	epochNs := time.Now().UnixNano() - nowNs
	r := trace.Record{
		ID: m.Trace, Operation: m.Type.Operation(), Result: result, Queue: queue,
		Offset: m.StorageOffset, Size: m.IOSize, BeginNs: epochNs + beginNs, EndNs: epochNs + nowNs,
	}
	if n.beginNs != 0 && n.endNs != 0 {
		r.NextBeginNs, r.NextEndNs = epochNs+n.beginNs, epochNs+n.endNs
	}
	*n = next{}
	l.tracer.Record(&r)
}
