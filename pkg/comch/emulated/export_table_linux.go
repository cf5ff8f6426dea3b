// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"encoding/binary"
	"hash/crc32"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// exportTable holds the memory that the peer has exported, by id, until the connection ends.
type exportTable struct {
	maxExports int
	maxBytes   uint64

	mu      sync.Mutex
	closed  bool
	bytes   uint64 // of all entries, and of memory that brokers have handed out
	imports int    // of memory that brokers have handed out
	entries map[uint32]*peerExport
}

// peerExport is one exported region, imported or not.
type peerExport struct {
	descriptor int
	access     memory.Access
	length     uint64
	bytes      uint64 // counted against the limit
}

func newExportTable(limits Limits) *exportTable {
	return &exportTable{
		maxExports: limits.MaxExports,
		maxBytes:   limits.MaxExportBytes,
		entries:    make(map[uint32]*peerExport),
	}
}

// add adds an entry. It takes ownership of the descriptor if it succeeds.
func (t *exportTable) add(id uint32, e *peerExport) error {
	if e.length == 0 || e.access == 0 || !e.access.Valid() {
		return status.Errorf(status.InvalidValue,
			"invalid export of %d bytes with access rights %#x", e.length, uint32(e.access))
	}
	size, err := exportedBytes(e.descriptor, e.length)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return status.Errorf(status.NotConnected, "connection has ended")
	}
	if len(t.entries)+t.imports >= t.maxExports {
		return errFull("memory exports", t.maxExports)
	}
	if t.entries[id] != nil {
		return status.Errorf(status.AlreadyExist, "export %d already exists", id)
	}
	t.entries[id] = e
	if err := t.chargeLocked(e, size); err != nil {
		delete(t.entries, id)
		return err
	}
	return nil
}

// chargeLocked charges an entry's current size to the peer's limit.
func (t *exportTable) chargeLocked(e *peerExport, size uint64) error {
	others := t.bytes - e.bytes
	if size > t.maxBytes-others {
		return status.Errorf(status.TooBig,
			"exported memory takes %d bytes, but only %d of the connection's %d are left",
			size, t.maxBytes-others, t.maxBytes)
	}
	t.bytes = others + size
	e.bytes = size
	return nil
}

// open maps the memory of a token.
func (t *exportTable) open(token exportToken) (*memory.Region, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, status.Errorf(status.NotConnected, "connection has ended")
	}
	e := t.entries[token.id]
	if e == nil {
		return nil, status.Errorf(status.NotFound,
			"peer has not exported memory %d on this connection", token.id)
	}
	if e.length != token.length || e.access != token.access {
		return nil, status.Errorf(status.InvalidValue,
			"memory descriptor has %d bytes with rights %#x, the peer exported %d with rights %#x",
			token.length, uint32(token.access), e.length, uint32(e.access))
	}
	size, err := exportedBytes(e.descriptor, e.length)
	if err != nil {
		return nil, err
	}
	if err := t.chargeLocked(e, size); err != nil {
		return nil, err
	}
	dup, err := duplicate(e.descriptor)
	if err != nil {
		return nil, err
	}
	region, err := memory.Import(dup, token.base, e.length, t.maxBytes, e.access)
	if err != nil {
		closeDescriptor(dup)
	}
	return region, err
}

// chargeImport charges memory of a broker to the peer's limits.
func (t *exportTable) chargeImport(length uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return status.Errorf(status.NotConnected, "connection has ended")
	case len(t.entries)+t.imports >= t.maxExports:
		return errFull("memory exports", t.maxExports)
	case length > t.maxBytes-t.bytes:
		return status.Errorf(status.TooBig,
			"exported memory takes %d bytes, but only %d of the connection's %d are left",
			length, t.maxBytes-t.bytes, t.maxBytes)
	}
	t.bytes += length
	t.imports++
	return nil
}

func (t *exportTable) releaseImport(length uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes -= length
	t.imports--
}

// close closes the descriptors of all entries. Imported regions stay mapped.
func (t *exportTable) close(cleanup *cleanupQueue) {
	t.mu.Lock()
	entries := t.entries
	t.entries = nil
	t.closed = true
	t.mu.Unlock()
	for _, e := range entries {
		cleanup.close(e.descriptor)
	}
}

// exportedBytes returns how many bytes of the peer's limit a file uses: the maximum of its
// announced length, its size, and its allocation, which can exceed its size. It queries the seals
// first, to reject files of file systems that may never reply.
func exportedBytes(descriptor int, announced uint64) (uint64, error) {
	if _, err := unix.FcntlInt(uintptr(descriptor), unix.F_GET_SEALS, 0); err != nil {
		return 0, status.Errorf(status.InvalidValue, "exported memory is not from memfd_create: %w",
			err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(descriptor, &stat); err != nil {
		return 0, status.Errorf(status.OperatingSystem, "check exported memory: %w", err)
	}
	const blockSize = 512 // of st_blocks, on every file system
	if stat.Size < 0 || stat.Blocks < 0 || stat.Blocks > (1<<62)/blockSize {
		return 0, status.Errorf(status.InvalidValue,
			"exported memory has invalid size: %d bytes, %d blocks", stat.Size, stat.Blocks)
	}
	return max(announced, uint64(stat.Size), uint64(stat.Blocks)*blockSize), nil
}

// exportToken is the descriptor of exported memory that applications exchange. The provider sends
// the memory itself over the connection first, under the same id.
type exportToken struct {
	id     uint32
	access memory.Access
	base   uint64 // Region.Base of the exporter: a name for the memory, nothing depends on it
	length uint64 // bytes
}

// An encoded token is little-endian: magic u32 ("zcex"), id u32, access u32, base u64, length u64,
// CRC32C of the preceding u32. The checksum detects damaged or foreign tokens. It need not protect
// against the peer, whose own memory it is.
const (
	exportTokenMagic = 0x7865637a
	exportTokenSize  = 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (t exportToken) encode() []byte {
	b := make([]byte, 0, exportTokenSize)
	b = binary.LittleEndian.AppendUint32(b, exportTokenMagic)
	b = binary.LittleEndian.AppendUint32(b, t.id)
	b = binary.LittleEndian.AppendUint32(b, uint32(t.access))
	b = binary.LittleEndian.AppendUint64(b, t.base)
	b = binary.LittleEndian.AppendUint64(b, t.length)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func parseExportToken(b []byte) (exportToken, error) {
	if len(b) != exportTokenSize {
		return exportToken{}, status.Errorf(status.InvalidValue,
			"invalid memory descriptor: %d bytes, expected %d", len(b), exportTokenSize)
	}
	checked, sum := b[:exportTokenSize-4], binary.LittleEndian.Uint32(b[exportTokenSize-4:])
	if magic := binary.LittleEndian.Uint32(b); magic != exportTokenMagic {
		return exportToken{}, status.Errorf(status.InvalidValue,
			"invalid memory descriptor: it starts with %#x and is not from this provider", magic)
	}
	if crc32.Checksum(checked, castagnoli) != sum {
		return exportToken{}, status.Errorf(status.InvalidValue,
			"invalid memory descriptor: checksum %#x does not match", sum)
	}
	return exportToken{
		id:     binary.LittleEndian.Uint32(b[4:]),
		access: memory.Access(binary.LittleEndian.Uint32(b[8:])),
		base:   binary.LittleEndian.Uint64(b[12:]),
		length: binary.LittleEndian.Uint64(b[20:]),
	}, nil
}
