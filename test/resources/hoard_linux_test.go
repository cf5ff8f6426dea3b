package resources

import (
	"encoding/binary"
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/stucktest"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// Frames of the emulated Comch, as on the wire.
const (
	frameHello         = 1
	frameOpenConsumer  = 6
	frameCloseConsumer = 7
	frameReply         = 11

	helloMagic       = 0x6863637a
	helloVersion     = 3
	helloMessageSize = 4080
	helloReceives    = 16
)

func comchFrame(kind uint16, fields ...uint32) []byte {
	packet := binary.LittleEndian.AppendUint32(nil, uint32(kind))
	packet = binary.LittleEndian.AppendUint32(packet, uint32(4*len(fields)))
	for _, field := range fields {
		packet = binary.LittleEndian.AppendUint32(packet, field)
	}
	return packet
}

// hoard opens and closes consumers behind one whose doorbell cannot be closed.
func (a *attacker) hoard() {
	s, err := a.dialComch()
	if err != nil {
		a.t.Error(err)
		return
	}
	a.hold(func() { _ = unix.Close(s) })
	stuck, release, err := stucktest.Descriptor()
	if err != nil {
		a.t.Error(err)
		return
	}
	a.hold(release)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		a.t.Error(err)
		return
	}
	if err := errors.Join(unix.Sendmsg(pair[1], []byte{1}, unix.UnixRights(stuck), nil, 0),
		openConsumer(s, 1, pair[0]), unix.Close(stuck), unix.Close(pair[0]), unix.Close(pair[1]),
		closeConsumer(s, 1)); err != nil {
		a.t.Error(err)
		return
	}
	if pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		a.t.Error(err)
		return
	}
	a.hold(func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) })
	const most = 4000
	for id := uint32(3); id < 2*most; id += 2 {
		if openConsumer(s, id, pair[0]) != nil || closeConsumer(s, id) != nil {
			return // the relay has ended the connection
		}
	}
	a.t.Errorf("the relay lets a client hoard %d consumers", most)
}

// dialComch returns a raw connection to the relay's channel, after hello.
func (a *attacker) dialComch() (int, error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	path := filepath.Join(a.directory, "comch", emulated.DefaultRepresentor,
		emulated.DefaultDevice, "disk")
	timeout := unix.NsecToTimeval(callTimeout.Nanoseconds())
	if err := errors.Join(
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout),
		unix.Connect(s, &unix.SockaddrUnix{Name: path})); err != nil {
		return -1, errors.Join(err, unix.Close(s))
	}
	_, err = unix.Write(s, comchFrame(frameHello, helloMagic, helloVersion, helloMessageSize,
		helloReceives))
	if err == nil {
		_, err = unix.Read(s, make([]byte, 1<<16))
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(s))
	}
	return s, nil
}

// openConsumer opens a tiny consumer, and waits for the reply.
func openConsumer(s int, id uint32, doorbell int) error {
	if err := unix.Sendmsg(s, comchFrame(frameOpenConsumer, id, 1, 64, 0),
		unix.UnixRights(doorbell), nil, unix.MSG_NOSIGNAL); err != nil {
		return err
	}
	packet := make([]byte, 1<<16)
	for {
		n, err := unix.Read(s, packet)
		switch {
		case err != nil:
			return err
		case n == 0:
			return unix.ECONNRESET
		case n >= 2 && binary.LittleEndian.Uint16(packet) == frameReply:
			return nil
		}
	}
}

func closeConsumer(s int, id uint32) error {
	return unix.Send(s, comchFrame(frameCloseConsumer, id), unix.MSG_NOSIGNAL)
}
