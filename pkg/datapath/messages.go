// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// message is an encoded IO message in memory that no peer can change.
type message = [iomsg.Size]byte

// messageMemory is registered memory for a fixed number of IO messages.
type messageMemory struct {
	region     *memory.Region
	registered rdma.MemoryRegion
	bytes      []byte
	first      rdma.Segment // names message 0
}

func newMessageMemory(domain rdma.ProtectionDomain, count int) (*messageMemory, error) {
	region, err := memory.Alloc("zc-relay messages", uint64(count*iomsg.Size))
	if err != nil {
		return nil, fmt.Errorf("allocate memory for %d messages: %w", count, err)
	}
	if err := region.Prefault(); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	registered, err := domain.Register(region, memory.LocalWrite)
	if err != nil {
		return nil, errors.Join(
			fmt.Errorf("register memory for %d messages: %w", count, err), region.Close())
	}
	return &messageMemory{
		region: region, registered: registered, bytes: region.Bytes(),
		first: rdma.Segment{
			Key: registered.LocalKey(), Length: iomsg.Size, Address: registered.Base(),
		},
	}, nil
}

// at returns the memory of message i.
func (m *messageMemory) at(i uint32) *message {
	return (*message)(m.bytes[i*iomsg.Size:][:iomsg.Size])
}

// segment names message i in a work request.
func (m *messageMemory) segment(i uint32) rdma.Segment {
	s := m.first
	s.Address += uint64(i) * iomsg.Size
	return s
}

func (m *messageMemory) close() error {
	return errors.Join(m.registered.Deregister(), m.region.Close())
}
