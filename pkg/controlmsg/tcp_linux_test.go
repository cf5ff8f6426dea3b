// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
)

func TestAnIdleConnectionSurvivesTheLossOfAProbe(t *testing.T) {
	t.Parallel() // TCP's timers have a resolution of seconds
	near, far := connect(t)
	a := controlmsg.NewTCPTransport(near, controlmsg.TCPConfig{UserTimeout: 15 * time.Second})
	received := make(chan error, 1)
	go func() {
		_, err := a.Receive(generous(t))
		received <- err
	}()
	unanswered := func() (n int) {
		control(t, near, func(fd int) error {
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			if err == nil {
				n = int(info.Probes)
			}
			return err
		})
		return n
	}
	await := func(what string, condition func() bool) {
		t.Helper()
		testkit.Eventually(t, what, func() bool {
			select {
			case err := <-received:
				t.Fatalf("the connection ended before %s: %v", what, err)
			default:
			}
			return condition()
		})
	}
	control(t, far, func(fd int) error { // drops all that arrives
		drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: 1, Filter: &drop})
	})
	await("a probe is lost", func() bool { return unanswered() > 0 })
	control(t, far, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	})
	await("a probe is answered", func() bool { return unanswered() == 0 })
	a.Abort()
	<-received
}

// control calls use with the descriptor of a connection.
func control(t *testing.T, conn *net.TCPConn, use func(fd int) error) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = use(int(fd)) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}
