package datapath

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// staging is registered memory, a buffer for each slot of the relay, through
// which data passes between the wire and a volume. The relay may write there
// at any time: what it changes after it has sent a request is its own
// client's data.
type staging struct {
	region     *memory.Region
	registered rdma.MemoryRegion
	size       uint32
}

func newStaging(domain rdma.ProtectionDomain, count int, size uint32) (staging, error) {
	region, err := memory.Alloc("zc-relay staging", uint64(count)*uint64(size))
	if err != nil {
		return staging{}, fmt.Errorf("allocate %d staging buffers of %d bytes: %w", count, size, err)
	}
	registered, err := domain.Register(region, memory.LocalWrite|memory.RemoteWrite)
	if err != nil {
		return staging{}, errors.Join(fmt.Errorf("register %d staging buffers of %d bytes: %w", count, size, err), region.Close())
	}
	return staging{region: region, registered: registered, size: size}, nil
}

// remote is the staging as the relay reaches it.
func (s *staging) remote() rdma.RemoteMemory {
	return rdma.RemoteMemory{
		Key: s.registered.RemoteKey(), Base: s.registered.Base(), Length: s.registered.Len(), Access: memory.RemoteWrite,
	}
}

// bytes is the first length bytes of a slot's buffer.
func (s *staging) bytes(slot, length uint32) []byte {
	start := uint64(slot) * uint64(s.size)
	return s.region.Bytes()[start : start+uint64(length)]
}

// segment names the first length bytes of a slot's buffer in a work request.
func (s *staging) segment(slot, length uint32) rdma.Segment {
	return rdma.Segment{
		Key: s.registered.LocalKey(), Length: length,
		Address: s.registered.Base() + uint64(slot)*uint64(s.size),
	}
}

func (s *staging) close() error { return errors.Join(s.registered.Deregister(), s.region.Close()) }
