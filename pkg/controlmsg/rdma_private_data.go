// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"bytes"
	"crypto/sha256"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// RDMAPrivateData is the private data of a relay's RDMA connection request: 4 bytes that identify
// the protocol and its version, then the token from the CreateRDMAConnectionReply and, over TLS,
// the proof of a DataBinder. A zero token asks the target to reject the connection with
// RDMAProbeAnswer, which shows the relay that a session could connect.
type RDMAPrivateData struct {
	Token [16]byte
	Proof [sha256.Size]byte // zeros without TLS
}

// RDMAProbeAnswer is the reason for which a target rejects a connection that only probes.
const RDMAProbeAnswer = "zcr1 here"

// IsProbe reports whether the connection only probes.
func (d RDMAPrivateData) IsProbe() bool { return d.Token == [16]byte{} }

// rdmaPrivateDataSize is the size of encoded private data in bytes, rdmaProofSize that of the proof
// behind it.
const (
	rdmaPrivateDataSize = len(rdmaPrivateDataMagic) + 16
	rdmaProofSize       = sha256.Size
)

const rdmaPrivateDataMagic = "zcr1"

// Append appends the encoded private data to dst.
func (d RDMAPrivateData) Append(dst []byte) []byte {
	dst = append(dst, rdmaPrivateDataMagic...)
	dst = append(dst, d.Token[:]...)
	if d.Proof != [rdmaProofSize]byte{} {
		dst = append(dst, d.Proof[:]...)
	}
	return dst
}

// DecodeRDMAPrivateData decodes the private data of a connection request. Zeros may follow, up to
// rdma.MaxPrivateData bytes in all: InfiniBand and RoCE deliver a field of fixed size without the
// size of its content.
func DecodeRDMAPrivateData(b []byte) (RDMAPrivateData, error) {
	var d RDMAPrivateData
	if len(b) < rdmaPrivateDataSize || len(b) > rdma.MaxPrivateData {
		return d, status.Errorf(status.InvalidValue, "private data has %d bytes, must have %d",
			len(b), rdmaPrivateDataSize)
	}
	token, ok := bytes.CutPrefix(b[:rdmaPrivateDataSize], []byte(rdmaPrivateDataMagic))
	if !ok {
		return d, status.Errorf(status.UnsupportedVersion,
			"private data starts with %q, this side supports only %q",
			b[:len(rdmaPrivateDataMagic)], rdmaPrivateDataMagic)
	}
	proof, rest := [rdmaProofSize]byte{}, b[rdmaPrivateDataSize:]
	if len(rest) >= rdmaProofSize {
		proof, rest = [rdmaProofSize]byte(rest), rest[rdmaProofSize:]
	}
	if len(bytes.Trim(rest, "\x00")) > 0 {
		return d, status.Errorf(status.InvalidValue, "private data has %d bytes, must have %d or %d "+
			"before zeros", len(b), rdmaPrivateDataSize, rdmaPrivateDataSize+rdmaProofSize)
	}
	return RDMAPrivateData{Token: [16]byte(token), Proof: proof}, nil
}
