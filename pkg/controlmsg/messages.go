package controlmsg

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Hello opens a connection; the side that has connected sends it.
type Hello struct {
	// Role is what the sender is.
	Role Role
	// MinVersion and MaxVersion are the protocol versions it speaks.
	MinVersion uint32
	MaxVersion uint32
	// MaxMessageSize is the largest message it receives, in bytes.
	MaxMessageSize uint32
	// Software is its name and version, for logs.
	Software string
	// SilenceLimitMs is after how many milliseconds without a message it
	// takes the peer for dead; 0 if never.
	SilenceLimitMs uint32
}

// Kind returns KindHello.
func (*Hello) Kind() Kind { return KindHello }

func (m *Hello) validate() error {
	if m.Role < RoleInitiator || m.Role > RoleTarget {
		return status.Errorf(status.InvalidValue, "role %d does not exist", m.Role)
	}
	if m.MinVersion == 0 || m.MinVersion > m.MaxVersion {
		return status.Errorf(status.InvalidValue, "versions %d to %d are no range", m.MinVersion, m.MaxVersion)
	}
	return validateTerms(m.MaxMessageSize, m.Software, m.SilenceLimitMs)
}

// HelloReply tells what both sides use from now on.
type HelloReply struct {
	// Version is the highest that both sides speak.
	Version uint32
	// MaxMessageSize is the largest message either side may send, in bytes.
	MaxMessageSize uint32
	// Software and SilenceLimitMs are as in Hello.
	Software       string
	SilenceLimitMs uint32
}

// Kind returns KindHelloReply.
func (*HelloReply) Kind() Kind { return KindHelloReply }

func (m *HelloReply) validate() error {
	if m.Version == 0 {
		return status.Errorf(status.InvalidValue, "version is 0")
	}
	return validateTerms(m.MaxMessageSize, m.Software, m.SilenceLimitMs)
}

// The versions of the protocol that this package speaks. There is only one.
const (
	ProtocolVersion    = 1
	minProtocolVersion = 1
)

// negotiateVersion picks the highest version that lies in both ranges.
func negotiateVersion(ownMin, ownMax, peerMin, peerMax uint32) (uint32, error) {
	version := min(ownMax, peerMax)
	if version < max(ownMin, peerMin) {
		return 0, status.Errorf(status.UnsupportedVersion,
			"the requester speaks protocol versions %d to %d, the responder %d to %d", peerMin, peerMax, ownMin, ownMax)
	}
	return version, nil
}

// minSilenceLimit keeps a peer from asking for keep-alives at a rate that
// would be work.
const minSilenceLimit = 100 * time.Millisecond

func validateTerms(maxMessageSize uint32, software string, silenceLimitMs uint32) error {
	if maxMessageSize < MinMessageSize {
		return status.Errorf(status.InvalidValue,
			"max_message_size is %d bytes, it must be at least %d", maxMessageSize, MinMessageSize)
	}
	if silenceLimitMs != 0 && silenceLimitMs < uint32(minSilenceLimit.Milliseconds()) {
		return status.Errorf(status.InvalidValue,
			"silence_limit_ms is %d, it must be 0 or at least %d", silenceLimitMs, minSilenceLimit.Milliseconds())
	}
	return checkName("software", software, MaxSoftwareLength)
}

// OpenVolume selects the volume of a connection. It may be sent again to
// learn whether anything has changed.
type OpenVolume struct {
	// Volume is the volume's name. It may be empty from an initiator: the
	// relay's channel decides.
	Volume string
}

// Kind returns KindOpenVolume.
func (*OpenVolume) Kind() Kind { return KindOpenVolume }

func (m *OpenVolume) validate() error {
	return checkName("volume", m.Volume, MaxVolumeNameLength)
}

