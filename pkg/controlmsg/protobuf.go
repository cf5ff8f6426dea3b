// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"fmt"
	"math"
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/internal/controlpb"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Encode encodes an envelope as proto/zc/relay/control/v1 defines it. It fails if the message is
// not valid.
func Encode(e *Envelope) ([]byte, error) {
	if err := Validate(e.Message); err != nil {
		return nil, fmt.Errorf("encode %v: %w", e.Message.Kind(), err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(toWire(e))
	if err != nil {
		return nil, fmt.Errorf("encode %v: %w", e.Message.Kind(), err)
	}
	return b, nil
}

// Decode decodes the one envelope that fills b, and ignores unknown fields. The result is valid and
// does not refer to b. An unknown kind of message fails with status.Unexpected, everything else
// with status.InvalidValue or status.TooBig.
func Decode(b []byte) (*Envelope, error) {
	var wire controlpb.Envelope
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, &wire); err != nil {
		return nil, status.Errorf(status.InvalidValue, "decode message of %d bytes: %w",
			len(b), err)
	}
	e, err := fromWire(&wire)
	if err != nil {
		return nil, fmt.Errorf("decode message of %d bytes: %w", len(b), err)
	}
	if err := Validate(e.Message); err != nil {
		return nil, fmt.Errorf("decode %v: %w", e.Message.Kind(), err)
	}
	return e, nil
}

// wireFormats holds the wire format of each kind of message.
var wireFormats = [kindCount]wireFormat{
	KindError:                         format((*Error).translate),
	KindKeepAlive:                     format((*KeepAlive).translate),
	KindHello:                         format((*Hello).translate),
	KindHelloReply:                    format((*HelloReply).translate),
	KindOpenVolume:                    format((*OpenVolume).translate),
	kindOpenVolumeReply:               format((*OpenVolumeReply).translate),
	KindConfigureDataPath:             format((*ConfigureDataPath).translate),
	kindConfigureDataPathReply:        format((*ConfigureDataPathReply).translate),
	KindCreateRDMAConnection:          format((*CreateRDMAConnection).translate),
	kindCreateRDMAConnectionReply:     format((*CreateRDMAConnectionReply).translate),
	KindStartDataPathConnections:      format((*StartDataPathConnections).translate),
	kindStartDataPathConnectionsReply: format((*StartDataPathConnectionsReply).translate),
	KindStartStorage:                  format[StartStorage, controlpb.StartStorage](nil),
	kindStartStorageReply:             format[StartStorageReply, controlpb.StartStorageReply](nil),
	KindStop:                          format[Stop, controlpb.Stop](nil),
	kindStopReply:                     format[StopReply, controlpb.StopReply](nil),
	KindDestroyObjects:                format[DestroyObjects, controlpb.DestroyObjects](nil),
	kindDestroyObjectsReply: format[DestroyObjectsReply,
		controlpb.DestroyObjectsReply](nil),
}

func (m *KeepAlive) translate(w *controlpb.KeepAlive, t *translation) {
	plain(t, &m.VolumeSize, &w.VolumeSize)
	plain(t, &m.Question.Number, &w.Question)
	plain(t, &m.Question.Noted, &w.Noted)
	plain(t, &m.Question.Confirmed, &w.Confirmed)
	translateAnswer(t, &m.Answer, &w.RelayInstance, &w.Answer, &w.Ended, &w.Awaited)
}

// translateAnswer translates the fields of an answer, which two messages have. An answer of
// nobody is not sent.
func translateAnswer(
	t *translation, m *lease.Answer, instance *[]byte, question *uint64, ended, awaited *[]uint64,
) {
	plain(t, &m.Question, question)
	plain(t, &m.Ended, ended)
	plain(t, &m.Awaited, awaited)
	if m.Instance != (lease.Instance{}) || len(*instance) > 0 {
		sixteenBytes(t, "relay_instance", &m.Instance, instance)
	}
}

func (m *Hello) translate(w *controlpb.Hello, t *translation) {
	enum(t, "role", &m.Role, &w.Role, 0)
	plain(t, &m.MinVersion, &w.MinVersion)
	plain(t, &m.MaxVersion, &w.MaxVersion)
	plain(t, &m.MaxMessageSize, &w.MaxMessageSize)
	plain(t, &m.Software, &w.Software)
	plain(t, &m.SilenceLimitMs, &w.SilenceLimitMs)
	enum(t, "data_security", &m.DataSecurity, &w.DataSecurity, 0)
}

func (m *HelloReply) translate(w *controlpb.HelloReply, t *translation) {
	plain(t, &m.Version, &w.Version)
	plain(t, &m.MaxMessageSize, &w.MaxMessageSize)
	plain(t, &m.Software, &w.Software)
	plain(t, &m.SilenceLimitMs, &w.SilenceLimitMs)
	plain(t, &m.Process, &w.Process)
	plain(t, &m.LeaseMs, &w.LeaseMs)
	plain(t, &m.Question, &w.Question)
	enum(t, "data_security", &m.DataSecurity, &w.DataSecurity, 0)
}

func (m *OpenVolume) translate(w *controlpb.OpenVolume, t *translation) {
	plain(t, &m.Volume, &w.Volume)
	plain(t, &m.Confirm, &w.Confirm)
}

func (m *OpenVolumeReply) translate(w *controlpb.OpenVolumeReply, t *translation) {
	plain(t, &m.Volume, &w.Volume)
	sixteenBytes(t, "uuid", &m.UUID, &w.Uuid)
	plain(t, &m.WriteVerifier, &w.WriteVerifier)
	plain(t, &m.Size, &w.Size)
	plain(t, &m.BlockSize, &w.BlockSize)
	plain(t, &m.ReadOnly, &w.ReadOnly)
	plain(t, &m.Capabilities, &w.Capabilities)
	plain(t, &m.MaxQueues, &w.MaxQueues)
	plain(t, &m.MaxDepth, &w.MaxDepth)
	plain(t, &m.MaxBufferSize, &w.MaxBufferSize)
	plain(t, &m.Transport, &w.Transport)
	plain(t, &m.Exclusive, &w.Exclusive)
	plain(t, &m.Sessions, &w.Sessions)
	plain(t, &m.Holder, &w.Holder)
	plain(t, &m.Fenced, &w.Fenced)
	port(t, "rdma_port", &m.RDMAPort, &w.RdmaPort)
	plain(t, &m.Sole, &w.Sole)
	plain(t, (*uint64)(&m.HolderID), &w.HolderId)
	plain(t, &m.Confirmed, &w.Confirmed)
	if m.RDMAAddress.IsValid() || len(w.RdmaAddress) > 0 {
		ipAddress(t, "rdma_address", &m.RDMAAddress, &w.RdmaAddress)
	}
}

func (m *ConfigureDataPath) translate(w *controlpb.ConfigureDataPath, t *translation) {
	plain(t, &m.QueueCount, &w.QueueCount)
	plain(t, &m.Depth, &w.Depth)
	plain(t, &m.BufferSize, &w.BufferSize)
	sixteenBytes(t, "client_instance", &m.ClientInstance, &w.ClientInstance)
	plain(t, &m.Epoch, &w.Epoch)
	sixteenBytes(t, "owner", &m.Owner, &w.Owner)
	plain(t, &m.Exclusive, &w.Exclusive)
	plain(t, &m.ReadOnly, &w.ReadOnly)
	plain(t, &m.Client, &w.Client)
	plain(t, &m.Session, &w.Session)
	plain(t, (*uint64)(&m.Preempt), &w.Preempt)
	translateAnswer(t, &m.Answer, &w.RelayInstance, &w.Answer, &w.Ended, &w.Awaited)
	if w.Export == nil {
		w.Export = &controlpb.Export{}
	}
	m.Export.translate(w.Export, t)
}

func (m *Export) translate(w *controlpb.Export, t *translation) {
	plain(t, (*uint32)(&m.Access), &w.Access)
	plain(t, &m.Length, &w.Length)
	remote := w.GetRdma()
	switch {
	case t.decoding:
		m.Descriptor = w.GetDescriptor_()
		if remote == nil {
			return
		}
		m.RDMA = &RDMAExport{}
	case m.RDMA == nil:
		w.Location = &controlpb.Export_Descriptor_{Descriptor_: m.Descriptor}
		return
	default:
		remote = &controlpb.RdmaExport{}
		w.Location = &controlpb.Export_Rdma{Rdma: remote}
	}
	plain(t, &m.RDMA.Transport, &remote.Transport)
	plain(t, &m.RDMA.Key, &remote.RemoteKey)
	plain(t, &m.RDMA.Base, &remote.Base)
}

func (m *ConfigureDataPathReply) translate(w *controlpb.ConfigureDataPathReply, t *translation) {
	plain(t, &m.InboundReads, &w.InboundReads)
	plain(t, &m.Exclusive, &w.Exclusive)
	plain(t, &m.ReadOnly, &w.ReadOnly)
	plain(t, (*uint64)(&m.HolderID), &w.HolderId)
	plain(t, &m.HolderAbsent, &w.HolderAbsent)
}

func (m *CreateRDMAConnection) translate(w *controlpb.CreateRdmaConnection, t *translation) {
	plain(t, &m.Queue, &w.Queue)
	connectionRole(t, &m.Role, &w.Role)
	ipAddress(t, "source", &m.Source, &w.Source)
}

func (m *CreateRDMAConnectionReply) translate(
	w *controlpb.CreateRdmaConnectionReply, t *translation,
) {
	address, number := m.Address.Addr(), m.Address.Port()
	ipAddress(t, "address", &address, &w.Address)
	port(t, "port", &number, &w.Port)
	if t.decoding {
		m.Address = netip.AddrPortFrom(address, number)
	}
	sixteenBytes(t, "token", &m.Token, &w.Token)
	switch {
	case t.decoding && w.Staging != nil:
		m.Staging = &rdma.RemoteMemory{Access: memory.RemoteWrite} // implied by the message
	case !t.decoding && m.Staging != nil:
		w.Staging = &controlpb.Staging{}
	default:
		return
	}
	plain(t, &m.Staging.Key, &w.Staging.RemoteKey)
	plain(t, &m.Staging.Base, &w.Staging.Base)
	plain(t, &m.Staging.Length, &w.Staging.Length)
}

func (m *StartDataPathConnections) translate(
	w *controlpb.StartDataPathConnections, t *translation,
) {
	plain(t, &m.ConsumerIDs, &w.ConsumerIds)
}

func (m *StartDataPathConnectionsReply) translate(
	w *controlpb.StartDataPathConnectionsReply, t *translation,
) {
	plain(t, &m.ConsumerIDs, &w.ConsumerIds)
}

// translate is lenient in decoding: the reason for a failure must get through, even from a peer
// that knows more codes and phases.
func (m *Error) translate(w *controlpb.Error, t *translation) {
	if !t.decoding {
		w.Code, w.Phase, w.Text = controlpb.Code(m.Code), controlpb.Phase(m.Phase), m.Text
		w.RetryAfterMs = m.RetryAfterMs
		return
	}
	m.Code, m.Text = status.Code(w.Code), printable.Line(w.Text, MaxTextLength)
	if w.Phase > 0 && w.Phase < controlpb.Phase(phaseCount) {
		m.Phase = Phase(w.Phase)
	}
	if m.Code == status.Again {
		m.RetryAfterMs = min(w.RetryAfterMs, maxRetryAfterMs)
	}
}

// translation copies the fields of one message between its Go struct and its protocol buffer, in
// one of the two directions. It fails only on values that the types of the Go struct cannot hold;
// validate checks the rest.
type translation struct {
	decoding bool
	err      error // the first
}

func (t *translation) fail(format string, args ...any) {
	if t.err == nil {
		t.err = status.Errorf(status.InvalidValue, format, args...)
	}
}

func plain[T any](t *translation, field, wire *T) {
	if t.decoding {
		*field = *wire
	} else {
		*wire = *field
	}
}

// enum translates between an enum of this package and one of the wire, whose numbers are higher by
// offset. The wire can carry any number.
func enum[E ~uint8, W ~int32](t *translation, name string, field *E, wire *W, offset W) {
	if !t.decoding {
		*wire = W(*field) + offset
		return
	}
	if *wire < offset || *wire-offset > math.MaxUint8 {
		t.fail("unknown %s %d", name, *wire)
		return
	}
	*field = E(*wire - offset)
}

func connectionRole(t *translation, field *iomsg.ConnectionRole, wire *controlpb.ConnectionRole) {
	enum(t, "connection role", field, wire, controlpb.ConnectionRole_CONNECTION_ROLE_CONTROL)
}

func sixteenBytes(t *translation, name string, field *[16]byte, wire *[]byte) {
	switch {
	case !t.decoding:
		*wire = field[:]
	case len(*wire) != len(field):
		t.fail("%s has %d bytes, must have %d", name, len(*wire), len(field))
	default:
		*field = [16]byte(*wire)
	}
}

// port translates port numbers.
func port(t *translation, name string, field *uint16, wire *uint32) {
	if !t.decoding {
		*wire = uint32(*field)
		return
	}
	if *wire > math.MaxUint16 {
		t.fail("%s %d exceeds 16 bits", name, *wire)
	}
	*field = uint16(*wire)
}

// ipAddress translates IP addresses. It encodes IPv4 addresses in 4 bytes, even if they are mapped
// to IPv6.
func ipAddress(t *translation, name string, field *netip.Addr, wire *[]byte) {
	if !t.decoding {
		*wire = field.Unmap().AsSlice()
		return
	}
	address, ok := netip.AddrFromSlice(*wire)
	if !ok {
		t.fail("%s has %d bytes, must have 4 or 16", name, len(*wire))
	}
	*field = address.Unmap()
}

// wireFormat translates one kind of message.
type wireFormat struct {
	encode func(Message) proto.Message
	decode func(proto.Message) (Message, error)
}

// format returns the wire format of a message M whose protocol buffer is W; translate is nil if it
// has no fields.
func format[M, W any, PM interface {
	*M
	Message
}, PW interface {
	*W
	proto.Message
}](translate func(PM, PW, *translation)) wireFormat {
	if translate == nil {
		translate = func(PM, PW, *translation) {}
	}
	return wireFormat{
		encode: func(m Message) proto.Message {
			wire := PW(new(W))
			translate(m.(PM), wire, &translation{})
			return wire
		},
		decode: func(wire proto.Message) (Message, error) {
			m, t := PM(new(M)), translation{decoding: true}
			translate(m, wire.(PW), &t)
			return m, t.err
		},
	}
}

// wireMessages describes the oneof of the protocol buffer Envelope. Its fields are named like the
// kinds.
var wireMessages = (*controlpb.Envelope)(nil).ProtoReflect().Descriptor().Oneofs().ByName("message")

func toWire(e *Envelope) *controlpb.Envelope {
	wire := &controlpb.Envelope{Correlation: e.Correlation,
		TimeoutMs: uint32(min(max(e.Timeout, 0).Milliseconds(), math.MaxUint32))}
	kind := e.Message.Kind()
	field := wireMessages.Fields().ByName(protoreflect.Name(kind.String()))
	message := wireFormats[kind].encode(e.Message)
	wire.ProtoReflect().Set(field, protoreflect.ValueOfMessage(message.ProtoReflect()))
	return wire
}

func fromWire(wire *controlpb.Envelope) (*Envelope, error) {
	fields := wire.ProtoReflect()
	field := fields.WhichOneof(wireMessages)
	for kind := KindError; field != nil && kind < kindCount; kind++ {
		if string(field.Name()) == kind.String() {
			message, err := wireFormats[kind].decode(fields.Get(field).Message().Interface())
			return &Envelope{Correlation: wire.Correlation, Message: message,
				Timeout: time.Duration(wire.TimeoutMs) * time.Millisecond}, err
		}
	}
	return nil, status.Errorf(status.Unexpected, "message of unknown kind")
}
