// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A new field needs a line here, one in proto/zc/relay/control/v1, and one in protobuf.go. If its
// type allows more than the protocol does, it also needs a check in validate.

// Hello opens a conversation. The side that has connected sends it.
type Hello struct {
	// Role is the sender's.
	Role Role
	// MinVersion and MaxVersion are the range of protocol versions that the sender supports.
	MinVersion uint32
	MaxVersion uint32
	// MaxMessageSize is the largest message that the sender receives, in bytes.
	MaxMessageSize uint32
	// Software is the sender's name and version, for logs.
	Software string
	// SilenceLimitMs is how long the peer may be silent before the sender considers it dead, in
	// milliseconds; 0 means forever.
	SilenceLimitMs uint32
	// DataSecurity is a relay's.
	DataSecurity DataSecurity
}

// HelloReply sets the terms of the conversation.
type HelloReply struct {
	// Version is the highest that both sides support.
	Version uint32
	// MaxMessageSize is the largest message that either side may send, in bytes.
	MaxMessageSize uint32
	// Software and SilenceLimitMs are as in Hello.
	Software       string
	SilenceLimitMs uint32
	// Process identifies the process of a target, which picks it at random, so that a relay knows
	// which addresses lead to the same one. 0 means that the sender does not say.
	Process uint64
	// LeaseMs is how long an answer to a question lets a relay change volumes, counted from the
	// question, in milliseconds: see package lease. A relay passes on the longest of its targets. 0
	// means that the sender, or its targets, ask no questions.
	LeaseMs uint32
	// Question is the first question; 0 if there is none.
	Question uint64
	// DataSecurity is a target's.
	DataSecurity DataSecurity
}

func (m *Hello) validate() error {
	if m.Role < RoleInitiator || m.Role > RoleTarget {
		return status.Errorf(status.InvalidValue, "unknown role %d", m.Role)
	}
	if m.MinVersion == 0 || m.MinVersion > m.MaxVersion {
		return status.Errorf(status.InvalidValue, "invalid version range %d to %d",
			m.MinVersion, m.MaxVersion)
	}
	return firstError(checkDataSecurity(m.DataSecurity),
		validateTerms(m.MaxMessageSize, m.Software, m.SilenceLimitMs))
}

func (m *HelloReply) validate() error {
	if m.Version == 0 {
		return status.Errorf(status.InvalidValue, "version is 0")
	}
	if m.LeaseMs > uint32(MaxLease.Milliseconds()) {
		return status.Errorf(status.InvalidValue, "lease_ms is %d, at most %d is allowed", m.LeaseMs,
			MaxLease.Milliseconds())
	}
	return firstError(checkDataSecurity(m.DataSecurity),
		validateTerms(m.MaxMessageSize, m.Software, m.SilenceLimitMs))
}

func validateTerms(maxMessageSize uint32, software string, silenceLimitMs uint32) error {
	if maxMessageSize < MinMessageSize {
		return status.Errorf(status.InvalidValue,
			"max_message_size is %d bytes, must be at least %d",
			maxMessageSize, MinMessageSize)
	}
	limitMs := uint32(minSilenceLimit.Milliseconds())
	if silenceLimitMs != 0 && silenceLimitMs < limitMs {
		return status.Errorf(status.InvalidValue,
			"silence_limit_ms is %d, must be 0 or at least %d", silenceLimitMs, limitMs)
	}
	return checkName("software", software, maxSoftwareLength)
}

// OpenVolume selects the volume of a session. The requester may repeat it to learn of changes.
type OpenVolume struct {
	// Volume is the volume's name. An initiator may leave it empty: the relay's channel decides.
	Volume string
	// Confirm makes a target find out whether it still serves the volume as OpenVolumeReply.Sole
	// says.
	Confirm bool
}

