package emulated

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// exportToken is the descriptor of exported memory that applications pass on.
// The memory itself has gone over the connection before, under the same id.
type exportToken struct {
	id     uint32
	access memory.Access
	length uint64 // bytes
}

// A token on the wire, little-endian: magic u32 ("zcex"), id u32, access
// u32, length u64, CRC32C of all that u32. The checksum finds tokens that
// were damaged or are something else; it does not protect from the peer,
// whose own memory it is.
const (
	exportTokenMagic = 0x7865637a
	exportTokenSize  = 24
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (t exportToken) encode() []byte {
	b := make([]byte, 0, exportTokenSize)
	b = binary.LittleEndian.AppendUint32(b, exportTokenMagic)
	b = binary.LittleEndian.AppendUint32(b, t.id)
	b = binary.LittleEndian.AppendUint32(b, uint32(t.access))
	b = binary.LittleEndian.AppendUint64(b, t.length)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func parseExportToken(b []byte) (exportToken, error) {
	if len(b) != exportTokenSize {
		return exportToken{}, status.Errorf(status.InvalidValue, "memory descriptor has %d bytes, expected %d", len(b), exportTokenSize)
	}
	checked, sum := b[:exportTokenSize-4], binary.LittleEndian.Uint32(b[exportTokenSize-4:])
	if magic := binary.LittleEndian.Uint32(b); magic != exportTokenMagic {
		return exportToken{}, status.Errorf(status.InvalidValue, "memory descriptor starts with %#x: it is not from this provider", magic)
	}
	if crc32.Checksum(checked, castagnoli) != sum {
		return exportToken{}, status.Errorf(status.InvalidValue, "memory descriptor is damaged: checksum %#x is wrong", sum)
	}
	return exportToken{
		id:     binary.LittleEndian.Uint32(b[4:]),
		access: memory.Access(binary.LittleEndian.Uint32(b[8:])),
		length: binary.LittleEndian.Uint64(b[12:]),
	}, nil
}

func (c *connection) ExportMemory(ctx context.Context, region *memory.Region, access memory.Access) ([]byte, error) {
	token, err := c.export(ctx, region, access)
	if err != nil {
		return nil, fmt.Errorf("export memory of %d bytes: %w", region.Len(), err)
	}
	return token, nil
}

func (c *connection) export(ctx context.Context, region *memory.Region, access memory.Access) ([]byte, error) {
	if access == 0 || !access.Valid() {
		return nil, status.Errorf(status.InvalidValue, "access rights %#x are none or unknown", uint32(access))
	}
	if !region.Mapped() || region.Descriptor() < 0 {
		return nil, status.Errorf(status.NotSupported, "the region has no file that another process could map: use memory.Alloc")
	}
	id, err := c.local.takeID()
	if err != nil {
		return nil, err
	}
	twin, err := duplicate(region.Descriptor())
	if err != nil {
		return nil, err
	}
	length := region.Len()
	offer := frame{kind: frameExport, fields: [maxFields]uint32{id, uint32(access), uint32(length), uint32(length >> 32)}}
	answered, err := c.request(ctx, offer, descriptors{list: [maxDescriptors]int{twin}, count: 1})
	if err != nil {
		return nil, err
	}
	closeDescriptor(answered)
	return exportToken{id: id, access: access, length: length}.encode(), nil
}
