// SPDX-License-Identifier: Apache-2.0

package dialects

import (
	"encoding/binary"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Numbers are big-endian. Blobs and texts have their length in front, 32 bits.
const (
	headerSize2 = 8  // of 2.10: size with the header (16 bits), type (16), correlation
	headerSize3 = 16 // of 3.x: size of what follows, type, ID, correlation
	sizeLength  = 4  // of the size in 3.x
	// filler is what follows the details of a connection in 2.10, whose applications count four
	// bytes for a role of one byte.
	filler = 3
)

// A message's type is its index: in types2_10 for 2.10, in types3 for 3.x.
var (
	types2_10 = []func() Message{
		func() Message { return &Response{} },
		func() Message { return &InitStorage{} },
		func() Message { return &CreateConnection{} },
		func() Message { return &CreateConnectionReply{} },
		func() Message { return &StartConnections{} },
		func() Message { return &StartStorage{} },
		func() Message { return &Shutdown{} },
	}
	types3 = []func() Message{
		func() Message { return &Response{} },
		func() Message { return &QueryStorage{} },
		func() Message { return &QueryStorageReply{} },
		func() Message { return &InitStorage{} },
		func() Message { return &InitStorageReply{} },
		func() Message { return &CreateConnection{} },
		func() Message { return &CreateConnectionReply{} },
		func() Message { return &StartStorage{} },
		func() Message { return &StartStorageReply{} },
		func() Message { return &StopStorage{} },
		func() Message { return &StopStorageReply{} },
		func() Message { return &Shutdown{} },
		func() Message { return &ShutdownReply{} },
	}
)

const typeInitStorage = 3 // in 3.x

func (v Version) types() []func() Message {
	if v == DOCA2_10 {
		return types2_10
	}
	return types3
}

// Encode returns the encoded message. It fails if the version lacks the message, or if that is too
// big.
func Encode(v Version, e *Envelope) ([]byte, error) {
	kind := -1
	for i, create := range v.types() {
		if create().Name() == e.Message.Name() {
			kind = i
		}
	}
	if kind < 0 {
		return nil, status.Errorf(status.NotSupported, "%v has no %s", v, e.Message.Name())
	}
	b := make([]byte, 0, 64)
	if v == DOCA2_10 {
		b = binary.BigEndian.AppendUint16(b, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(kind))
	} else {
		b = binary.BigEndian.AppendUint32(b, 0)
		b = binary.BigEndian.AppendUint32(b, uint32(kind))
		b = binary.BigEndian.AppendUint32(b, e.ID)
	}
	b = binary.BigEndian.AppendUint32(b, e.Correlation)
	b = v.appendPayload(b, e.Message)
	if len(b) > v.MaxSize() {
		return nil, status.Errorf(status.TooBig, "%s of %d bytes: %v allows %d", e.Message.Name(),
			len(b), v, v.MaxSize())
	}
	if v == DOCA2_10 {
		binary.BigEndian.PutUint16(b, uint16(len(b)))
	} else {
		binary.BigEndian.PutUint32(b, uint32(len(b)-sizeLength))
	}
	return b, nil
}

func (v Version) appendPayload(b []byte, m Message) []byte {
	number := func(n uint32) { b = binary.BigEndian.AppendUint32(b, n) }
	blob := func(content []byte) {
		number(uint32(len(content)))
		b = append(b, content...)
	}
	switch m := m.(type) {
	case *Response:
		number(uint32(m.Result))
		blob([]byte(m.Text))
	case *QueryStorageReply:
		b = binary.BigEndian.AppendUint64(b, m.TotalSize)
		number(m.BlockSize)
	case *InitStorage:
		number(m.Count)
		if v == DOCA2_10 {
			number(m.BufferSize)
		}
		if v <= DOCA3_0 {
			number(m.BatchSize)
		}
		if v != DOCA2_10 {
			number(m.Cores)
		}
		blob(m.Export)
	case *CreateConnection:
		return v.appendConnection(b, m)
	case *CreateConnectionReply:
		return v.appendConnection(b, (*CreateConnection)(m))
	}
	return b
}

func (v Version) appendConnection(b []byte, m *CreateConnection) []byte {
	if v == DOCA2_10 {
		b = append(b, byte(m.Role))
	} else {
		b = binary.BigEndian.AppendUint32(b, m.Context)
		b = binary.BigEndian.AppendUint32(b, uint32(m.Role))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Details)))
	b = append(b, m.Details...)
	if v == DOCA2_10 {
		b = append(b, make([]byte, filler)...)
	}
	return b
}

