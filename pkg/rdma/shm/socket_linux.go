// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// socketName returns the name of a listener in the abstract namespace, which belongs to the network
// namespace as ports do, and vanishes with the listener.
func socketName(port uint16) string { return "@zc-relay/rdma/" + strconv.Itoa(int(port)) }

// listenUnix listens on a port. It fails with status.AlreadyExist if the port is taken.
func listenUnix(port uint16) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: socketName(port)})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, status.Errorf(status.AlreadyExist, "port %d is in use: %w", port, err)
	}
	return l, err
}

// maxStrangers bounds the sockets of other users' processes that wait to be closed.
const maxStrangers = 256

// strangers holds a token for each socket of another user's process until it is closed. That takes
// as long as the process likes: it may have queued a descriptor in the socket whose own closing
// blocks, such as that of another socket that lingers.
type strangers chan struct{}

func newStrangers() strangers { return make(strangers, maxStrangers) }

// turnAway closes a socket in the background. It waits while too many cannot be closed, until ctx
// ends.
func (s strangers) turnAway(ctx context.Context, conn *net.UnixConn) {
	leave := func() { <-s }
	select {
	case s <- struct{}{}:
	case <-ctx.Done():
		leave = func() {}
	}
	go func() {
		defer leave()
		_ = conn.Close()
	}()
}

func (s strangers) isFull() bool { return len(s) == cap(s) }

// dialed has the strangers that this process has connected to.
var dialed = newStrangers()

// dialOwn connects to a port if the process that listens there belongs to this process's user.
func dialOwn(ctx context.Context, port uint16) (*net.UnixConn, error) {
	if dialed.isFull() {
		return nil, status.Errorf(status.NotPermitted, "connect to socket %s: %d sockets of other "+
			"users' processes cannot be closed: end these processes", socketName(port), maxStrangers)
	}
	conn, err := dialUnix(ctx, port)
	if err != nil {
		return nil, err
	}
	return conn, checkDialed(ctx, conn)
}

// checkDialed turns a stranger away. Root's listeners are strangers, too: they reject the processes
// of others without a word.
func checkDialed(ctx context.Context, conn *net.UnixConn) error {
	peer, err := credentials(conn)
	if own := uint32(os.Geteuid()); err == nil && peer.Uid != own {
		err = status.Errorf(status.NotPermitted, "socket %s is process %d's of user %d, and this "+
			"process is of user %d: shared memory is for processes of one user: run both programs as "+
			"the same one, or choose the RDMA provider auto on both sides, which uses TCP between users",
			conn.RemoteAddr(), peer.Pid, peer.Uid, own)
	}
	if err != nil {
		dialed.turnAway(ctx, conn)
	}
	return err
}

func dialUnix(ctx context.Context, port uint16) (*net.UnixConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unixpacket", socketName(port))
	if err == nil {
		return conn.(*net.UnixConn), nil
	}
	code := status.CodeOf(err)
	if cause := context.Cause(ctx); cause != nil {
		code, err = status.CodeOf(cause), cause
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		code = status.ConnectionAborted // nothing listens there
	}
	return nil, status.Errorf(code, "connect to socket %s: %w", socketName(port), err)
}

// checkPeer fails unless the process at the other end belongs to root or to this process's user.
func checkPeer(conn *net.UnixConn) error {
	peer, err := credentials(conn)
	if err != nil {
		return err
	}
	if own := uint32(os.Geteuid()); peer.Uid != 0 && peer.Uid != own {
		return status.Errorf(status.NotPermitted, "process %d belongs to user %d, not to root or "+
			"user %d: run both programs as the same user, or choose another RDMA provider",
			peer.Pid, peer.Uid, own)
	}
	return nil
}

// credentials returns those of the process at the other end.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("get peer credentials: %w", err)
	}
	var peer *unix.Ucred
	var optionErr error
	err = raw.Control(func(fd uintptr) {
		peer, optionErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, optionErr); err != nil {
		return nil, fmt.Errorf("get peer credentials: %w", err)
	}
	return peer, nil
}

// exchangeDeadline makes blocking calls on conn end with ctx. The caller calls the function it
// returns when it is done.
func exchangeDeadline(ctx context.Context, conn *net.UnixConn) (done func()) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// exchangeError returns the reason for which ctx has ended rather than the error that this has
// caused.
func exchangeError(ctx context.Context, operation string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return status.Errorf(status.CodeOf(err), "%s: %w", operation, err)
}

func sendPacket(ctx context.Context, conn *net.UnixConn, p *packet, passed []int) error {
	var rights []byte
	if len(passed) > 0 {
		rights = unix.UnixRights(passed...)
	}
	if _, _, err := conn.WriteMsgUnix(p.encode(), rights, nil); err != nil {
		return exchangeError(ctx, "send handshake", err)
	}
	return nil
}

// receivePacket receives a packet and its descriptors, which the caller owns.
func receivePacket(ctx context.Context, conn *net.UnixConn) (packet, []int, error) {
	b := make([]byte, maxPacket+1)
	control := make([]byte, unix.CmsgSpace(4*(1+rdma.MaxLent)))
	n, controlLength, flags, _, err := conn.ReadMsgUnix(b, control)
	passed := passedDescriptors(control[:controlLength])
	if errors.Is(err, io.EOF) || err == nil && n == 0 {
		err = status.Errorf(status.ConnectionReset, "the peer closed the connection")
	}
	if err != nil {
		closeAll(passed)
		return packet{}, nil, exchangeError(ctx, "receive handshake", err)
	}
	p, err := parsePacket(b[:n])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = badPacket("it is too long")
	}
	want := 1 + len(p.lent)
	if p.kind == packetReject {
		want = 0
	}
	if err == nil && len(passed) != want {
		err = badPacket("it carries %d descriptors, not %d", len(passed), want)
	}
	if err != nil {
		closeAll(passed)
		return packet{}, nil, err
	}
	return p, passed, nil
}

// passedDescriptors returns the descriptors of control data, all of which are open.
func passedDescriptors(control []byte) []int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	var passed []int
	for i := range messages {
		if rights, err := unix.ParseUnixRights(&messages[i]); err == nil {
			passed = append(passed, rights...)
		}
	}
	return passed
}

func closeAll(descriptors []int) {
	for _, d := range descriptors {
		_ = unix.Close(d)
	}
}

// detach takes the socket away from the Go runtime's poller, for the data path: it duplicates the
// descriptor and closes conn.
func detach(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("detach socket: %w", err)
	}
	duplicate, dupErr := -1, error(nil)
	err = raw.Control(func(fd uintptr) {
		duplicate, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err = errors.Join(err, dupErr); err != nil {
		return -1, status.Errorf(status.OperatingSystem, "duplicate socket: %w", err)
	}
	if err := conn.Close(); err != nil {
		_ = unix.Close(duplicate)
		return -1, fmt.Errorf("detach socket: %w", err)
	}
	return duplicate, nil
}
