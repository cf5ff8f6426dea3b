// SPDX-License-Identifier: Apache-2.0

package hostilecomch

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated/rawtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// hoardings is how many consumers a server without limits would keep in hoard.
const hoardings = 9_999

// hoard opens and closes consumers behind one that cannot be closed.
func hoard(directory string) error {
	s, err := dialAndGreet(directory)
	if err != nil {
		return err
	}
	if _, _, err := rawtest.Hoard(s, hoardings); err != nil {
		return err
	}
	announce()
	return nil
}

// abandonStuck ends connections that the server cannot clean up.
func abandonStuck(directory string) error {
	for range 100 {
		s, err := dialAndGreet(directory)
		if err != nil {
			return err
		}
		_, err = rawtest.OpenStuck(s, 1)
		if err := errors.Join(err, unix.Close(s)); err != nil {
			return err
		}
	}
	announce()
	return nil
}

// abandonPackets ends connections with packets that carry a stuck descriptor behind others.
func abandonPackets(connect func(string) (int, error), packet []byte, others int,
) func(string) error {
	return func(directory string) error {
		for range 100 {
			s, err := connect(directory)
			if err != nil {
				return err
			}
			stuck, _, err := testkit.StuckDescriptor()
			if err != nil {
				return err
			}
			list := append(make([]int, others, others+1), stuck)
			if err := rawtest.Send(s, packet, list...); err != nil && !errors.Is(err, unix.EPIPE) {
				return err
			}
			go func() { _ = unix.Close(stuck) }() // blocks if the server has been faster
			_ = unix.Close(s)
		}
		announce()
		return nil
	}
}

// readAvailable reads the server's replies.
func readAvailable(s int) {
	var packet [4096]byte
	for {
		if _, _, err := unix.Recvfrom(s, packet[:], unix.MSG_DONTWAIT); err != nil {
			return
		}
	}
}

// churn opens and closes many tiny consumers on several connections, as fast as it can.
func churn(directory string) error {
	const connections, rings = 16, 120
	announce()
	failed := make(chan error)
	for range connections {
		go func() { failed <- churnOne(directory, rings) }()
	}
	return <-failed
}

func churnOne(directory string, rings uint32) error {
	s, err := dialAndGreet(directory)
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for first := uint32(1); first < 1<<31; first += 2 * rings {
		for i := range rings {
			if err := rawtest.Send(s, rawtest.Frame(rawtest.OpenConsumer, first+2*i, 1, 64, 0),
				pair[0]); err != nil {
				return err
			}
			readAvailable(s)
		}
		for i := range rings {
			if err := rawtest.Send(s, rawtest.Frame(rawtest.CloseConsumer, first+2*i)); err != nil {
				return err
			}
			readAvailable(s)
		}
	}
	return nil
}

// leaveReplies opens and closes consumers and never reads the replies, which carry descriptors.
func leaveReplies(directory string) error {
	id := uint32(1)
	return attackOften(directory, dialAndGreet, func(s int) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) }()
		for range 10_000 {
			id += 2
			if err := errors.Join(
				rawtest.Send(s, rawtest.Frame(rawtest.OpenConsumer, id, 1, 64, 0), pair[0]),
				rawtest.Send(s, rawtest.Frame(rawtest.CloseConsumer, id)),
			); err != nil {
				return err
			}
		}
		return nil
	})
}

// takeRings opens as many large consumers as the server allows, on many connections.
func takeRings(directory string) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for range 32 {
		s, err := dialAndGreet(directory)
		if err != nil {
			return err
		}
		for id := uint32(1); id < 20; id += 2 {
			if err := rawtest.Send(s, rawtest.Frame(rawtest.OpenConsumer, id, 64, 1<<20, 0),
				pair[0]); err != nil {
				return err
			}
			if code, err := rawtest.ReadReply(s); err != nil || code != uint32(status.Success) {
				break
			}
		}
	}
	announce()
	return nil
}
