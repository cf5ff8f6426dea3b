package controlmsg

import (
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The protocol's limits. A session's own are lower, see OpenVolumeReply.
const (
	// MinMessageSize is the least that every side must be able to receive, in
	// bytes: whatever has no list of consumers fits.
	MinMessageSize = 2048
	// DefaultMaxMessageSize is the most that a side receives over TCP unless
	// configured otherwise, in bytes.
	DefaultMaxMessageSize = 64 << 10

	// MaxQueues bounds the queues of a session, and so the consumers named
	// in one message and the RDMA connections.
	MaxQueues = 1024
	// MaxDepth bounds the IOs in flight of one queue.
	MaxDepth = 1 << 16
	// MaxBufferSize bounds the size of one IO in bytes.
	MaxBufferSize = 1 << 30
	// MaxBlockSize bounds the block size of a volume in bytes.
	MaxBlockSize = 1 << 24

	// MaxVolumeNameLength bounds the name of a volume in bytes.
	MaxVolumeNameLength = 255
	// MaxSoftwareLength bounds Hello.Software in bytes.
	MaxSoftwareLength = 128
	// MaxTextLength bounds Error.Text in bytes; what is longer is cut.
	MaxTextLength = 1024
	// MaxTransportLength bounds the name of an RDMA transport in bytes.
	MaxTransportLength = 32
	// MaxDescriptorLength bounds Export.Descriptor in bytes.
	MaxDescriptorLength = comch.MaxExportLength
)

// checkCount returns an error unless value is between 1 and limit.
func checkCount(field string, value, limit uint32) error {
	if value == 0 {
		return status.Errorf(status.InvalidValue, "%s is 0, it must be at least 1", field)
	}
	if value > limit {
		return status.Errorf(status.TooBig, "%s is %d, the limit is %d", field, value, limit)
	}
	return nil
}

// checkPowerOfTwo returns an error unless value is a power of two within
// limit.
func checkPowerOfTwo(field string, value, limit uint32) error {
	if err := checkCount(field, value, limit); err != nil {
		return err
	}
	if value&(value-1) != 0 {
		return status.Errorf(status.InvalidValue, "%s is %d, it must be a power of two", field, value)
	}
	return nil
}

// checkName returns an error unless value can be shown to people and looked
// up: valid UTF-8 without control characters, not longer than limit bytes.
func checkName(field, value string, limit int) error {
	if len(value) > limit {
		return status.Errorf(status.TooBig, "%s has %d bytes, the limit is %d", field, len(value), limit)
	}
	if !utf8.ValidString(value) || strings.ContainsFunc(value, isControl) {
		return status.Errorf(status.InvalidValue, "%s %q holds characters that cannot be printed", field, value)
	}
	return nil
}

// printableLine makes one line of text that is safe on a terminal and in a
// log, at most limit bytes long: text may come from a peer, or from an error
// that joins several others with line feeds.
func printableLine(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	text = strings.ToValidUTF8(text, "")
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}
		return r
	}, text)
}

// isControl also covers what reorders or hides text on a terminal.
func isControl(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// checkAddress refuses what nobody can connect to or from. A zone has a
// meaning on its own machine only.
func checkAddress(field string, address netip.Addr) error {
	if !address.IsValid() || address.IsUnspecified() || address.IsMulticast() || address.Zone() != "" {
		return status.Errorf(status.InvalidValue, "%s %q is no unicast IP address without zone", field, address)
	}
	return nil
}

// checkConsumers returns an error unless every id can be a consumer and names
// one queue only.
func checkConsumers(ids []uint32) error {
	if len(ids) > MaxQueues {
		return status.Errorf(status.TooBig, "%d consumer ids, the limit is %d", len(ids), MaxQueues)
	}
	queueOf := make(map[uint32]int, len(ids))
	for queue, id := range ids {
		if id == 0 {
			return status.Errorf(status.InvalidValue, "consumer id of queue %d is 0", queue)
		}
		if other, taken := queueOf[id]; taken {
			return status.Errorf(status.InvalidValue, "consumer id %d is given for queue %d and queue %d", id, other, queue)
		}
		queueOf[id] = queue
	}
	return nil
}
