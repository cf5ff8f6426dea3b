// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// handshakeTimeout bounds the handshake on both sides.
const handshakeTimeout = 5 * time.Second

// maxCredits bounds the control messages that wait for a peer, even if its receive queue is longer.
const maxCredits = 1024

// terms is the outcome of the handshake.
type terms struct {
	maxMessageSize   int
	receiveQueue     int
	peerReceiveQueue int
}

// greeting holds the parameters that each side announces in the handshake.
type greeting struct {
	maxMessageSize int
	receiveQueue   int
}

func (g greeting) check(limits *Limits) error {
	if err := checkCount("MaxMessageSize", g.maxMessageSize, limits.MaxMessageSize); err != nil {
		return err
	}
	return checkCount("ReceiveQueue", g.receiveQueue, limits.MaxReceiveQueue)
}

func (g greeting) hello() frame {
	return frame{kind: frameHello, fields: [maxFields]uint32{
		protocolMagic, protocolVersion, uint32(g.maxMessageSize), uint32(g.receiveQueue)}}
}

func (g greeting) welcome() frame {
	return frame{kind: frameWelcome, fields: [maxFields]uint32{
		protocolVersion, uint32(g.maxMessageSize), uint32(g.receiveQueue)}}
}

// negotiate returns the agreed terms, or an error if the sides cannot agree.
func (g greeting) negotiate(version, maxMessageSize, receiveQueue uint32) (terms, error) {
	if version != protocolVersion {
		return terms{}, status.Errorf(status.UnsupportedVersion,
			"protocol version is %d here, %d at the peer: use the same release on both sides",
			protocolVersion, version)
	}
	if uint64(maxMessageSize) != uint64(g.maxMessageSize) {
		return terms{}, status.Errorf(status.InvalidValue,
			"MaxMessageSize is %d here, %d at the peer: configure the same on both sides",
			g.maxMessageSize, maxMessageSize)
	}
	if receiveQueue == 0 || receiveQueue > uint32(highestLimits.MaxReceiveQueue) {
		return terms{}, status.Errorf(status.InvalidValue,
			"receive queue of %d messages is not between 1 and %d",
			receiveQueue, highestLimits.MaxReceiveQueue)
	}
	return terms{maxMessageSize: g.maxMessageSize, receiveQueue: g.receiveQueue,
		peerReceiveQueue: min(int(receiveQueue), maxCredits)}, nil
}

// receiveHello reads a client's first frame.
func receiveHello(s *frameSocket, own greeting) (terms, error) {
	f, err := readHandshake(s)
	if err != nil {
		return terms{}, err
	}
	if f.kind != frameHello || f.fields[0] != protocolMagic {
		return terms{}, violation("first frame is not a hello: kind %d, first field %#x",
			f.kind, f.fields[0])
	}
	return own.negotiate(f.fields[1], f.fields[2], f.fields[3])
}

// greetServer is the client's side of the handshake.
func greetServer(ctx context.Context, s *frameSocket, own greeting) (terms, error) {
	s.setTimeout(handshakeTimeout)
	stop := context.AfterFunc(ctx, func() { s.setTimeout(time.Nanosecond) })
	agreed, err := exchangeGreetings(s, own)
	if !stop() {
		return terms{}, fmt.Errorf("wait for the server's welcome: %w", context.Cause(ctx))
	}
	s.setTimeout(0)
	return agreed, err
}

func exchangeGreetings(s *frameSocket, own greeting) (terms, error) {
	hello := own.hello()
	writeErr := s.write(&hello, descriptors{})
	// A server that rejects this user sends its reason and closes the socket without reading. That
	// reason matters more than the failed write.
	f, err := readHandshake(s)
	if err != nil {
		return terms{}, errors.Join(writeErr, err)
	}
	switch f.kind {
	case frameWelcome:
		return own.negotiate(f.fields[0], f.fields[1], f.fields[2])
	case frameGoodbye:
		if reason := peerError(f.fields[0], f.body); reason != nil {
			return terms{}, fmt.Errorf("server rejected the connection: %w", reason)
		}
	}
	return terms{}, violation("server replied to hello with a frame of kind %d", f.kind)
}

// readHandshake reads one frame. It receives no descriptors: a process that is not a client yet has
// no account to charge.
func readHandshake(s *frameSocket) (frame, error) {
	s.receiveNoDescriptors()
	defer s.receiveDescriptors()
	f, _, err := s.read()
	if errors.Is(err, io.EOF) {
		return f, status.Errorf(status.ConnectionReset,
			"peer closed the connection during the handshake")
	}
	return f, err
}
