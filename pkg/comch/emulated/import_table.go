package emulated

import (
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// importTable holds the memory that the peer has exported, by id, until the
// end of the connection.
type importTable struct {
	maxExports int
	maxBytes   uint64

	mu     sync.Mutex
	closed bool
	bytes  uint64 // of all exports
	offers map[uint32]*offer
}

// offer is one exported region that has not necessarily been imported.
type offer struct {
	descriptor int
	access     memory.Access
	length     uint64
	bytes      uint64 // that it counts against the limit
}

func newImportTable(limits Limits) *importTable {
	return &importTable{
		maxExports: limits.MaxExports,
		maxBytes:   limits.MaxExportBytes,
		offers:     make(map[uint32]*offer),
	}
}

// add enters an offer and takes over its descriptor if it succeeds.
func (t *importTable) add(id uint32, o *offer) error {
	if o.length == 0 || o.access == 0 || !o.access.Valid() {
		return status.Errorf(status.InvalidValue, "memory of %d bytes with access rights %#x cannot be exported", o.length, uint32(o.access))
	}
	size, err := exportedBytes(o.descriptor, o.length)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return status.Errorf(status.NotConnected, "the connection has ended")
	}
	if len(t.offers) >= t.maxExports {
		return errNoRoom("memory exports", t.maxExports)
	}
	if t.offers[id] != nil {
		return status.Errorf(status.AlreadyExist, "export %d exists already", id)
	}
	t.offers[id] = o
	if err := t.chargeLocked(o, size); err != nil {
		delete(t.offers, id)
		return err
	}
	return nil
}

// chargeLocked counts an offer with its present size.
func (t *importTable) chargeLocked(o *offer, size uint64) error {
	others := t.bytes - o.bytes
	if size > t.maxBytes-others {
		return status.Errorf(status.TooBig, "exported memory takes %d bytes, the connection has %d of its %d left",
			size, t.maxBytes-others, t.maxBytes)
	}
	t.bytes = others + size
	o.bytes = size
	return nil
}

// open maps the memory that a token names.
func (t *importTable) open(token exportToken) (*memory.Region, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, status.Errorf(status.NotConnected, "connection has ended")
	}
	o := t.offers[token.id]
	if o == nil {
		return nil, status.Errorf(status.NotFound, "the peer has not exported memory %d on this connection", token.id)
	}
	if o.length != token.length || o.access != token.access {
		return nil, status.Errorf(status.InvalidValue, "memory descriptor says %d bytes with rights %#x, exported were %d bytes with rights %#x",
			token.length, uint32(token.access), o.length, uint32(o.access))
	}
	size, err := exportedBytes(o.descriptor, o.length)
	if err != nil {
		return nil, err
	}
	if err := t.chargeLocked(o, size); err != nil {
		return nil, err
	}
	twin, err := duplicate(o.descriptor)
	if err != nil {
		return nil, err
	}
	region, err := memory.Import(twin, o.length, t.maxBytes, o.access)
	if err != nil {
		closeDescriptor(twin)
	}
	return region, err
}

// close lets go of everything. Imported regions live on.
func (t *importTable) close() {
	t.mu.Lock()
	offers := t.offers
	t.offers = nil
	t.closed = true
	t.mu.Unlock()
	for _, o := range offers {
		closeDescriptor(o.descriptor)
	}
}

func (c *connection) ImportMemory(descriptor []byte) (*memory.Region, memory.Access, error) {
	token, err := parseExportToken(descriptor)
	if err != nil {
		return nil, 0, fmt.Errorf("import memory: %w", err)
	}
	region, err := c.imports.open(token)
	if err != nil {
		return nil, 0, fmt.Errorf("import memory %d of %d bytes: %w", token.id, token.length, err)
	}
	return region, token.access, nil
}

// handleExport takes in memory that the peer offers.
func (c *connection) handleExport(f *frame, received *descriptors) error {
	id := f.fields[0]
	if !c.role.other().owns(id) {
		return violation("export id %d is not the peer's to give", id)
	}
	descriptor, ok := received.take()
	if !ok {
		return violation("export %d came without memory", id)
	}
	err := c.imports.add(id, &offer{
		descriptor: descriptor,
		access:     memory.Access(f.fields[1]),
		length:     uint64(f.fields[3])<<32 | uint64(f.fields[2]),
	})
	if err != nil {
		closeDescriptor(descriptor)
	}
	c.put(textFrame(frameReply, err, id), descriptors{})
	return nil
}