// OpenVolumeReply describes the volume and limits the session.
type OpenVolumeReply struct {
	Volume string
	// UUID identifies the volume for as long as its content exists.
	UUID [16]byte
	// WriteVerifier changes whenever unflushed writes may have been lost.
	WriteVerifier uint64
	// Size is in bytes, a multiple of BlockSize.
	Size uint64
	// BlockSize is in bytes, a power of two. Offsets and lengths of IO are multiples of it.
	BlockSize uint32
	ReadOnly  bool
	// Capabilities are bits of volume.Capability. Receivers ignore unknown bits.
	Capabilities uint32
	// MaxQueues, MaxDepth (IOs in flight per queue) and MaxBufferSize (bytes per IO) are the
	// largest values that ConfigureDataPath may request.
	MaxQueues     uint32
	MaxDepth      uint32
	MaxBufferSize uint32
	// Transport is an RDMA transport, for instance "iwarp". A target announces its device's, a relay
	// tells an initiator which one a session would use.
	Transport string
	// Exclusive means that only one owner at a time may open the volume for writing.
	Exclusive bool
	// Sessions is the number of sessions that have the volume open: those that have configured a
	// data path.
	Sessions uint32
	// Holder is the client that has the volume open exclusively; empty if none has. HolderID names
	// it; 0 if there is none, or from a target that does not know ConfigureDataPath.Preempt.
	Holder   string
	HolderID HolderID
	// Fenced means that at most one target at a time can write to the volume, and that nothing of
	// a former one takes effect any more.
	Fenced bool
	// RDMAPort is the port of the target's RDMA listener; 0 if it is not known, and from a relay.
	// RDMAAddress is its address, not valid if it is not known.
	RDMAPort    uint16
	RDMAAddress netip.Addr
	// Sole names what keeps two processes from serving the volume at a time: see lease.Place. It is
	// empty if nothing does, and from a relay.
	Sole string
	// Confirmed means that the target has found out, since it received the request, that no other
	// process has what Sole names.
	Confirmed bool
}

// TransportsMayAgree reports whether relay and target may have a connection, by the transports of
// their devices. A device of the provider auto has the transport iwarp, and also connects over
// shared memory. Whether it does with a peer whose transport is shm, only an attempt shows.
func TransportsMayAgree(one, other string) bool {
	isSoftware := func(transport string) bool { return transport == "iwarp" || transport == "shm" }
	return one == other || isSoftware(one) && isSoftware(other)
}

func (m *OpenVolume) validate() error {
	return checkName("volume", m.Volume, MaxVolumeNameLength)
}

func (m *OpenVolumeReply) validate() error {
	if err := checkPowerOfTwo("block_size", m.BlockSize, maxBlockSize); err != nil {
		return err
	}
	if m.Size%uint64(m.BlockSize) != 0 {
		return status.Errorf(status.InvalidValue,
			"size is %d bytes, must be a multiple of the block size %d",
			m.Size, m.BlockSize)
	}
	if m.RDMAAddress.IsValid() {
		if err := checkAddress("rdma_address", m.RDMAAddress); err != nil {
			return err
		}
	}
	return firstError(
		checkName("volume", m.Volume, MaxVolumeNameLength),
		checkName("transport", m.Transport, maxTransportLength),
		checkName("holder", m.Holder, maxHolderLength),
		checkName("sole", m.Sole, maxSoleLength),
		checkCount("max_queues", m.MaxQueues, MaxQueues),
		checkCount("max_depth", m.MaxDepth, MaxDepth),
		checkCount("max_buffer_size", m.MaxBufferSize, MaxBufferSize),
	)
}

// CheckLimits returns a TooBig error unless c is within the limits that this reply announced.
func (m *OpenVolumeReply) CheckLimits(c *ConfigureDataPath) error {
	return firstError(
		checkCount("queue count", c.QueueCount, m.MaxQueues),
		checkCount("depth", c.Depth, m.MaxDepth),
		checkCount("buffer size", c.BufferSize, m.MaxBufferSize),
	)
}

// ConfigureDataPath sizes the data path of a session and exports the memory for its data.
type ConfigureDataPath struct {
	QueueCount uint32
	// Depth is the number of IOs in flight per queue.
	Depth uint32
	// BufferSize is the largest IO in bytes.
	BufferSize uint32
	Export     Export
	// ClientInstance identifies one run of a client program, which picks it at random. All sessions
	// of that run carry the same value.
	ClientInstance [16]byte
	// Epoch numbers the sessions of a client instance in ascending order. Relay and target reject
	// an epoch that has been superseded by a higher one.
	Epoch uint64
	// Owner identifies the program on whose behalf the session is opened, which picks it at random.
	// Sessions of one owner may share a volume that is open exclusively.
	Owner [16]byte
	// Exclusive keeps other owners from opening the volume while the session exists.
	Exclusive bool
	// ReadOnly makes the target reject whatever would change the volume.
	ReadOnly bool
	// Client is the program's name, which the target tells others that the volume is refused to.
	Client string
	// Session is a relay's number for the session, and Answer what the relay answers to the last
	// question; 0 and empty if it answers none.
	Session uint64
	Answer  lease.Answer
	// Preempt is the holder that the session is to replace; 0 for none.
	Preempt HolderID
}

