package hostilecomch

import (
	"encoding/binary"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Kinds of frames, and the fields of a hello, as on the wire.
const (
	kindHello         = 1
	kindOpenConsumer  = 6
	kindCloseConsumer = 7
	kindOpenProducer  = 8
	kindExport        = 10
	kindReply         = 11
	kindCount         = 13

	magic          = 0x6863637a
	version        = 3
	messageSize    = 4080 // the default, which both sides must agree on
	receiveQueue   = 16
	frameHeader    = 8
	maxRandomBytes = 64
)

func makeFrame(kind uint16, fields ...uint32) []byte {
	packet := binary.LittleEndian.AppendUint32(nil, uint32(kind))
	packet = binary.LittleEndian.AppendUint32(packet, uint32(4*len(fields)))
	for _, field := range fields {
		packet = binary.LittleEndian.AppendUint32(packet, field)
	}
	return packet
}

func dial(directory string) (int, error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(s, &unix.SockaddrUnix{Name: socketPath(directory)}); err != nil {
		return -1, fmt.Errorf("connect to %s: %w", socketPath(directory), err)
	}
	return s, nil
}

func dialAndGreet(directory string) (int, error) {
	s, err := dial(directory)
	if err != nil {
		return -1, err
	}
	if err := unix.Send(s, makeFrame(kindHello, magic, version, messageSize, receiveQueue),
		0); err != nil {
		return -1, err
	}
	_, err = unix.Read(s, make([]byte, 4096))
	return s, err
}

// readReply reads packets up to the next reply and returns its code.
func readReply(s int) (code uint32, err error) {
	packet := make([]byte, 4096)
	for {
		n, err := unix.Read(s, packet)
		switch {
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		case n >= frameHeader+8 && binary.LittleEndian.Uint16(packet) == kindReply:
			return binary.LittleEndian.Uint32(packet[frameHeader+4:]), nil
		}
	}
}

// attackOften repeats an attack. The server ends each round by closing the connection.
func attackOften(directory string, connect func(string) (int, error),
	attack func(s int) error) error {
	announce()
	for {
		s, err := connect(directory)
		if err != nil {
			return err
		}
		for range 100 {
			if attack(s) != nil {
				break
			}
		}
		_ = unix.Close(s)
	}
}

func randomPackets(directory string) error {
	return attackOften(directory, dial, func(s int) error {
		packet := make([]byte, 512)
		_, _ = noise.Read(packet)
		return unix.Send(s, packet[:1+int(packet[0])], unix.MSG_NOSIGNAL)
	})
}

// randomFrames sends frames with valid headers and random contents.
func randomFrames(directory string) error {
	return attackOften(directory, dialAndGreet, func(s int) error {
		var random [maxRandomBytes]byte
		_, _ = noise.Read(random[:])
		fields := int(random[0]) % 5
		packet := makeFrame(uint16(random[1])%kindCount, make([]uint32, fields)...)
		copy(packet[frameHeader:], random[2:])
		for i := frameHeader + 1; i < len(packet); i++ {
			packet[i] &= random[40+i%16] & random[63] // prefers small numbers
		}
		return unix.Send(s, packet, unix.MSG_NOSIGNAL)
	})
}

func tooManyDescriptors(directory string) error {
	return attackOften(directory, dialAndGreet, func(s int) error {
		list := make([]int, 200)
		return unix.Sendmsg(s, makeFrame(kindOpenConsumer, 1, 1, 1, 0), unix.UnixRights(list...),
			nil, unix.MSG_NOSIGNAL)
	})
}

func neverReply(directory string) error {
	_, err := dialAndGreet(directory)
	announce()
	return err
}

func staySilent(directory string) error {
	announce()
	for range 200 {
		if _, err := dial(directory); err != nil {
			return err
		}
	}
	return nil
}

// openForever opens consumers of the maximum size, one after another.
func openForever(directory string) error {
	id := uint32(1)
	return attackOften(directory, dialAndGreet, func(s int) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) }()
		packet := makeFrame(kindOpenConsumer, id, 1<<17, 16<<20, 0)
		id += 2
		return unix.Sendmsg(s, packet, unix.UnixRights(pair[0]), nil, unix.MSG_NOSIGNAL)
	})
}

func requestForever(directory string) error {
	return attackOften(directory, dialAndGreet, func(s int) error {
		for {
			if err := unix.Send(s, makeFrame(kindOpenProducer, 1, 2),
				unix.MSG_NOSIGNAL); err != nil {
				return err
			}
		}
	})
}
