// SPDX-License-Identifier: Apache-2.0

// Package rawtest speaks the protocol of the emulated Comch frame by frame, for tests of peers that
// break its rules.
package rawtest

import (
	"encoding/binary"
	"errors"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Kinds of frames, as on the wire.
const (
	Hello         = 1
	OpenConsumer  = 6
	CloseConsumer = 7
	OpenProducer  = 8
	Export        = 10
	Reply         = 11
	Kinds         = 13 // more than the greatest
)

// HeaderSize is the length of what precedes the fields of a frame.
const HeaderSize = 8

// Fields of a hello.
const (
	magic       = 0x6863637a
	version     = 3
	messageSize = 4080 // the default, which both sides must agree on
	receives    = 16
)

// Path returns the socket of a server on the default device.
func Path(directory, name string) string {
	return filepath.Join(directory, emulated.DefaultRepresentor, emulated.DefaultDevice, name)
}

// Frame returns a packet with a frame.
func Frame(kind uint16, fields ...uint32) []byte {
	packet := binary.LittleEndian.AppendUint32(nil, uint32(kind))
	packet = binary.LittleEndian.AppendUint32(packet, uint32(4*len(fields)))
	for _, field := range fields {
		packet = binary.LittleEndian.AppendUint32(packet, field)
	}
	return packet
}

// Greet connects to the socket of a server and exchanges hellos. A timeout, unless it is 0, bounds
// each call that sends or receives.
func Greet(path string, timeout time.Duration) (descriptor int, err error) {
	s, err := testkit.DialPackets(path, timeout)
	if err != nil {
		return -1, err
	}
	err = Send(s, Frame(Hello, magic, version, messageSize, receives))
	if err == nil {
		_, err = unix.Read(s, make([]byte, 1<<16))
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(s))
	}
	return s, nil
}

// Send sends a packet with descriptors.
func Send(s int, packet []byte, descriptors ...int) error {
	var rights []byte
	if len(descriptors) > 0 {
		rights = unix.UnixRights(descriptors...)
	}
	return unix.Sendmsg(s, packet, rights, nil, unix.MSG_NOSIGNAL)
}

// ReadReply reads packets up to the next reply and returns its code.
func ReadReply(s int) (code uint32, err error) {
	packet := make([]byte, 1<<16)
	for {
		n, err := unix.Read(s, packet)
		switch {
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		case n >= HeaderSize+8 && binary.LittleEndian.Uint16(packet) == Reply:
			return binary.LittleEndian.Uint32(packet[HeaderSize+4:]), nil
		}
	}
}

// openTiny opens the smallest consumer, and waits for the reply.
func openTiny(s int, id uint32, doorbell int) error {
	if err := Send(s, Frame(OpenConsumer, id, 1, 64, 0), doorbell); err != nil {
		return err
	}
	code, err := ReadReply(s)
	if err == nil && code != uint32(status.Success) {
		err = status.Code(code)
	}
	return err
}

// OpenStuck opens a consumer that the server cannot close before release is called: in the queue of
// its doorbell is a descriptor whose last close blocks.
func OpenStuck(s int, id uint32) (release func(), err error) {
	stuck, release, err := testkit.StuckDescriptor()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(Send(pair[1], []byte{1}, stuck), openTiny(s, id, pair[0]),
			unix.Close(stuck), unix.Close(pair[0]), unix.Close(pair[1]))
	}
	if err != nil {
		release()
	}
	return release, err
}

// Hoard opens and closes consumers behind one that is stuck until release is called. It ends after
// most of them, or when the server ends the connection, and returns how many it has opened.
func Hoard(s int, most int) (count int, release func(), err error) {
	release, err = OpenStuck(s, 1)
	if err != nil {
		return 0, nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		release()
		return 0, nil, err
	}
	defer func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) }()
	err = Send(s, Frame(CloseConsumer, 1))
	for count < most && err == nil {
		id := uint32(2*count + 3)
		if err = openTiny(s, id, pair[0]); err == nil {
			count++
			err = Send(s, Frame(CloseConsumer, id))
		}
	}
	return count, release, nil
}