// ConfigureDataPathReply accepts a configuration.
type ConfigureDataPathReply struct {
	// InboundReads is the number of RDMA Reads that a target may have outstanding on one
	// connection; 0 from a relay.
	InboundReads uint32
	// Exclusive means that the session keeps other owners from opening the volume, because it asked
	// for that, or from opening it for writing, because the volume allows one writer at a time.
	Exclusive bool
	// ReadOnly means that the session is read-only.
	ReadOnly bool
	// HolderID names the owner to others; 0 if the sender does not know ConfigureDataPath.Preempt.
	HolderID HolderID
	// HolderAbsent means that the holder that ConfigureDataPath.Preempt names was not there.
	HolderAbsent bool
}

// Export gives the receiver access to memory of the initiator. Either Descriptor or RDMA is set.
type Export struct {
	Access memory.Access
	// Length is in bytes.
	Length uint64
	// Descriptor is the argument of comch.Connection.ImportMemory, from an initiator.
	Descriptor []byte
	// RDMA identifies the memory in RDMA operations, from a relay.
	RDMA *RDMAExport
}

// RDMAExport identifies memory in RDMA operations.
type RDMAExport struct {
	// Transport is the RDMA transport on which the key is valid.
	Transport string
	// Key is the remote key, or STag.
	Key uint32
	// Base is the address of the first byte.
	Base uint64
}

// RemoteMemory returns the memory as RDMA operations need it. The export must be a relay's.
func (e *Export) RemoteMemory() rdma.RemoteMemory {
	return rdma.RemoteMemory{Key: e.RDMA.Key, Base: e.RDMA.Base, Length: e.Length, Access: e.Access}
}

func (m *ConfigureDataPath) validate() error {
	return firstError(
		checkCount("queue_count", m.QueueCount, MaxQueues),
		checkCount("depth", m.Depth, MaxDepth),
		checkCount("buffer_size", m.BufferSize, MaxBufferSize),
		m.Export.validate(),
		checkName("client", m.Client, MaxClientLength),
		checkAnswer(&m.Answer),
	)
}

func (*ConfigureDataPathReply) validate() error { return nil }

func (e *Export) validate() error {
	if !e.Access.Valid() {
		return status.Errorf(status.InvalidValue, "export access %#x has unknown rights",
			uint32(e.Access))
	}
	if e.Length == 0 {
		return status.Errorf(status.InvalidValue, "export has length 0")
	}
	if (len(e.Descriptor) > 0) == (e.RDMA != nil) {
		return status.Errorf(status.InvalidValue,
			"export must have either a descriptor or an RDMA key")
	}
	if len(e.Descriptor) > maxDescriptorLength {
		return status.Errorf(status.TooBig, "export descriptor has %d bytes, the limit is %d",
			len(e.Descriptor), maxDescriptorLength)
	}
	if e.RDMA == nil {
		return nil
	}
	if e.Length > math.MaxUint64-e.RDMA.Base {
		return status.Errorf(status.InvalidValue,
			"export of %d bytes at %#x exceeds the address space",
			e.Length, e.RDMA.Base)
	}
	return checkName("export transport", e.RDMA.Transport, maxTransportLength)
}

// CreateRDMAConnection announces an RDMA connection to the target.
type CreateRDMAConnection struct {
	// Queue is the index of the queue, from 0.
	Queue uint32
	// Role selects one of the queue's connections.
	Role iomsg.ConnectionRole
	// Source is the address that the relay will connect from.
	Source netip.Addr
}

// CreateRDMAConnectionReply tells the relay where to connect.
type CreateRDMAConnectionReply struct {
	Address netip.AddrPort
	// Token is the one-time secret that the relay returns in RDMAPrivateData when it connects.
	Token [16]byte
	// Staging is where the relay may push the data of writes: one buffer of the configured buffer
	// size per slot. Nil means that the target fetches the data of all writes.
	Staging *rdma.RemoteMemory
}

func (m *CreateRDMAConnection) validate() error {
	if m.Queue >= MaxQueues {
		return status.Errorf(status.TooBig, "queue is %d, the limit is %d", m.Queue, MaxQueues-1)
	}
	if m.Role >= iomsg.ConnectionRoleCount {
		return status.Errorf(status.InvalidValue, "unknown connection role %d", m.Role)
	}
	return checkAddress("source", m.Source)
}