// OpenVolumeReply describes the volume and the limits of a session.
type OpenVolumeReply struct {
	Volume string
	// UUID identifies the volume for as long as its content lives.
	UUID [16]byte
	// WriteVerifier changes whenever writes that were not flushed may have
	// been lost.
	WriteVerifier uint64
	// Size is in bytes, a multiple of BlockSize.
	Size uint64
	// BlockSize is in bytes, a power of two: offsets and lengths of IO are
	// multiples.
	BlockSize uint32
	ReadOnly  bool
	// Capabilities are the bits of volume.Capability; unknown ones are to be
	// ignored.
	Capabilities uint32
	// MaxQueues, MaxDepth (IOs in flight of one queue) and MaxBufferSize
	// (bytes of one IO) are what ConfigureDataPath may ask for.
	MaxQueues     uint32
	MaxDepth      uint32
	MaxBufferSize uint32
	// Transport is the RDMA transport of a target, for instance "iwarp";
	// empty from a relay.
	Transport string
}

// Kind returns KindOpenVolumeReply.
func (*OpenVolumeReply) Kind() Kind { return KindOpenVolumeReply }

func (m *OpenVolumeReply) validate() error {
	if err := checkName("volume", m.Volume, MaxVolumeNameLength); err != nil {
		return err
	}
	if err := checkName("transport", m.Transport, MaxTransportLength); err != nil {
		return err
	}
	if err := checkPowerOfTwo("block_size", m.BlockSize, MaxBlockSize); err != nil {
		return err
	}
	if m.Size%uint64(m.BlockSize) != 0 {
		return status.Errorf(status.InvalidValue,
			"size is %d bytes, it must be a multiple of the block size %d", m.Size, m.BlockSize)
	}
	if err := checkCount("max_queues", m.MaxQueues, MaxQueues); err != nil {
		return err
	}
	if err := checkCount("max_depth", m.MaxDepth, MaxDepth); err != nil {
		return err
	}
	return checkCount("max_buffer_size", m.MaxBufferSize, MaxBufferSize)
}

// ConfigureDataPath sizes the data path of a session and tells where its data
// is moved to and from.
type ConfigureDataPath struct {
	QueueCount uint32
	// Depth is the number of IOs in flight of one queue.
	Depth uint32
	// BufferSize is the largest IO in bytes.
	BufferSize uint32
	Export     Export
	// ClientInstance is chosen at random by each start of a client; all its
	// sessions carry the same.
	ClientInstance [16]byte
	// Epoch counts the sessions of a client instance. A target refuses
	// epochs lower than one it has seen.
	Epoch uint64
}

// Kind returns KindConfigureDataPath.
func (*ConfigureDataPath) Kind() Kind { return KindConfigureDataPath }

func (m *ConfigureDataPath) validate() error {
	if err := checkCount("queue_count", m.QueueCount, MaxQueues); err != nil {
		return err
	}
	if err := checkCount("depth", m.Depth, MaxDepth); err != nil {
		return err
	}
	if err := checkCount("buffer_size", m.BufferSize, MaxBufferSize); err != nil {
		return err
	}
	return m.Export.validate()
}

// ConfigureDataPathReply accepts a configuration.
type ConfigureDataPathReply struct {
	// InboundReads is how many RDMA Reads the answering side may have
	// outstanding on one connection; 0 from a relay.
	InboundReads uint32
}

// Kind returns KindConfigureDataPathReply.
func (*ConfigureDataPathReply) Kind() Kind { return KindConfigureDataPathReply }

func (*ConfigureDataPathReply) validate() error { return nil }

// Export lets the receiver reach memory of the initiator. Exactly one of
// Descriptor and RDMA is set.
type Export struct {
	Access memory.Access
	// Length is in bytes.
	Length uint64
	// Descriptor is what comch.Connection.ImportMemory takes, from an
	// initiator.
	Descriptor []byte
	// RDMA names the memory in RDMA operations, from a relay.
	RDMA *RDMAExport
}

