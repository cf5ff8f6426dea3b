package emulated

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// plainBroker hands out the memory that connections of this process export to programs on the
// emulated libdoca.
var plainBroker broker.Server

// plainKey tells plain exports apart: those with equal keys are one.
type plainKey struct {
	region *memory.Region
	access memory.Access
}

// plainExports holds the plain exports of a connection.
type plainExports struct {
	mu     sync.Mutex
	closed bool
	byKey  map[plainKey]*broker.Export
}

// plainSource is the file of an exported region. It implements broker.Source.
type plainSource struct{ descriptor int }

// File returns a descriptor of the same open file description, which a memory.Loan relies on.
func (s *plainSource) File() (descriptor int, offset uint64) {
	descriptor, err := duplicate(s.descriptor)
	if err != nil {
		return -1, 0
	}
	return descriptor, 0
}

// Patience is 0: an importer may use what it has mapped, so nothing depends on its answer.
func (s *plainSource) Patience() time.Duration { return 0 }

// ExportPlain implements comch.PlainExporter. The peer asks this process's broker for the memory,
// as it would ask that of a program on the emulated libdoca.
func (c *connection) ExportPlain(ctx context.Context, region *memory.Region, access memory.Access,
) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	descriptor, err := c.exportPlain(region, access)
	if err != nil {
		return nil, fmt.Errorf("export memory of %d bytes: %w", region.Len(), err)
	}
	return descriptor, nil
}

func (c *connection) exportPlain(region *memory.Region, access memory.Access) ([]byte, error) {
	if err := checkExport(region, access); err != nil {
		return nil, err
	}
	flags := plainAccess(access)
	if flags&(broker.PCIReadOnly|broker.PCIReadWrite) == 0 {
		return nil, status.Errorf(status.InvalidValue,
			"access rights %#x let the peer neither read nor write over PCI", uint32(access))
	}
	x := &broker.Export{Descriptor: broker.Descriptor{
		Kind: broker.KindPCI, Access: flags, Address: region.Base(), Length: region.Len()}}
	if c.peer.Known {
		x.Users = []uint32{c.peer.UID}
	}
	descriptor, err := c.plain.add(plainKey{region, access}, x, c.limits.MaxExports)
	if err == error(status.NotConnected) {
		err = c.notConnected("export memory")
	}
	return descriptor, err
}

// add makes a region's file the source of x, and returns the descriptor. It fails with
// status.NotConnected after close.
func (p *plainExports) add(key plainKey, x *broker.Export, limit int) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, status.NotConnected
	}
	if existing := p.byKey[key]; existing != nil {
		return existing.Encode(), nil
	}
	if len(p.byKey) >= limit {
		return nil, errFull("memory exports", limit)
	}
	dup, err := duplicate(key.region.Descriptor())
	if err != nil {
		return nil, err
	}
	x.Source = &plainSource{dup}
	if err := plainBroker.Add(x); err != nil {
		closeDescriptor(dup)
		return nil, err
	}
	if p.byKey == nil {
		p.byKey = make(map[plainKey]*broker.Export)
	}
	p.byKey[key] = x
	return x.Encode(), nil
}

// plainAccess translates rights into DOCA's flags.
func plainAccess(access memory.Access) uint32 {
	var flags uint32
	for right, flag := range map[memory.Access]uint32{
		memory.LocalWrite: broker.LocalReadWrite, memory.RemoteRead: broker.RDMARead,
		memory.RemoteWrite: broker.RDMAWrite,
	} {
		if access.Has(right) {
			flags |= flag
		}
	}
	switch {
	case access.Has(memory.PCIWrite): // includes reading
		flags |= broker.PCIReadWrite | broker.LocalReadWrite
	case access.Has(memory.PCIRead):
		flags |= broker.PCIReadOnly
	}
	return flags
}

// close ends the exports. An importer that is about to ask for the memory can delay that, so a task
// of the queue does it.
func (p *plainExports) close(cleanup *cleanupQueue) {
	p.mu.Lock()
	ended := p.byKey
	p.byKey = nil
	p.closed = true
	p.mu.Unlock()
	for _, x := range ended {
		cleanup.add(func() {
			plainBroker.Remove(x)
			closeDescriptor(x.Source.(*plainSource).descriptor)
		})
	}
}
