// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The protocol's limits. A session's own limits are lower: see OpenVolumeReply.
const (
	// MinMessageSize is the message size that every side must be able to receive, in bytes. All
	// messages without a list of consumers fit.
	MinMessageSize = 2048
	// DefaultMaxMessageSize is the largest message that a side receives over TCP unless configured
	// otherwise, in bytes.
	DefaultMaxMessageSize = 64 << 10

	// MaxQueues bounds the queues of a session, and with them the RDMA connections and the
	// consumers named in one message.
	MaxQueues = 1024
	// MaxDepth bounds the IOs in flight per queue.
	MaxDepth = 1 << 16
	// MaxBufferSize bounds the size of one IO in bytes.
	MaxBufferSize = 1 << 30
	// maxBlockSize bounds the block size of a volume in bytes.
	maxBlockSize = 1 << 24

	// MaxVolumeNameLength bounds the name of a volume in bytes.
	MaxVolumeNameLength = 255
	// maxSoftwareLength bounds Hello.Software in bytes.
	maxSoftwareLength = 128
	// maxSoleLength bounds OpenVolumeReply.Sole.
	maxSoleLength = 64
	// MaxClientLength bounds ConfigureDataPath.Client, and maxHolderLength OpenVolumeReply.Holder,
	// in bytes.
	MaxClientLength = 128
	maxHolderLength = 255
	// MaxTextLength bounds Error.Text in bytes. Longer texts are truncated.
	MaxTextLength = 1024
	// maxTransportLength bounds the name of an RDMA transport in bytes.
	maxTransportLength = 32
	// maxDescriptorLength bounds Export.Descriptor in bytes.
	maxDescriptorLength = comch.MaxExportLength
)

// The limits of one session in the programs of this repository. A relay's configuration can lower
// them; OpenVolumeReply announces the result.
const (
	SessionMaxQueues     = 64
	SessionMaxDepth      = 4096
	SessionMaxBufferSize = 64 << 20 // bytes
)

// MaxLease bounds HelloReply.LeaseMs, for which others wait.
const MaxLease = time.Minute

// minSilenceLimit bounds the rate of keep-alives that a peer can ask for.
const minSilenceLimit = 100 * time.Millisecond

// The range of protocol versions that this package supports.
const (
	ProtocolVersion    = 1
	minProtocolVersion = 1
)

// negotiateVersion returns the highest version in both ranges.
func negotiateVersion(ownMin, ownMax, peerMin, peerMax uint32) (uint32, error) {
	version := min(ownMax, peerMax)
	if version < max(ownMin, peerMin) {
		return 0, status.Errorf(status.UnsupportedVersion,
			"the requester supports protocol versions %d to %d, the responder %d to %d",
			peerMin, peerMax, ownMin, ownMax)
	}
	return version, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkCount returns an error unless value is between 1 and limit.
func checkCount(field string, value, limit uint32) error {
	if value == 0 {
		return status.Errorf(status.InvalidValue, "%s is 0, must be at least 1", field)
	}
	if value > limit {
		return status.Errorf(status.TooBig, "%s is %d, the limit is %d", field, value, limit)
	}
	return nil
}

// checkPowerOfTwo returns an error unless value is a power of two up to limit.
func checkPowerOfTwo(field string, value, limit uint32) error {
	if err := checkCount(field, value, limit); err != nil {
		return err
	}
	if value&(value-1) != 0 {
		return status.Errorf(status.InvalidValue, "%s is %d, must be a power of two",
			field, value)
	}
	return nil
}

// checkAddress returns an error unless address can be connected to or from. Its zone means
// something on one machine only, and does not travel.
func checkAddress(field string, address netip.Addr) error {
	if !address.IsValid() || address.IsUnspecified() || address.IsMulticast() {
		return status.Errorf(status.InvalidValue, "%s %q is not a unicast IP address", field,
			address)
	}
	return nil
}

// checkConsumers returns an error unless ids are nonzero, distinct, and within the limit.
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
			return status.Errorf(status.InvalidValue,
				"consumer id %d is used for both queue %d and queue %d",
				id, other, queue)
		}
		queueOf[id] = queue
	}
	return nil
}

// checkName returns an error unless value is printable UTF-8 of at most limit bytes.
func checkName(field, value string, limit int) error {
	if len(value) > limit {
		return status.Errorf(status.TooBig, "%s has %d bytes, the limit is %d",
			field, len(value), limit)
	}
	if !utf8.ValidString(value) || strings.ContainsFunc(value, printable.IsControl) {
		return status.Errorf(status.InvalidValue, "%s %q has unprintable characters",
			field, value)
	}
	return nil
}
