package controlmsg

import (
	"bytes"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// RDMAPrivateData is the private data of a relay's RDMA connection request:
// 4 bytes that name the protocol and its version, then the token of the
// CreateRDMAConnectionReply.
type RDMAPrivateData struct {
	Token [16]byte
}

// RDMAPrivateDataSize is the length of encoded private data in bytes.
const RDMAPrivateDataSize = len(rdmaPrivateDataMagic) + 16

const rdmaPrivateDataMagic = "zcr1"

// Append appends the encoded private data to dst.
func (d RDMAPrivateData) Append(dst []byte) []byte {
	dst = append(dst, rdmaPrivateDataMagic...)
	return append(dst, d.Token[:]...)
}

// DecodeRDMAPrivateData decodes what came with a connection request. Zeros
// may follow, up to rdma.MaxPrivateData bytes in all: InfiniBand and RoCE
// carry a field of fixed length and do not tell how much of it was set.
func DecodeRDMAPrivateData(b []byte) (RDMAPrivateData, error) {
	var d RDMAPrivateData
	if len(b) < RDMAPrivateDataSize || len(b) > rdma.MaxPrivateData {
		return d, status.Errorf(status.InvalidValue, "private data has %d bytes, it must have %d", len(b), RDMAPrivateDataSize)
	}
	token, ok := bytes.CutPrefix(b[:RDMAPrivateDataSize], []byte(rdmaPrivateDataMagic))
	if !ok {
		return d, status.Errorf(status.UnsupportedVersion,
			"private data starts with %q, this side speaks %q", b[:len(rdmaPrivateDataMagic)], rdmaPrivateDataMagic)
	}
	if len(bytes.Trim(b[RDMAPrivateDataSize:], "\x00")) > 0 {
		return d, status.Errorf(status.InvalidValue, "private data goes on after %d bytes", RDMAPrivateDataSize)
	}
	d.Token = [16]byte(token)
	return d, nil
}