// Decode decodes the one message that fills b. The result does not refer to b. It fails with
// status.Unexpected for an unknown type, and otherwise with status.InvalidValue or status.TooBig.
func Decode(v Version, b []byte) (*Envelope, error) {
	if len(b) > v.MaxSize() {
		return nil, status.Errorf(status.TooBig, "message of %d bytes: %v allows %d", len(b), v,
			v.MaxSize())
	}
	d := decoder{rest: b}
	e := &Envelope{}
	var size, kind uint32
	if v == DOCA2_10 {
		sizeAndKind := d.number()
		size, kind = sizeAndKind>>16, sizeAndKind&0xffff
	} else {
		size, kind = d.number()+sizeLength, d.number()
		e.ID = d.number()
	}
	e.Correlation = d.number()
	if d.short || int64(size) != int64(len(b)) {
		return nil, status.Errorf(status.InvalidValue,
			"message of %d bytes says that it has %d", len(b), size)
	}
	if int64(kind) >= int64(len(v.types())) {
		return nil, status.Errorf(status.Unexpected, "%v has no message of type %d", v, kind)
	}
	e.Message = v.types()[kind]()
	if err := d.payload(v, e.Message); err != nil {
		return nil, err
	}
	if d.short || len(d.rest) > 0 {
		return nil, status.Errorf(status.InvalidValue, "%s of %d bytes has lengths that do not fit",
			e.Message.Name(), len(b))
	}
	return e, nil
}

// decoder takes fields from the front of a message.
type decoder struct {
	rest  []byte
	short bool // a field was longer than the rest
}

func (d *decoder) take(length uint64) []byte {
	if length > uint64(len(d.rest)) {
		d.short, d.rest = true, nil
		return nil
	}
	field := d.rest[:length]
	d.rest = d.rest[length:]
	return field
}

func (d *decoder) number() uint32 {
	field := d.take(4)
	if field == nil {
		return 0
	}
	return binary.BigEndian.Uint32(field)
}

func (d *decoder) blob() []byte { return append([]byte{}, d.take(uint64(d.number()))...) }

func (d *decoder) payload(v Version, m Message) error {
	switch m := m.(type) {
	case *Response:
		m.Result, m.Text = status.Code(d.number()), string(d.blob())
	case *QueryStorageReply:
		high := d.number()
		m.TotalSize = uint64(high)<<32 | uint64(d.number())
		m.BlockSize = d.number()
	case *InitStorage:
		m.Count = d.number()
		if v == DOCA2_10 {
			m.BufferSize = d.number()
		}
		if v <= DOCA3_0 {
			m.BatchSize = d.number()
		}
		if v != DOCA2_10 {
			m.Cores = d.number()
		}
		m.Export = d.blob()
	case *CreateConnection:
		return d.connection(v, m)
	case *CreateConnectionReply:
		return d.connection(v, (*CreateConnection)(m))
	}
	return nil
}

func (d *decoder) connection(v Version, m *CreateConnection) error {
	if v == DOCA2_10 {
		if role := d.take(1); role != nil {
			m.Role = Role(role[0])
		}
	} else {
		m.Context, m.Role = d.number(), Role(d.number())
	}
	m.Details = d.blob()
	if v == DOCA2_10 {
		d.take(filler) // of any content
	}
	if m.Role >= roleCount {
		return status.Errorf(status.InvalidValue, "RDMA connection with role %d", m.Role)
	}
	return nil
}