func (m *CreateRDMAConnectionReply) validate() error {
	if m.Address.Port() == 0 {
		return status.Errorf(status.InvalidValue, "port is 0")
	}
	if s := m.Staging; s != nil && (s.Length == 0 || s.Base+s.Length < s.Base) {
		return status.Errorf(status.InvalidValue,
			"staging of %d bytes at %#x is empty or wraps around",
			s.Length, s.Base)
	}
	return checkAddress("address", m.Address.Addr())
}

// StartDataPathConnections announces that the sender's side of all queues exists.
type StartDataPathConnections struct {
	// ConsumerIDs are an initiator's Comch consumers in the order of its queues. A target ignores
	// them.
	ConsumerIDs []uint32
}

// StartDataPathConnectionsReply confirms that all queues are connected.
type StartDataPathConnectionsReply struct {
	// ConsumerIDs are a relay's Comch consumers in the order of the queues. A relay ignores those
	// in a target's reply.
	ConsumerIDs []uint32
}

func (m *StartDataPathConnections) validate() error      { return checkConsumers(m.ConsumerIDs) }
func (m *StartDataPathConnectionsReply) validate() error { return checkConsumers(m.ConsumerIDs) }

// StartStorage starts serving IO.
type StartStorage struct{}

// StartStorageReply confirms that all receives are posted and IO is served.
type StartStorageReply struct{}

// Stop stops serving IO. Before it, a stop message on each queue has drained that queue.
type Stop struct{}

// StopReply confirms that no IO is served any more.
type StopReply struct{}

// DestroyObjects releases everything that the session has built so far.
type DestroyObjects struct{}

// DestroyObjectsReply confirms that everything has been released.
type DestroyObjectsReply struct{}

// KeepAlive shows that the sender is alive. It has no reply.
type KeepAlive struct {
	// VolumeSize is the size of the session's volume in bytes, a multiple of its block size, if a
	// Responder says it; 0 otherwise. A volume never becomes smaller while sessions have it open.
	VolumeSize uint64
	// Question and Confirmed are a target's: see lease.Question.
	Question lease.Question
	// Answer is a relay's.
	Answer lease.Answer
}

func (*StartStorage) validate() error        { return nil }
func (*StartStorageReply) validate() error   { return nil }
func (*Stop) validate() error                { return nil }
func (*StopReply) validate() error           { return nil }
func (*DestroyObjects) validate() error      { return nil }
func (*DestroyObjectsReply) validate() error { return nil }

func (m *KeepAlive) validate() error {
	return firstError(
		checkSessions("noted", m.Question.Noted, lease.MaxEnded),
		checkSessions("confirmed", m.Question.Confirmed, 2*lease.MaxEnded),
		checkAnswer(&m.Answer),
	)
}

func checkAnswer(a *lease.Answer) error {
	return firstError(
		checkSessions("ended", a.Ended, lease.MaxEnded),
		checkSessions("awaited", a.Awaited, lease.MaxEnded),
	)
}

func checkSessions(field string, numbers []uint64, limit int) error {
	if len(numbers) > limit {
		return status.Errorf(status.TooBig, "%s has %d sessions, the limit is %d", field,
			len(numbers), limit)
	}
	return nil
}

// Error is a failure reported by a peer: the answer to a failed request, or the reason why the
// peer ends the conversation. It is an error that errors.Is matches with its status.Code.
type Error struct {
	Code status.Code
	// Phase is the step of the handshake in which the peer failed.
	Phase Phase
	// Text is one printable line of at most MaxTextLength bytes.
	Text string
	// RetryAfterMs says, with status.Again, when to try again, in milliseconds; 0 means that the
	// peer does not know.
	RetryAfterMs uint32
}

// Error attributes the failure to the peer and names phase, text and symbolic code.
func (e *Error) Error() string {
	return fmt.Sprintf("the other side reports at step %v: %s", e.Phase,
		status.WithCode(e.Text, e.Code))
}

// Unwrap returns the code, for errors.Is and status.CodeOf.
func (e *Error) Unwrap() error { return e.Code }

func (e *Error) validate() error {
	if e.Code == status.Success {
		return status.Errorf(status.InvalidValue, "error with code 0 (success)")
	}
	if e.Phase >= phaseCount {
		return status.Errorf(status.InvalidValue, "unknown phase %d", e.Phase)
	}
	if e.RetryAfterMs > maxRetryAfterMs || e.RetryAfterMs > 0 && e.Code != status.Again {
		return status.Errorf(status.InvalidValue, "error %v asks to try again in %d ms", e.Code,
			e.RetryAfterMs)
	}
	return checkName("error text", e.Text, MaxTextLength)
}

