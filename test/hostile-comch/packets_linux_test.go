// SPDX-License-Identifier: Apache-2.0

package hostilecomch

import (
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated/rawtest"
)

const maxRandomBytes = 64

func dial(directory string) (int, error) { return testkit.DialPackets(socketPath(directory), 0) }

func dialAndGreet(directory string) (int, error) { return rawtest.Greet(socketPath(directory), 0) }

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
		packet := rawtest.Frame(uint16(random[1])%rawtest.Kinds, make([]uint32, fields)...)
		copy(packet[rawtest.HeaderSize:], random[2:])
		for i := rawtest.HeaderSize + 1; i < len(packet); i++ {
			packet[i] &= random[40+i%16] & random[63] // prefers small numbers
		}
		return rawtest.Send(s, packet)
	})
}

func tooManyDescriptors(directory string) error {
	return attackOften(directory, dialAndGreet, func(s int) error {
		list := make([]int, 200)
		return rawtest.Send(s, rawtest.Frame(rawtest.OpenConsumer, 1, 1, 1, 0), list...)
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
		packet := rawtest.Frame(rawtest.OpenConsumer, id, 1<<17, 16<<20, 0)
		id += 2
		return rawtest.Send(s, packet, pair[0])
	})
}

func requestForever(directory string) error {
	return attackOften(directory, dialAndGreet, func(s int) error {
		for {
			if err := rawtest.Send(s, rawtest.Frame(rawtest.OpenProducer, 1, 2)); err != nil {
				return err
			}
		}
	})
}
