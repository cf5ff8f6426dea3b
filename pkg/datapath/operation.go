package datapath

import "github.com/zc-relay/zc-relay/pkg/iomsg"

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

// MovesData reports whether IOs of this operation carry data.
func (o Operation) MovesData() bool { return o == ReadOperation || o == WriteOperation }

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
