package datapath

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// noStaging marks a transaction without a staging buffer.
const noStaging = ^uint32(0)

// staging is registered memory, in buffers of equal size, through which data
// passes between the wire and a volume.
type staging struct {
	region     *memory.Region
	registered rdma.MemoryRegion
	size       uint32
	free       []uint32
}

func newStaging(domain rdma.ProtectionDomain, count int, size uint32) (staging, error) {
	region, err := memory.Alloc("zc-relay staging", uint64(count)*uint64(size))
	if err != nil {
		return staging{}, fmt.Errorf("allocate %d staging buffers of %d bytes: %w", count, size, err)
	}
	registered, err := domain.Register(region, memory.LocalWrite)
	if err != nil {
		return staging{}, errors.Join(fmt.Errorf("register %d staging buffers of %d bytes: %w", count, size, err), region.Close())
	}
	s := staging{region: region, registered: registered, size: size, free: make([]uint32, count)}
	for i := range s.free {
		s.free[i] = uint32(count - 1 - i)
	}
	return s, nil
}

// take returns a free buffer, or noStaging.
func (s *staging) take() uint32 {
	n := len(s.free)
	if n == 0 {
		return noStaging
	}
	buffer := s.free[n-1]
	s.free = s.free[:n-1]
	return buffer
}

func (s *staging) give(buffer uint32) { s.free = append(s.free, buffer) }

// bytes is the first length bytes of a buffer.
func (s *staging) bytes(buffer, length uint32) []byte {
	start := uint64(buffer) * uint64(s.size)
	return s.region.Bytes()[start : start+uint64(length)]
}

// segment names the first length bytes of a buffer in a work request.
func (s *staging) segment(buffer, length uint32) rdma.Segment {
	return rdma.Segment{
		Key: s.registered.LocalKey(), Length: length,
		Address: s.registered.Base() + uint64(buffer)*uint64(s.size),
	}
}

func (s *staging) close() error { return errors.Join(s.registered.Deregister(), s.region.Close()) }
