package controlmsg

import (
	"bytes"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// RDMAPrivateData is the private data of a relay's RDMA connection request: 4 bytes that identify
// the protocol and its version, then the token from the CreateRDMAConnectionReply. Its zero value
// asks the target to reject the connection with RDMAProbeAnswer, which shows the relay that a
// session could connect.
type RDMAPrivateData struct {
	Token [16]byte
}

// RDMAProbeAnswer is the reason for which a target rejects a connection that only probes.
const RDMAProbeAnswer = "zcr1 here"

// IsProbe reports whether the connection only probes.
func (d RDMAPrivateData) IsProbe() bool { return d == RDMAPrivateData{} }

// rdmaPrivateDataSize is the size of encoded private data in bytes.
const rdmaPrivateDataSize = len(rdmaPrivateDataMagic) + 16

const rdmaPrivateDataMagic = "zcr1"

// Append appends the encoded private data to dst.
func (d RDMAPrivateData) Append(dst []byte) []byte {
	dst = append(dst, rdmaPrivateDataMagic...)
	return append(dst, d.Token[:]...)
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
	if len(bytes.Trim(b[rdmaPrivateDataSize:], "\x00")) > 0 {
		return d, status.Errorf(status.InvalidValue,
			"private data has nonzero bytes after the first %d", rdmaPrivateDataSize)
	}
	d.Token = [16]byte(token)
	return d, nil
}
