package dmacopy

import (
	"encoding/binary"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The messages of the DOCA DMA Copy application (3.3) are C structures of a
// 64-bit little-endian machine with natural alignment: the type is a native
// enumeration, booleans are one byte, other numbers big-endian, padding holds
// anything.
//
//	direction    0 type u32le 1 · 4 file in host u8 · 8 size u64
//	export       0 type u32le 2 · 8 host address u64 · 16 descriptor length u64 · 24 descriptor
//	status       0 type u32le 3 · 4 success u8
//
// The host says whether it has the file; the DPU answers with a direction
// message, whose size is 0 if the file is the host's; the host exports a buffer
// of the file's size; the DPU copies, and says whether that went well. Padding is
// zero in what this side sends.
type originalMessage interface{ append(b []byte) []byte }

const (
	originalDirection = 1
	originalExport    = 2
	originalStatus    = 3

	originalDirectionSize = 16
	originalExportFixed   = 24
	originalStatusSize    = 8
)

type directionMessage struct {
	fileInHost bool
	fileSize   uint64
}

type exportMessage struct {
	hostAddress uint64
	descriptor  []byte
}

type statusMessage struct{ success bool }

func (m directionMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, originalDirection)
	b = append(b, flag(m.fileInHost), 0, 0, 0)
	return binary.BigEndian.AppendUint64(b, m.fileSize)
}

func (m exportMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, originalExport)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, m.hostAddress)
	b = binary.BigEndian.AppendUint64(b, uint64(len(m.descriptor)))
	return append(b, m.descriptor...)
}

func (m statusMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, originalStatus)
	return append(b, flag(m.success), 0, 0, 0)
}

// parseOriginal reads a message of the peer, which may be anything.
func parseOriginal(b []byte) (originalMessage, error) {
	if len(b) < originalStatusSize {
		return nil, status.Errorf(status.InvalidValue, "message of %d bytes is too short", len(b))
	}
	switch kind := binary.LittleEndian.Uint32(b); kind {
	case originalDirection:
		if err := exactly("direction", b, originalDirectionSize); err != nil {
			return nil, err
		}
		return directionMessage{fileInHost: b[4] != 0, fileSize: binary.BigEndian.Uint64(b[8:])}, nil
	case originalExport:
		return parseOriginalExport(b)
	case originalStatus:
		if err := exactly("status", b, originalStatusSize); err != nil {
			return nil, err
		}
		return statusMessage{success: b[4] != 0}, nil
	default:
		return nil, status.Errorf(status.InvalidValue, "message has unknown type %d", kind)
	}
}

func exactly(name string, b []byte, size int) error {
	if len(b) != size {
		return status.Errorf(status.InvalidValue, "%s message has %d bytes, not %d", name, len(b), size)
	}
	return nil
}

func parseOriginalExport(b []byte) (originalMessage, error) {
	if len(b) <= originalExportFixed || len(b) > originalExportFixed+comch.MaxExportLength {
		return nil, status.Errorf(status.InvalidValue, "export message of %d bytes has no descriptor, or too long a one", len(b))
	}
	// The descriptor may be followed by what the sender's buffer held.
	length := binary.BigEndian.Uint64(b[16:])
	if length < 1 || length > uint64(len(b)-originalExportFixed) {
		return nil, status.Errorf(status.InvalidValue, "export message says that its descriptor has %d bytes of the %d there are", length, len(b)-originalExportFixed)
	}
	m := exportMessage{hostAddress: binary.BigEndian.Uint64(b[8:])}
	m.descriptor = append(m.descriptor, b[originalExportFixed:][:length]...)
	return m, nil
}
