// SPDX-License-Identifier: Apache-2.0

// Package broker is how a process imports memory that a program on the emulated libdoca has
// exported. The program's library serves its exports at a Unix socket with an abstract name, the
// broker. A Descriptor, which the program sends to whomever it likes, names the socket and the
// memory.
package broker

import (
	"encoding/binary"
	"math"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// ID identifies exported memory. It is random, because whoever knows it may import.
type ID [16]byte

// Access flags of a Descriptor, with the values of DOCA.
const (
	LocalReadWrite = 1 << 0
	RDMARead       = 1 << 1
	RDMAWrite      = 1 << 2
	PCIReadOnly    = 1 << 4
	PCIReadWrite   = 1 << 5
)

// Kinds of exports. The emulation of libdoca has others, up to maxKind.
const (
	// KindPCI is the Kind of memory that is exported over PCI.
	KindPCI = 0
	// KindEventPCI is the Kind of a sync event, whose eight bytes only the library imports.
	KindEventPCI = 3
	maxKind      = 3
)

// Descriptor describes exported memory.
type Descriptor struct {
	Kind    byte
	ID      ID
	Access  uint32 // DOCA's access flags
	Address uint64 // as the exporter knows it
	Length  uint64 // bytes
	Name    string // of the broker's socket
}

// An encoded descriptor: magic, version, kind, ID, access, address, length, the length of the name,
// and the name. Numbers are little-endian.
const (
	magic      = "zcdx"
	version    = 1
	headerSize = 4 + 1 + 1 + 16 + 4 + 8 + 8 + 1
	maxName    = 64

	// MaxSize is the largest encoded descriptor in bytes.
	MaxSize = headerSize + maxName
)

// Encode returns the encoded descriptor.
func (d *Descriptor) Encode() []byte {
	b := append(make([]byte, 0, MaxSize), magic...)
	b = append(b, version, d.Kind)
	b = append(b, d.ID[:]...)
	b = binary.LittleEndian.AppendUint32(b, d.Access)
	b = binary.LittleEndian.AppendUint64(b, d.Address)
	b = binary.LittleEndian.AppendUint64(b, d.Length)
	b = append(b, byte(len(d.Name)))
	return append(b, d.Name...)
}

// IsDescriptor reports whether b may be an encoded descriptor, and not one of another kind of
// export.
func IsDescriptor(b []byte) bool { return len(b) >= len(magic) && string(b[:len(magic)]) == magic }

// Parse decodes a descriptor. What it says comes from a peer, and is not to be trusted.
func Parse(b []byte) (d Descriptor, err error) {
	if len(b) < headerSize || len(b) > MaxSize || !IsDescriptor(b) || b[4] != version ||
		b[5] > maxKind || len(b) != headerSize+int(b[headerSize-1]) {
		return d, status.Errorf(status.InvalidValue,
			"%d bytes are no descriptor of memory that libdoca has exported", len(b))
	}
	d.Kind = b[5]
	copy(d.ID[:], b[6:])
	d.Access = binary.LittleEndian.Uint32(b[22:])
	d.Address, d.Length = binary.LittleEndian.Uint64(b[26:]), binary.LittleEndian.Uint64(b[34:])
	if d.Length == 0 || d.Length > math.MaxInt || d.Address+d.Length < d.Address {
		return d, status.Errorf(status.InvalidValue, "descriptor of %d bytes at %#x", d.Length,
			d.Address)
	}
	d.Name = string(b[headerSize:])
	return d, nil
}
