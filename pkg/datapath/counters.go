package datapath

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Operation indexes counters by what an IO does.
type Operation uint8

// The counted operations. OtherOperation counts requests of unknown type.
const (
	ReadOperation Operation = iota
	WriteOperation
	FlushOperation
	TrimOperation
	WriteZeroesOperation
	OtherOperation
	OperationCount
)

// String returns the operation's label in metrics.
func (o Operation) String() string {
	switch o {
	case ReadOperation:
		return iomsg.Read.String()
	case WriteOperation:
		return iomsg.Write.String()
	case FlushOperation:
		return iomsg.Flush.String()
	case TrimOperation:
		return iomsg.Trim.String()
	case WriteZeroesOperation:
		return iomsg.WriteZeroes.String()
	}
	return "other"
}

func operationOf(t iomsg.Type) Operation {
	switch t {
	case iomsg.Read:
		return ReadOperation
	case iomsg.Write:
		return WriteOperation
	case iomsg.Flush:
		return FlushOperation
	case iomsg.Trim:
		return TrimOperation
	case iomsg.WriteZeroes:
		return WriteZeroesOperation
	}
	return OtherOperation
}

// Counters counts the IOs of one worker since its start. The worker adds,
// anyone may read; nobody resets.
type Counters struct {
	io      [OperationCount][status.CodeCount]atomic.Uint64
	bytes   [OperationCount]atomic.Uint64
	latency [OperationCount]LatencyHistogram
}

// record counts one answered IO. bytes is what it moved if it succeeded.
func (c *Counters) record(t iomsg.Type, code status.Code, bytes uint32, latencyNs int64) {
	operation := operationOf(t)
	if !code.Known() {
		code = status.Unknown
	}
	c.io[operation][code].Add(1)
	if code == status.Success && t.MovesData() {
		c.bytes[operation].Add(uint64(bytes))
	}
	c.latency[operation].Record(latencyNs)
}

// IO is how many IOs of an operation ended with code.
func (c *Counters) IO(operation Operation, code status.Code) uint64 {
	return c.io[operation][code].Load()
}

// Bytes is how many bytes successful IOs of an operation have moved.
func (c *Counters) Bytes(operation Operation) uint64 { return c.bytes[operation].Load() }

// Latency is the distribution of an operation's latency.
func (c *Counters) Latency(operation Operation) *LatencyHistogram { return &c.latency[operation] }
