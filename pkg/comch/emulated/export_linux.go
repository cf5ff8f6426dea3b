// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (c *connection) ExportMemory(ctx context.Context, region *memory.Region, access memory.Access,
) ([]byte, error) {
	token, err := c.export(ctx, region, access)
	if err != nil {
		return nil, fmt.Errorf("export memory of %d bytes: %w", region.Len(), err)
	}
	return token, nil
}

func (c *connection) export(ctx context.Context, region *memory.Region, access memory.Access,
) ([]byte, error) {
	if err := checkExport(region, access); err != nil {
		return nil, err
	}
	id, err := c.local.newID()
	if err != nil {
		return nil, err
	}
	dup, err := duplicate(region.Descriptor())
	if err != nil {
		return nil, err
	}
	length := region.Len()
	announcement := frame{kind: frameExport,
		fields: [maxFields]uint32{id, uint32(access), uint32(length), uint32(length >> 32)}}
	var passed descriptors
	passed.add(dup)
	replied, err := c.request(ctx, announcement, passed)
	if err != nil {
		return nil, err
	}
	c.cleanup.close(replied)
	return exportToken{id: id, access: access, base: region.Base(), length: length}.encode(), nil
}

// checkExport fails if a region cannot be exported with the given rights.
func checkExport(region *memory.Region, access memory.Access) error {
	if access == 0 || !access.Valid() {
		return status.Errorf(status.InvalidValue, "invalid access rights %#x", uint32(access))
	}
	if !region.Mapped() || region.Descriptor() < 0 {
		return status.Errorf(status.NotSupported,
			"region has no file that the peer can map: allocate it with memory.Alloc")
	}
	return nil
}

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

func (c *connection) ImportMemory(descriptor []byte) (*memory.Region, memory.Access, error) {
	if broker.IsDescriptor(descriptor) {
		return c.importFromBroker(descriptor)
	}
	token, err := parseExportToken(descriptor)
	if err != nil {
		return nil, 0, fmt.Errorf("import memory: %w", err)
	}
	region, err := c.exports.open(token)
	if err != nil {
		return nil, 0, fmt.Errorf("import memory %d of %d bytes: %w", token.id, token.length, err)
	}
	return region, token.access, nil
}

// handleExport adds memory that the peer exports.
func (c *connection) handleExport(f *frame, received *descriptors) error {
	id := f.fields[0]
	if !c.role.other().isOwnerOf(id) {
		return violation("export id %d does not belong to the peer", id)
	}
	descriptor, ok := received.next()
	if !ok {
		return violation("export %d has no memory", id)
	}
	err := c.full
	if err == nil {
		err = c.exports.add(id, &peerExport{
			descriptor: descriptor,
			access:     memory.Access(f.fields[1]),
			length:     uint64(f.fields[3])<<32 | uint64(f.fields[2]),
		})
	}
	if err != nil {
		c.cleanup.close(descriptor)
	}
	c.enqueue(textFrame(frameReply, err, id), descriptors{})
	return nil
}
