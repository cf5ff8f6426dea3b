package main

import (
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
)

// endpoint is an opened device of the provider iwarp.
type endpoint struct {
	device rdma.Device
	queue  rdma.CompletionQueue
	domain rdma.ProtectionDomain
}

// buffer is registered memory.
type buffer struct {
	rdma.MemoryRegion
	bytes []byte
}

func newEndpoint(address netip.Addr, crc bool) (*endpoint, error) {
	device, err := iwarp.New(iwarp.Options{CRC: crc}).Open(address)
	if err != nil {
		return nil, err
	}
	e := &endpoint{device: device}
	if e.queue, err = device.NewCompletionQueue(64); err != nil {
		return nil, err
	}
	e.domain, err = device.NewProtectionDomain()
	return e, err
}

func (e *endpoint) register(size int, access memory.Access) (buffer, error) {
	b := make([]byte, size)
	m, err := e.domain.Register(memory.Wrap(b), access)
	return buffer{m, b}, err
}

// segment is a range of the buffer.
func (b buffer) segment(offset, length int) rdma.Segment {
	return rdma.Segment{Key: b.LocalKey(), Address: b.Base() + uint64(offset), Length: uint32(length)}
}
