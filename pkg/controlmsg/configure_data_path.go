package controlmsg

import (
	"math"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ConfigureDataPath sizes the data path of a session and tells where its data
// is moved to and from.
type ConfigureDataPath struct {
	QueueCount uint32
	// Depth is the number of IOs in flight of one queue.
	Depth uint32
	// BufferSize is the largest IO in bytes.
	BufferSize uint32
	Export     Export
	// ClientInstance is chosen at random by each start of a client; all its
	// sessions carry the same.
	ClientInstance [16]byte
	// Epoch counts the sessions of a client instance. A target refuses
	// epochs lower than one it has seen.
	Epoch uint64
}

// ConfigureDataPathReply accepts a configuration.
type ConfigureDataPathReply struct {
	// InboundReads is how many RDMA Reads the answering side may have
	// outstanding on one connection; 0 from a relay.
	InboundReads uint32
}

// Export lets the receiver reach memory of the initiator. Exactly one of
// Descriptor and RDMA is set.
type Export struct {
	Access memory.Access
	// Length is in bytes.
	Length uint64
	// Descriptor is what comch.Connection.ImportMemory takes, from an
	// initiator.
	Descriptor []byte
	// RDMA names the memory in RDMA operations, from a relay.
	RDMA *RDMAExport
}

// RDMAExport names memory in RDMA operations.
type RDMAExport struct {
	// Transport is the RDMA transport that the key is for.
	Transport string
	// Key is the remote key, or STag.
	Key uint32
	// Base is the address of the first byte.
	Base uint64
}

// Kind returns KindConfigureDataPath.
func (*ConfigureDataPath) Kind() Kind { return KindConfigureDataPath }

// Kind returns KindConfigureDataPathReply.
func (*ConfigureDataPathReply) Kind() Kind { return KindConfigureDataPathReply }

func (m *ConfigureDataPath) validate() error {
	if err := checkCount("queue_count", m.QueueCount, MaxQueues); err != nil {
		return err
	}
	if err := checkCount("depth", m.Depth, MaxDepth); err != nil {
		return err
	}
	if err := checkCount("buffer_size", m.BufferSize, MaxBufferSize); err != nil {
		return err
	}
	return m.Export.validate()
}

func (*ConfigureDataPathReply) validate() error { return nil }

// RemoteMemory returns the memory as RDMA operations name it. The export must
// be a relay's.
func (e *Export) RemoteMemory() rdma.RemoteMemory {
	return rdma.RemoteMemory{Key: e.RDMA.Key, Base: e.RDMA.Base, Length: e.Length, Access: e.Access}
}

func (e *Export) validate() error {
	if !e.Access.Valid() {
		return status.Errorf(status.InvalidValue, "export access %#x has unknown rights", uint32(e.Access))
	}
	if e.Length == 0 {
		return status.Errorf(status.InvalidValue, "export has no length")
	}
	if (len(e.Descriptor) > 0) == (e.RDMA != nil) {
		return status.Errorf(status.InvalidValue, "export must have either a descriptor or an RDMA key")
	}
	if len(e.Descriptor) > MaxDescriptorLength {
		return status.Errorf(status.TooBig,
			"export descriptor has %d bytes, the limit is %d", len(e.Descriptor), MaxDescriptorLength)
	}
	if e.RDMA == nil {
		return nil
	}
	if e.Length > math.MaxUint64-e.RDMA.Base {
		return status.Errorf(status.InvalidValue,
			"export of %d bytes at %#x runs past the end of the address space", e.Length, e.RDMA.Base)
	}
	return checkName("export transport", e.RDMA.Transport, MaxTransportLength)
}