// MaxRetryAfter is the longest time that an Error can ask its receiver to wait.
const MaxRetryAfter = time.Minute

const maxRetryAfterMs = uint32(MaxRetryAfter / time.Millisecond)

// postponement is a refusal that says when to try again.
type postponement struct {
	error
	after time.Duration
}

func (p *postponement) Unwrap() error { return p.error }

// Postpone returns an error with status.Again whose receiver shall try again after a time, which is
// rounded up to milliseconds and at most MaxRetryAfter. format and args are those of fmt.Errorf.
func Postpone(after time.Duration, format string, args ...any) error {
	after = min(after+time.Millisecond-1, MaxRetryAfter).Truncate(time.Millisecond)
	return &postponement{status.Errorf(status.Again, format, args...), after}
}

// RetryAfter returns when to try again after a refusal: what this side has said by Postpone, or the
// peer in an Error. It returns 0 if neither has said anything.
func RetryAfter(err error) time.Duration {
	if p, ok := errors.AsType[*postponement](err); ok {
		return p.after
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return time.Duration(e.RetryAfterMs) * time.Millisecond
	}
	return 0
}

// report converts an error of this side to the message for the peer. An error that came from
// another peer keeps its code and phase.
func report(err error, phase Phase) *Error {
	if err == nil {
		return &Error{Code: status.Unknown, Phase: phase, Text: "unspecified failure"}
	}
	if passed, ok := errors.AsType[*Error](err); ok && passed.Phase != PhaseUnknown {
		phase = passed.Phase
	}
	code := status.CodeOf(err)
	if code == status.Success {
		code = status.Unknown
	}
	text := err.Error()
	outer := err
	if p, ok := err.(*postponement); ok {
		outer = p.error
	}
	switch outermost := outer.(type) { // omit what Code and Phase say; inner errors keep it
	case *Error:
		text = outermost.Text
	case *status.Error:
		text = outermost.Err.Error()
	}
	e := &Error{Code: code, Phase: phase, Text: printable.Line(text, MaxTextLength)}
	if code == status.Again {
		e.RetryAfterMs = uint32(RetryAfter(err).Milliseconds())
	}
	return e
}

// Kind identifies each message: see Message.
func (*Error) Kind() Kind                         { return KindError }
func (*KeepAlive) Kind() Kind                     { return KindKeepAlive }
func (*Hello) Kind() Kind                         { return KindHello }
func (*HelloReply) Kind() Kind                    { return KindHelloReply }
func (*OpenVolume) Kind() Kind                    { return KindOpenVolume }
func (*OpenVolumeReply) Kind() Kind               { return kindOpenVolumeReply }
func (*ConfigureDataPath) Kind() Kind             { return KindConfigureDataPath }
func (*ConfigureDataPathReply) Kind() Kind        { return kindConfigureDataPathReply }
func (*CreateRDMAConnection) Kind() Kind          { return KindCreateRDMAConnection }
func (*CreateRDMAConnectionReply) Kind() Kind     { return kindCreateRDMAConnectionReply }
func (*StartDataPathConnections) Kind() Kind      { return KindStartDataPathConnections }
func (*StartDataPathConnectionsReply) Kind() Kind { return kindStartDataPathConnectionsReply }
func (*StartStorage) Kind() Kind                  { return KindStartStorage }
func (*StartStorageReply) Kind() Kind             { return kindStartStorageReply }
func (*Stop) Kind() Kind                          { return KindStop }
func (*StopReply) Kind() Kind                     { return kindStopReply }
func (*DestroyObjects) Kind() Kind                { return KindDestroyObjects }
func (*DestroyObjectsReply) Kind() Kind           { return kindDestroyObjectsReply }

func (*Hello) repliedBy(*HelloReply)                                       {}
func (*OpenVolume) repliedBy(*OpenVolumeReply)                             {}
func (*ConfigureDataPath) repliedBy(*ConfigureDataPathReply)               {}
func (*CreateRDMAConnection) repliedBy(*CreateRDMAConnectionReply)         {}
func (*StartDataPathConnections) repliedBy(*StartDataPathConnectionsReply) {}
func (*StartStorage) repliedBy(*StartStorageReply)                         {}
func (*Stop) repliedBy(*StopReply)                                         {}
func (*DestroyObjects) repliedBy(*DestroyObjectsReply)                     {}
