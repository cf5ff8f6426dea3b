package shm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// strangerTimeout bounds every wait for what a stranger must not delay.
const strangerTimeout = 2 * time.Minute

// asStranger calls body on a thread of another user, and ends the thread.
func asStranger(t *testing.T, body func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it
		const nobody = 65534
		// The function of package unix would change all threads.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			result <- errno
			return
		}
		result <- body()
	}()
	must(t, <-result)
}

// stuck makes descriptors whose last close blocks until the test ends: lingering sockets with data
// that nobody receives.
type stuck struct {
	mu   sync.Mutex
	ends []net.Conn
}

func newStuck(t *testing.T) *stuck {
	s := &stuck{}
	t.Cleanup(s.release)
	return s
}

// release lets all descriptors close.
func (s *stuck) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range s.ends {
		_ = end.(*net.TCPConn).SetLinger(0) // resets the connection
		_ = end.Close()
	}
	s.ends = nil
}

func (s *stuck) descriptor() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return -1, err
	}
	defer listener.Close()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return -1, err
	}
	defer dialed.Close()
	accepted, err := listener.Accept()
	if err != nil {
		return -1, err
	}
	s.mu.Lock()
	s.ends = append(s.ends, accepted)
	s.mu.Unlock()
	file, err := dialed.(*net.TCPConn).File()
	if err != nil {
		return -1, err
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return -1, err
	}
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<20))
	}
	return fd, errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptLinger(fd, unix.SOL_SOCKET,
		unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}))
}

// queue sends a stuck descriptor to a socket that nobody reads yet, so that this process gives up
// its reference before the receiver does.
func (s *stuck) queue(socket int) error {
	fd, err := s.descriptor()
	if err != nil {
		return err
	}
	return errors.Join(
		unix.Sendmsg(socket, []byte{1}, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL),
		unix.Close(fd))
}

func TestStrangersDoNotKeepAListenerFromItsClients(t *testing.T) {
	opened, err := New(Options{}).Open(netip.MustParseAddr("127.0.0.1"))
	must(t, err)
	device := opened.(*device)
	defer func() { must(t, device.Close()) }()
	must(t, device.Acquire("listen"))
	sockets, address, err := listenOn(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	must(t, err)
	stuck := newStuck(t)
	defer stuck.release()
	asStranger(t, func() error {
		for range 3 {
			s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			err = unix.Connect(s, &unix.SockaddrUnix{Name: socketName(address.Port())})
			if err := errors.Join(err, stuck.queue(s), unix.Close(s)); err != nil {
				return err
			}
		}
		return nil
	})
	l := device.serve(sockets, address)
	defer func() { must(t, l.Close()) }()
	client, server := newSide(t, device), newSide(t, device)
	ctx, cancel := context.WithTimeout(t.Context(), strangerTimeout)
	defer cancel()
	connected := make(chan error, 1)
	go func() {
		c, err := device.Connect(ctx, l.Address(), client.config())
		if err == nil {
			client.conn = c.(*connection)
		}
		connected <- err
	}()
	request, err := l.Accept(ctx)
	must(t, err)
	c, err := request.Accept(ctx, server.config())
	must(t, err)
	must(t, <-connected)
	server.conn = c.(*connection)
	client.close()
	server.close()
}

// TestAStrangersListenerDelaysNobody connects to a port that another user has taken.
func TestAStrangersListenerDelaysNobody(t *testing.T) {
	stuck := newStuck(t)
	defer stuck.release()
	port := anyPort()
	accepting := make(chan error, 1)
	asStranger(t, func() error {
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Bind(s, &unix.SockaddrUnix{Name: socketName(port)}),
			unix.Listen(s, 1)); err != nil {
			return err
		}
		go func() {
			defer unix.Close(s)
			accepted, _, err := unix.Accept(s)
			if err == nil {
				err = errors.Join(stuck.queue(accepted), unix.Close(accepted))
			}
			accepting <- err
		}()
		return nil
	})
	dialing, err := dialUnix(t.Context(), port)
	must(t, err)
	must(t, <-accepting) // the descriptor is queued
	ctx, cancel := context.WithTimeout(t.Context(), strangerTimeout)
	defer cancel()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := checkDialed(ctx, dialing); !errors.Is(err, status.NotPermitted) {
			t.Errorf("the connection to a stranger gives %v", err)
		}
	}()
	select {
	case <-closed:
	case <-ctx.Done():
		t.Error("a connection to a stranger is not given up")
		stuck.release()
		<-closed
	}
}
