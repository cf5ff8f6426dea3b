// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dialer is a device that only connects.
type dialer struct {
	rdma.SecureDevice
	connect func(ctx context.Context) error
}

func (d *dialer) Connect(
	ctx context.Context, _ netip.AddrPort, _ rdma.ConnectionConfig,
) (rdma.Connection, error) {
	return nil, d.connect(ctx)
}

// TestTCPIsTriedAfterEveryErrorOfSharedMemory connects to a peer on this machine with time for
// both transports.
func TestTCPIsTriedAfterEveryErrorOfSharedMemory(t *testing.T) {
	reached := errors.New("TCP was tried")
	for name, test := range map[string]struct {
		local func(context.Context) error
		final bool
	}{
		"nobody listens": {local: fails(status.Errorf(status.ConnectionAborted, "refused"))},
		"another user":   {local: fails(status.Errorf(status.NotPermitted, "user 1"))},
		"full queue":     {local: fails(status.Errorf(status.OperatingSystem, "EAGAIN"))},
		"no memory":      {local: fails(status.Errorf(status.NoMemory, "no room in /dev/shm"))},
		"bad answer":     {local: fails(status.Errorf(status.InvalidValue, "kind 7"))},
		"no answer": {local: func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}},
		"rejected by accident": {local: fails(&rdma.RejectedError{})},
		"rejected with reason": {local: fails(&rdma.RejectedError{Reason: []byte("token")}),
			final: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &device{log: zap.NewNop(), local: &dialer{connect: test.local},
					tcp: &dialer{connect: func(ctx context.Context) error {
						return errors.Join(reached, ctx.Err())
					}}}
				_, err := d.Connect(t.Context(), netip.MustParseAddrPort("127.0.0.1:4791"),
					rdma.ConnectionConfig{Queue: &queue{}})
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("no time is left for TCP: %v", err)
				}
				if got := errors.Is(err, reached); got == test.final {
					t.Errorf("TCP was tried: %v, error: %v", got, err)
				}
			})
		})
	}
}

func fails(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// TestAFullSocketLeavesTCP fills the queue of the socket that a peer has for shared memory, as any
// user of the machine can.
func TestAFullSocketLeavesTCP(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	accepting, err := iwarp.New(iwarp.Options{}).Open(loopback)
	must(t, err)
	defer func() { must(t, accepting.Close()) }()
	listener, err := accepting.Listen(t.Context(), netip.AddrPortFrom(loopback, 0))
	must(t, err)
	defer func() { must(t, listener.Close()) }()
	fillSocket(t, "@zc-relay/rdma/"+strconv.Itoa(int(listener.Address().Port())))
	go func() {
		if request, err := listener.Accept(t.Context()); err == nil {
			_ = request.Reject([]byte("reached"))
		}
	}()

	connecting, err := New(iwarp.Options{}).Open(loopback)
	must(t, err)
	defer func() { must(t, connecting.Close()) }()
	domain, err := connecting.NewProtectionDomain()
	must(t, err)
	defer func() { must(t, domain.Close()) }()
	q, err := connecting.NewCompletionQueue(1)
	must(t, err)
	defer func() { must(t, q.Close()) }()
	_, err = connecting.Connect(t.Context(), listener.Address(),
		rdma.ConnectionConfig{Domain: domain, Queue: q, SendRequests: 1, ReceiveRequests: 1})
	var rejected *rdma.RejectedError
	if !errors.As(err, &rejected) || string(rejected.Reason) != "reached" {
		t.Errorf("the peer is not reached over TCP: %v", err)
	}
}

// fillSocket binds a socket whose queue of connections is full until the test ends.
func fillSocket(t *testing.T, name string) {
	address := &unix.SockaddrUnix{Name: name}
	open := func() int {
		s, err := unix.Socket(unix.AF_UNIX,
			unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		must(t, os.NewSyscallError("socket", err))
		t.Cleanup(func() { _ = unix.Close(s) })
		return s
	}
	listening := open()
	must(t, unix.Bind(listening, address))
	must(t, unix.Listen(listening, 0))
	for {
		switch err := unix.Connect(open(), address); err {
		case nil:
		case syscall.EAGAIN:
			return
		default:
			t.Fatal(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
