// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSocketsOfOneMachineAreNotPaced(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "127.0.0.9:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("no %s on this machine: %v", address, err)
			continue
		}
		defer func() { _ = listener.Close() }()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = accepted.Close() }()
		for _, end := range []net.Conn{conn, accepted} {
			if err := (Options{}).apply(end.(*net.TCPConn)); err != nil {
				t.Fatal(err)
			}
			raw, err := end.(*net.TCPConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			_ = raw.Control(func(fd uintptr) {
				got, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
				if err != nil || got != "reno" {
					t.Errorf("%v has congestion control %q, error %v, want reno", end.LocalAddr(), got,
						err)
				}
			})
		}
	}
}

func TestWhetherAConnectionStaysOnTheMachine(t *testing.T) {
	for _, test := range []struct {
		local, remote string
		want          bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.2", true},
		{"::1", "::1", true},
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::2", false},
	} {
		got := staysOnMachine(net.ParseIP(test.local), net.ParseIP(test.remote))
		if got != test.want {
			t.Errorf("from %s to %s: %t, want %t", test.local, test.remote, got, test.want)
		}
	}
}
