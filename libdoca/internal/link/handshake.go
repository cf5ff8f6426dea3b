// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding/binary"
	"io"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// MaxPrivateData is how many bytes of private data a hello and its reply carry.
const MaxPrivateData = 255

// Hello is the first message on a stream, of the side that has connected.
type Hello struct {
	// To and From are the tokens of both ends, for a connection by details. Both are zero for one
	// by address.
	To, From    Key
	PrivateData []byte
}

// A hello and its reply begin with a magic number and a version.
const (
	helloMagic   = 0x726c637a // "zclr"
	helloVersion = 1
	helloSize    = 4 + 1 + 1 + 16 + 16
	replySize    = 4 + 1 + 1 + 1
)

// WriteHello sends a hello.
func WriteHello(w io.Writer, h Hello) error {
	b := make([]byte, helloSize, helloSize+len(h.PrivateData))
	binary.LittleEndian.PutUint32(b, helloMagic)
	b[4], b[5] = helloVersion, byte(len(h.PrivateData))
	copy(b[6:], h.To[:])
	copy(b[22:], h.From[:])
	_, err := w.Write(append(b, h.PrivateData...))
	return err
}

// ReadHello receives a hello. It is not to be trusted.
func ReadHello(r io.Reader) (h Hello, err error) {
	b := make([]byte, helloSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return Hello{}, status.Errorf(status.NotConnected, "read hello: %w", err)
	}
	if binary.LittleEndian.Uint32(b) != helloMagic || b[4] != helloVersion {
		return Hello{}, status.Errorf(status.UnsupportedVersion, "the peer speaks another protocol")
	}
	copy(h.To[:], b[6:])
	copy(h.From[:], b[22:])
	h.PrivateData = make([]byte, b[5])
	if _, err := io.ReadFull(r, h.PrivateData); err != nil {
		return Hello{}, status.Errorf(status.NotConnected, "read hello: %w", err)
	}
	return h, nil
}

// WriteReply accepts or rejects a hello.
func WriteReply(w io.Writer, accept bool, privateData []byte) error {
	b := make([]byte, replySize, replySize+len(privateData))
	binary.LittleEndian.PutUint32(b, helloMagic)
	b[4], b[6] = helloVersion, byte(len(privateData))
	if !accept {
		b[5] = 1
	}
	_, err := w.Write(append(b, privateData...))
	return err
}

// ReadReply receives the reply to a hello. It fails with status.NotPermitted if the peer has
// rejected the connection.
func ReadReply(r io.Reader) (privateData []byte, err error) {
	b := make([]byte, replySize)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, status.Errorf(status.NotConnected, "read reply: %w", err)
	}
	if binary.LittleEndian.Uint32(b) != helloMagic || b[4] != helloVersion {
		return nil, status.Errorf(status.UnsupportedVersion, "the peer speaks another protocol")
	}
	privateData = make([]byte, b[6])
	if _, err := io.ReadFull(r, privateData); err != nil {
		return nil, status.Errorf(status.NotConnected, "read reply: %w", err)
	}
	if b[5] != 0 {
		return nil, status.Errorf(status.NotPermitted, "the peer has rejected the connection")
	}
	return privateData, nil
}
