// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"net"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// namespace is a network namespace with a loopback interface. Each side of a network has one, so
// that both can use the same addresses and ports: what a relay connects to in its namespace is the
// network, which connects to the target in that of the target.
type namespace struct {
	calls chan func() // run on a thread of the namespace
}

// newNamespace makes a namespace that exists until the test ends.
func newNamespace(t testing.TB) *namespace {
	t.Helper()
	n := &namespace{calls: make(chan func())}
	made := make(chan error)
	go func() {
		// The thread is never unlocked, and so ends with the goroutine.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = bringUpLoopback()
		}
		made <- err
		for call := range n.calls {
			call()
		}
	}()
	if err := <-made; err != nil {
		t.Fatalf("make a network namespace (as root?): %v", err)
	}
	t.Cleanup(func() { close(n.calls) })
	return n
}

func bringUpLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request)
}

// do runs a function on a thread of the namespace. What the function makes there belongs to the
// namespace: sockets, and processes.
func (n *namespace) do(f func()) {
	done := make(chan struct{})
	n.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// start starts a program in the namespace.
func (n *namespace) start(t testing.TB, name string, command *exec.Cmd) *testkit.Process {
	t.Helper()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var p *testkit.Process
	n.do(func() { p = testkit.Start(t, command) })
	p.Name = name
	return p
}

func (n *namespace) listen(t testing.TB, address string) *net.TCPListener {
	t.Helper()
	var l net.Listener
	var err error
	n.do(func() { l, err = net.Listen("tcp4", address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

func (n *namespace) dial(address string) (connection *net.TCPConn, err error) {
	n.do(func() {
		var c net.Conn
		if c, err = net.Dial("tcp4", address); err == nil {
			connection = c.(*net.TCPConn)
		}
	})
	return connection, err
}