// RDMAExport names memory in RDMA operations.
type RDMAExport struct {
	// Transport is the RDMA transport that the key is for.
	Transport string
	// Key is the remote key, or STag.
	Key uint32
	// Base is the address of the first byte.
	Base uint64
}

// RemoteMemory returns the memory as RDMA operations name it. The export must
// be a relay's.
func (e *Export) RemoteMemory() rdma.RemoteMemory {
	return rdma.RemoteMemory{Key: e.RDMA.Key, Base: e.RDMA.Base, Length: e.Length, Access: e.Access}
}

func (e *Export) validate() error {
	if !e.Access.Valid() {
		return status.Errorf(status.InvalidValue, "export access %#x has unknown rights", uint32(e.Access))
	}
	if e.Length == 0 {
		return status.Errorf(status.InvalidValue, "export has no length")
	}
	if (len(e.Descriptor) > 0) == (e.RDMA != nil) {
		return status.Errorf(status.InvalidValue, "export must have either a descriptor or an RDMA key")
	}
	if len(e.Descriptor) > MaxDescriptorLength {
		return status.Errorf(status.TooBig,
			"export descriptor has %d bytes, the limit is %d", len(e.Descriptor), MaxDescriptorLength)
	}
	if e.RDMA == nil {
		return nil
	}
	if e.Length > math.MaxUint64-e.RDMA.Base {
		return status.Errorf(status.InvalidValue,
			"export of %d bytes at %#x runs past the end of the address space", e.Length, e.RDMA.Base)
	}
	return checkName("export transport", e.RDMA.Transport, MaxTransportLength)
}

// CreateRDMAConnection asks the target for a place to connect to.
type CreateRDMAConnection struct {
	// Queue is the number of the queue, from 0.
	Queue uint32
	// Role tells which of the queue's connections it is.
	Role iomsg.ConnectionRole
	// Source is where the relay will connect from.
	Source netip.Addr
}

// Kind returns KindCreateRDMAConnection.
func (*CreateRDMAConnection) Kind() Kind { return KindCreateRDMAConnection }

func (m *CreateRDMAConnection) validate() error {
	if m.Queue >= MaxQueues {
		return status.Errorf(status.TooBig, "queue is %d, the limit is %d", m.Queue, MaxQueues-1)
	}
	if m.Role >= iomsg.ConnectionRoleCount {
		return status.Errorf(status.InvalidValue, "connection role %d does not exist", m.Role)
	}
	return checkAddress("source", m.Source)
}

// CreateRDMAConnectionReply tells where to connect to, and with what.
type CreateRDMAConnectionReply struct {
	Address netip.AddrPort
	// Token goes back to the target in the RDMAPrivateData of the connection
	// request. It is random and good once.
	Token [16]byte
	// Staging is where the relay may push the data of writes: a buffer of the
	// agreed buffer size for each of its slots. Nil means nowhere.
	Staging *rdma.RemoteMemory
}

// Kind returns KindCreateRDMAConnectionReply.
func (*CreateRDMAConnectionReply) Kind() Kind { return KindCreateRDMAConnectionReply }

func (m *CreateRDMAConnectionReply) validate() error {
	if m.Address.Port() == 0 {
		return status.Errorf(status.InvalidValue, "port is 0")
	}
	if s := m.Staging; s != nil && (s.Length == 0 || s.Base+s.Length < s.Base) {
		return status.Errorf(status.InvalidValue, "staging of %d bytes at %#x is empty or wraps", s.Length, s.Base)
	}
	return checkAddress("address", m.Address.Addr())
}

// StartDataPathConnections tells that the sender's side of all queues exists.
type StartDataPathConnections struct {
	// ConsumerIDs are the Comch consumers of an initiator in the order of
	// its queues; none from a relay.
	ConsumerIDs []uint32
}

// Kind returns KindStartDataPathConnections.
func (*StartDataPathConnections) Kind() Kind { return KindStartDataPathConnections }

