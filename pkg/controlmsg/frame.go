package controlmsg

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// frameHeaderSize is the length of the length that precedes every message on
// a byte stream: 32 bits, big-endian, without itself.
const frameHeaderSize = 4

// appendFrame appends a framed message to dst.
func appendFrame(dst, message []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(message)))
	return append(dst, message...)
}

// readFrame reads one message of 1 to limit bytes. It calls begun when the
// first byte has come. The end of the stream is io.EOF between two messages
// and io.ErrUnexpectedEOF inside one.
func readFrame(r io.Reader, limit int, begun func()) ([]byte, error) {
	var header [frameHeaderSize]byte
	if _, err := io.ReadFull(r, header[:1]); err != nil {
		return nil, err
	}
	begun()
	if _, err := io.ReadFull(r, header[1:]); err != nil {
		return nil, incomplete(err)
	}
	length := binary.BigEndian.Uint32(header[:])
	if length == 0 {
		return nil, status.Errorf(status.InvalidValue, "a message of 0 bytes is announced")
	}
	if looksLikeTLS(header) {
		return nil, status.Errorf(status.Authentication,
			"the peer speaks TLS, and this side does not: set up TLS on both sides or on none")
	}
	if int64(length) > int64(limit) {
		return nil, status.Errorf(status.TooBig,
			"a message of %d bytes is announced, the limit is %d (is this a client of another protocol?)", length, limit)
	}
	message := make([]byte, length)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, incomplete(err)
	}
	return message, nil
}

// looksLikeTLS tells the first record of TLS (RFC 8446, 5.1) from a length: it
// would be one of more than 300 MiB.
func looksLikeTLS(header [frameHeaderSize]byte) bool {
	const handshakeRecord, majorVersion = 22, 3
	return header[0] == handshakeRecord && header[1] == majorVersion
}

// incomplete turns the end of the stream inside a message into an error of
// its own.
func incomplete(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
