// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A descriptor of exported memory is a header and the description that libdoca made. The header
// carries what that does not tell: the rights, and a checksum, because libdoca need not check what
// it is given. A description without the header is accepted as well: it comes from a program that
// was written for DOCA.
const (
	descriptorMagic  = 0x6f64637a // "zcdo"
	descriptorHeader = 12         // bytes: magic, rights, checksum of everything else
)

// foreignRights are the rights of memory that was exported without a header. The device enforces
// the real ones.
const foreignRights = memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite

// exportKey tells exports apart: those with equal keys share a registration.
type exportKey struct {
	region *memory.Region
	access memory.Access
}

type export struct {
	memory *doca.MemoryMap
	plain  []byte       // the description that libdoca made
	giveUp func() error // ends this side's share of the loan of the memory
}

func (c *connection) ExportMemory(ctx context.Context, region *memory.Region,
	access memory.Access) ([]byte, error) {
	plain, err := c.ExportPlain(ctx, region, access)
	if err != nil {
		return nil, err
	}
	return encodeDescriptor(plain, access), nil
}

// ExportPlain implements comch.PlainExporter. The caller must not change the result.
func (c *connection) ExportPlain(ctx context.Context, region *memory.Region,
	access memory.Access) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if access == 0 || !access.Valid() {
		return nil, status.Errorf(status.InvalidValue, "export memory: impossible rights %#x",
			uint32(access))
	}
	if !region.Mapped() {
		return nil, status.Errorf(status.NotSupported,
			"export memory: imported memory cannot be exported again")
	}
	// The lock is held meanwhile, so that the end of the connection finds every export.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, status.Errorf(status.NotConnected, "export memory: the connection has ended")
	}
	key := exportKey{region, access}
	if e := c.exports[key]; e != nil {
		return e.plain, nil
	}
	giveUp, err := region.KeepLoan()
	if err != nil {
		return nil, err
	}
	m, err := c.endpoint.device.MapMemory(region.Bytes(), access)
	if err != nil {
		return nil, errors.Join(err, giveUp())
	}
	e := &export{memory: m, giveUp: giveUp}
	blob, err := m.Export()
	if err == nil && len(blob) > comch.MaxExportLength-descriptorHeader {
		err = status.Errorf(status.TooBig, "export memory: libdoca describes it with %d bytes",
			len(blob))
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.plain = blob
	c.exports[key] = e
	return blob, nil
}

// closeExports revokes the peer's access to the memory of this side.
func (c *connection) closeExports() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.exports {
		delete(c.exports, key)
		if err := e.close(); err != nil {
			c.endpoint.log.Warn("close exported memory", zap.Error(err))
		}
	}
}

// close revokes the peer's access. If that fails, the loan of the memory goes on, because the
// device may still reach it.
func (e *export) close() error {
	if err := e.memory.Close(); err != nil {
		return err
	}
	return e.giveUp()
}

func encodeDescriptor(blob []byte, access memory.Access) []byte {
	d := binary.LittleEndian.AppendUint32(nil, descriptorMagic)
	d = binary.LittleEndian.AppendUint32(d, uint32(access))
	d = binary.LittleEndian.AppendUint32(d, descriptorChecksum(access, blob))
	return append(d, blob...)
}

func descriptorChecksum(access memory.Access, blob []byte) uint32 {
	rights := binary.LittleEndian.AppendUint32(nil, uint32(access))
	return crc32.Update(crc32.ChecksumIEEE(rights), crc32.IEEETable, blob)
}

func decodeDescriptor(descriptor []byte) (blob []byte, access memory.Access, err error) {
	switch {
	case len(descriptor) > comch.MaxExportLength:
		return nil, 0, status.Errorf(status.TooBig, "import memory: descriptor of %d bytes",
			len(descriptor))
	case len(descriptor) < descriptorHeader ||
		binary.LittleEndian.Uint32(descriptor) != descriptorMagic:
		return descriptor, foreignRights, nil
	}
	access = memory.Access(binary.LittleEndian.Uint32(descriptor[4:]))
	blob = descriptor[descriptorHeader:]
	if binary.LittleEndian.Uint32(descriptor[8:]) != descriptorChecksum(access, blob) ||
		access == 0 || !access.Valid() {
		return nil, 0, status.Errorf(status.InvalidValue, "import memory: damaged descriptor")
	}
	return blob, access, nil
}

func (c *connection) ImportMemory(descriptor []byte) (*memory.Region, memory.Access, error) {
	return c.importMemory(c.endpoint.device, descriptor)
}

// ImportMemoryFor implements comch.DeviceImporter.
func (c *connection) ImportMemoryFor(device memory.Device, descriptor []byte) (*memory.Region,
	memory.Access, error) {
	name := cmp.Or(device.RDMA, device.PCI)
	opened, err := c.endpoint.device.Library().OpenDevice(name)
	if err != nil {
		return nil, 0, fmt.Errorf("import memory with device %v: %w", device, err)
	}
	region, access, err := c.importMemory(opened, descriptor)
	// What was imported keeps the device open.
	if closeErr := opened.Close(); err == nil && closeErr != nil {
		return nil, 0, errors.Join(closeErr, region.Close())
	}
	return region, access, err
}

func (c *connection) importMemory(device *doca.Device, descriptor []byte) (*memory.Region,
	memory.Access, error) {
	blob, access, err := decodeDescriptor(descriptor)
	if err != nil {
		return nil, 0, err
	}
	if c.ended.Load() {
		return nil, 0, status.Errorf(status.NotConnected, "import memory: the connection has ended")
	}
	m, err := device.ImportMemory(blob)
	if err != nil {
		return nil, 0, err
	}
	if err := c.chargeImport(m.Len()); err != nil {
		_ = m.Close()
		return nil, 0, err
	}
	region, err := m.Region(func() error {
		c.mu.Lock()
		c.imported -= m.Len()
		c.mu.Unlock()
		return m.Close()
	})
	if err != nil {
		c.endpoint.noKey.Do(func() {
			c.endpoint.log.Info("imported memory has no key for verbs", zap.Error(err))
		})
	}
	return region, access, nil
}

// chargeImport counts imported memory against what the peer may export.
func (c *connection) chargeImport(length uint64) error {
	limit := c.maxImports()
	c.mu.Lock()
	defer c.mu.Unlock()
	if limit > 0 && (c.imported > limit || length > limit-c.imported) {
		return status.Errorf(status.TooBig,
			"import memory of %d bytes: %d are imported, and the limit is %d", length, c.imported,
			limit)
	}
	c.imported += length
	return nil
}
