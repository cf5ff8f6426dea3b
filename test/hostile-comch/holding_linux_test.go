package hostilecomch

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/stucktest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// openStuck opens a consumer whose doorbell holds the only reference to a stuck descriptor, so that
// the server cannot close the doorbell.
func openStuck(s int, id uint32) error {
	stuck, _, err := stucktest.Descriptor()
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Sendmsg(pair[1], []byte{1}, unix.UnixRights(stuck), nil, 0),
		unix.Sendmsg(s, makeFrame(kindOpenConsumer, id, 1, 64, 0), unix.UnixRights(pair[0]), nil,
			unix.MSG_NOSIGNAL)); err != nil {
		return err
	}
	if code, err := readReply(s); err != nil || code != uint32(status.Success) {
		return fmt.Errorf("open a consumer: code %d, error %w", code, err)
	}
	return errors.Join(unix.Close(stuck), unix.Close(pair[0]), unix.Close(pair[1]))
}

// hoardings is how many consumers a server without limits would keep in hoard.
const hoardings = 9_999

// hoard opens and closes consumers behind one that cannot be closed.
func hoard(directory string) error {
	s, err := dialAndGreet(directory)
	if err != nil {
		return err
	}
	if err := errors.Join(openStuck(s, 1),
		unix.Send(s, makeFrame(kindCloseConsumer, 1), unix.MSG_NOSIGNAL)); err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for id := uint32(3); id < 2*hoardings; id += 2 {
		if unix.Sendmsg(s, makeFrame(kindOpenConsumer, id, 1, 64, 0), unix.UnixRights(pair[0]),
			nil, unix.MSG_NOSIGNAL) != nil {
			break
		}
		if _, err := readReply(s); err != nil {
			break // the server has ended the connection
		}
		if unix.Send(s, makeFrame(kindCloseConsumer, id), unix.MSG_NOSIGNAL) != nil {
			break
		}
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
		if err := errors.Join(openStuck(s, 1), unix.Close(s)); err != nil {
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
			stuck, _, err := stucktest.Descriptor()
			if err != nil {
				return err
			}
			list := append(make([]int, others, others+1), stuck)
			if err := unix.Sendmsg(s, packet, unix.UnixRights(list...), nil,
				unix.MSG_NOSIGNAL); err != nil && !errors.Is(err, unix.EPIPE) {
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
			if err := unix.Sendmsg(s, makeFrame(kindOpenConsumer, first+2*i, 1, 64, 0),
				unix.UnixRights(pair[0]), nil, unix.MSG_NOSIGNAL); err != nil {
				return err
			}
			readAvailable(s)
		}
		for i := range rings {
			if err := unix.Send(s, makeFrame(kindCloseConsumer, first+2*i),
				unix.MSG_NOSIGNAL); err != nil {
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
				unix.Sendmsg(s, makeFrame(kindOpenConsumer, id, 1, 64, 0),
					unix.UnixRights(pair[0]), nil, unix.MSG_NOSIGNAL),
				unix.Send(s, makeFrame(kindCloseConsumer, id), unix.MSG_NOSIGNAL),
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
			if err := unix.Sendmsg(s, makeFrame(kindOpenConsumer, id, 64, 1<<20, 0),
				unix.UnixRights(pair[0]), nil, unix.MSG_NOSIGNAL); err != nil {
				return err
			}
			if code, err := readReply(s); err != nil || code != uint32(status.Success) {
				break
			}
		}
	}
	announce()
	return nil
}
