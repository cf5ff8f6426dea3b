package controlmsg

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// The versions of the protocol that this package speaks. There is only one.
const (
	ProtocolVersion    = 1
	minProtocolVersion = 1
)

// minSilenceLimit keeps a peer from asking for keep-alives at a rate that
// would be work.
const minSilenceLimit = 100 * time.Millisecond

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

// KeepAlive tells that the sender is alive. It is not answered.
type KeepAlive struct{}

// Kind returns KindHello.
func (*Hello) Kind() Kind { return KindHello }

// Kind returns KindHelloReply.
func (*HelloReply) Kind() Kind { return KindHelloReply }

// Kind returns KindKeepAlive.
func (*KeepAlive) Kind() Kind { return KindKeepAlive }

func (m *Hello) validate() error {
	if m.Role < RoleInitiator || m.Role > RoleTarget {
		return status.Errorf(status.InvalidValue, "role %d does not exist", m.Role)
	}
	if m.MinVersion == 0 || m.MinVersion > m.MaxVersion {
		return status.Errorf(status.InvalidValue, "versions %d to %d are no range", m.MinVersion, m.MaxVersion)
	}
	return validateTerms(m.MaxMessageSize, m.Software, m.SilenceLimitMs)
}

func (m *HelloReply) validate() error {
	if m.Version == 0 {
		return status.Errorf(status.InvalidValue, "version is 0")
	}
	return validateTerms(m.MaxMessageSize, m.Software, m.SilenceLimitMs)
}

func (*KeepAlive) validate() error { return nil }

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

// negotiateVersion picks the highest version that lies in both ranges.
func negotiateVersion(ownMin, ownMax, peerMin, peerMax uint32) (uint32, error) {
	version := min(ownMax, peerMax)
	if version < max(ownMin, peerMin) {
		return 0, status.Errorf(status.UnsupportedVersion,
			"the requester speaks protocol versions %d to %d, the responder %d to %d", peerMin, peerMax, ownMin, ownMax)
	}
	return version, nil
}
