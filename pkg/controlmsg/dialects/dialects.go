// SPDX-License-Identifier: Apache-2.0

// Package dialects encodes and decodes the protocols of the DOCA storage applications, releases
// 2.10 to 3.3: the control messages between initiator, relay, and target, and the IO messages. See
// docs/dev/protocol.md.
//
// There are two generations. 2.10 counts the header in a message's size; 3.x adds a message ID, and
// control messages for the size of the storage and for the end. Nothing that a peer
// sends is trusted: every length is checked.
package dialects

import (
	"context"
	"encoding/binary"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Version is a protocol of the applications, named after the first DOCA release that has it.
type Version uint8

// The versions. None means a protocol that is not one of the applications'.
const (
	None Version = iota
	DOCA2_10
	DOCA3_0
	DOCA3_1
	DOCA3_2 // and 3.3
)

var versionNames = [...]string{"none", "doca-2.10", "doca-3.0", "doca-3.1", "doca-3.2"}

// String returns the name in configuration, for instance "doca-2.10".
func (v Version) String() string {
	if int(v) < len(versionNames) {
		return versionNames[v]
	}
	return versionNames[None]
}

// ParseVersion returns the version with that name.
func ParseVersion(name string) (Version, error) {
	for v, known := range versionNames {
		if name == known && Version(v) != None {
			return Version(v), nil
		}
	}
	return None, status.Errorf(status.InvalidValue,
		"%q is none of doca-2.10, doca-3.0, doca-3.1, doca-3.2", name)
}

// MaxSize implements controlmsg.Framing: the largest control message in bytes. The applications of
// 2.10 cannot send more. In 3.x Comch sets the limit, and devices allow about that much.
func (v Version) MaxSize() int {
	if v == DOCA2_10 {
		return 1024
	}
	return 4096
}

// TCPConfig returns the configuration of a TCP transport for the version's messages, which follow
// each other without anything between them.
func (v Version) TCPConfig() controlmsg.TCPConfig {
	return controlmsg.TCPConfig{Framing: v}
}

// HeaderSize implements controlmsg.Framing.
func (v Version) HeaderSize() int {
	if v == DOCA2_10 {
		return 2
	}
	return sizeLength
}

// MessageSize implements controlmsg.Framing.
func (v Version) MessageSize(header []byte) uint64 {
	if v == DOCA2_10 {
		return uint64(binary.BigEndian.Uint16(header))
	}
	return uint64(binary.BigEndian.Uint32(header)) + sizeLength
}

// Detect returns the generation that a first control message over Comch belongs to: DOCA2_10,
// DOCA3_2 for every 3.x, or None. A protocol buffer is neither: it cannot begin with a byte below
// 8.
func Detect(first []byte) Version {
	if len(first) >= headerSize2 && first[0] < 8 &&
		int(binary.BigEndian.Uint16(first)) == len(first) {
		return DOCA2_10
	}
	if len(first) >= headerSize3 && binary.BigEndian.Uint16(first) == 0 &&
		int(binary.BigEndian.Uint32(first)) == len(first)-sizeLength {
		return DOCA3_2
	}
	return None
}

// DetectFraming returns the framing of a byte stream by its beginning: that of DOCA2_10, of 3.x, or
// nil for our own protocol, in which the length of a message, 64 KiB at most, is followed by a byte
// of at least 8 (see Detect). It is for controlmsg.TCPConfig.
func DetectFraming(first [controlmsg.DetectedBytes]byte) controlmsg.Framing {
	size := binary.BigEndian.Uint16(first[:])
	switch {
	case size >= headerSize2 && int(size) <= DOCA2_10.MaxSize():
		return DOCA2_10
	case size == 0 && first[sizeLength] < 8:
		return DOCA3_2
	}
	return nil
}

// DetectPeer receives the first message of a conversation and returns what Detect says of it, and a
// transport that receives it again. An error is received again as well.
func DetectPeer(ctx context.Context, transport controlmsg.Transport,
) (v Version, again controlmsg.Transport, err error) {
	first, err := transport.Receive(ctx)
	return Detect(first), &begunTransport{Transport: transport, first: first, err: err}, err
}

// begunTransport is a transport whose first message, or error, has been received already.
type begunTransport struct {
	controlmsg.Transport
	first []byte
	err   error
}

func (t *begunTransport) Receive(ctx context.Context) ([]byte, error) {
	first, err := t.first, t.err
	if first == nil && err == nil {
		return t.Transport.Receive(ctx)
	}
	t.first = nil
	return first, err
}

// DetectInit returns the version of an encoded init_storage request of 3.x: DOCA3_0 or, because 3.1
// to 3.3 do not differ in it, DOCA3_2. It returns None for another message, or if both fit.
func DetectInit(b []byte) Version {
	if Detect(b) != DOCA3_2 || binary.BigEndian.Uint32(b[4:]) != typeInitStorage {
		return None
	}
	fits := func(v Version) bool {
		_, err := Decode(v, b)
		return err == nil
	}
	switch is3_0, is3_2 := fits(DOCA3_0), fits(DOCA3_2); {
	case is3_0 == is3_2:
		return None
	case is3_0:
		return DOCA3_0
	}
	return DOCA3_2
}