func (m *StartDataPathConnections) validate() error { return checkConsumers(m.ConsumerIDs) }

// StartDataPathConnectionsReply tells that all queues are connected.
type StartDataPathConnectionsReply struct {
	// ConsumerIDs are the Comch consumers of a relay in the order of the
	// queues; none from a target.
	ConsumerIDs []uint32
}

// Kind returns KindStartDataPathConnectionsReply.
func (*StartDataPathConnectionsReply) Kind() Kind { return KindStartDataPathConnectionsReply }

func (m *StartDataPathConnectionsReply) validate() error { return checkConsumers(m.ConsumerIDs) }

// StartStorage starts serving IO.
type StartStorage struct{}

// Kind returns KindStartStorage.
func (*StartStorage) Kind() Kind { return KindStartStorage }

func (*StartStorage) validate() error { return nil }

// StartStorageReply tells that IO is served and all receives are posted.
type StartStorageReply struct{}

// Kind returns KindStartStorageReply.
func (*StartStorageReply) Kind() Kind { return KindStartStorageReply }

func (*StartStorageReply) validate() error { return nil }

// Stop ends serving IO. Each queue has been drained by a stop message of its
// own before.
type Stop struct{}

// Kind returns KindStop.
func (*Stop) Kind() Kind { return KindStop }

func (*Stop) validate() error { return nil }

// StopReply tells that no IO is served any more.
type StopReply struct{}

// Kind returns KindStopReply.
func (*StopReply) Kind() Kind { return KindStopReply }

func (*StopReply) validate() error { return nil }

// DestroyObjects releases what the session has built, however far it got.
type DestroyObjects struct{}

// Kind returns KindDestroyObjects.
func (*DestroyObjects) Kind() Kind { return KindDestroyObjects }

func (*DestroyObjects) validate() error { return nil }

// DestroyObjectsReply tells that all of it is gone.
type DestroyObjectsReply struct{}

// Kind returns KindDestroyObjectsReply.
func (*DestroyObjectsReply) Kind() Kind { return KindDestroyObjectsReply }

func (*DestroyObjectsReply) validate() error { return nil }

// KeepAlive tells that the sender is alive. It is not answered.
type KeepAlive struct{}

// Kind returns KindKeepAlive.
func (*KeepAlive) Kind() Kind { return KindKeepAlive }

func (*KeepAlive) validate() error { return nil }

// Error is what a peer reports: the answer to a request that failed, or the
// reason why it ends the connection. It is an error that errors.Is matches
// with its status.Code.
type Error struct {
	Code status.Code
	// Phase is where in the handshake the peer was.
	Phase Phase
	// Text is one printable line of at most MaxTextLength bytes.
	Text string
}

// Kind returns KindError.
func (*Error) Kind() Kind { return KindError }

// Error tells that the peer reported it, in which phase, its text and the
// symbolic code.
func (e *Error) Error() string {
	return fmt.Sprintf("peer reports in phase %v: %s [%v]", e.Phase, e.Text, e.Code)
}

// Unwrap gives errors.Is and status.CodeOf the code.
func (e *Error) Unwrap() error { return e.Code }

func (e *Error) validate() error {
	if e.Code == status.Success {
		return status.Errorf(status.InvalidValue, "error with code 0 (success)")
	}
	if e.Phase >= phaseCount {
		return status.Errorf(status.InvalidValue, "phase %d does not exist", e.Phase)
	}
	return checkName("error text", e.Text, MaxTextLength)
}

// report is how an error of this side is told to the peer. The error of
// another peer is passed on as it is.
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
	return &Error{Code: code, Phase: phase, Text: printableLine(bareText(err), MaxTextLength)}
}

// bareText is the text of err without what the other fields of an Error say.
func bareText(err error) string {
	switch e := err.(type) { // only the outermost error: inner ones are part of the text
	case *Error:
		return e.Text
	case *status.Error:
		return e.Err.Error()
	}
	return err.Error()
}
