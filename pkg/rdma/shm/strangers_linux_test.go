// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
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

// queueStuck sends a descriptor that cannot be closed to a socket that nobody reads yet, so that
// this process gives up its reference before the receiver does. It is released when the test ends.
func queueStuck(t *testing.T, socket int) (release func(), err error) {
	stuck, release, err := testkit.StuckDescriptor()
	if err != nil {
		return nil, err
	}
	t.Cleanup(release)
	return release, errors.Join(
		unix.Sendmsg(socket, []byte{1}, unix.UnixRights(stuck), nil, unix.MSG_NOSIGNAL),
		unix.Close(stuck))
}

func TestStrangersDoNotKeepAListenerFromItsClients(t *testing.T) {
	opened, err := New(Options{}).Open(netip.MustParseAddr("127.0.0.1"))
	must(t, err)
	device := opened.(*device)
	defer func() { must(t, device.Close()) }()
	sockets, address, err := listenOn(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	must(t, err)
	var releases []func()
	asStranger(t, func() error {
		for range 3 {
			s, err := testkit.DialPackets(socketName(address.Port()), 0)
			if err != nil {
				return err
			}
			release, err := queueStuck(t, s)
			releases = append(releases, release)
			if err := errors.Join(err, unix.Close(s)); err != nil {
				return err
			}
		}
		return nil
	})
	l, err := softrdma.Listen(&device.Device, address, maxPending,
		func() (*softrdma.Clients[*net.UnixConn], error) {
			return device.clients(sockets, address), nil
		})
	must(t, err)
	defer func() { must(t, l.Close()) }()
	defer func() {
		for _, release := range releases {
			release()
		}
	}()
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
	port := anyPort()
	var release func()
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
				release, err = queueStuck(t, accepted)
				err = errors.Join(err, unix.Close(accepted))
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
		release()
		<-closed
	}
}
