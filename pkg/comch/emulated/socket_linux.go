package emulated

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// socket sends and receives frames. One goroutine may read while another writes.
type socket struct {
	conn    *net.UnixConn
	packet  []byte // the packet read last
	control []byte
	output  []byte
}

func newSocket(conn *net.UnixConn, maxMessageSize int) *socket {
	return &socket{
		conn:    conn,
		packet:  make([]byte, frameOverhead+max(maxMessageSize, maxTextLength)),
		control: make([]byte, unix.CmsgSpace(4*maxDescriptors)),
	}
}

// read waits for the next frame. Its body is valid until the next read. The caller owns the
// descriptors, even if there is an error. io.EOF means that the peer has closed its end.
func (s *socket) read() (frame, descriptors, error) {
	n, controlLength, flags, _, err := s.conn.ReadMsgUnix(s.packet, s.control)
	if errors.Is(err, unix.ECONNRESET) {
		// The peer died without reading all our packets. What it sent is still queued.
		n, controlLength, flags, _, err = s.conn.ReadMsgUnix(s.packet, s.control)
	}
	received, controlErr := parseControl(s.control[:controlLength])
	if errors.Is(err, io.EOF) {
		return frame{}, received, err
	}
	if err != nil {
		return frame{}, received, fmt.Errorf("read from peer: %w", err)
	}
	if controlErr != nil {
		return frame{}, received, controlErr
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return frame{}, received, violation(
			"packet exceeds %d bytes or %d descriptors, or this process has no free descriptors",
			len(s.packet), maxDescriptors)
	}
	f, err := parseFrame(s.packet[:n])
	if err == nil && received.count > frameShapes[f.kind].descriptors {
		err = violation("frame of kind %d carries %d descriptors", f.kind, received.count)
	}
	return f, received, err
}

// parseControl extracts the descriptors from a control message. The kernel installs no more than
// fit into the buffer.
func parseControl(control []byte) (descriptors, error) {
	var received descriptors
	if len(control) == 0 {
		return received, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return received, violation("invalid control data: %v", err)
	}
	for i := range messages {
		list, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // not descriptors
		}
		for _, descriptor := range list {
			if received.count == maxDescriptors {
				closeDescriptor(descriptor)
				continue
			}
			received.add(descriptor)
		}
	}
	return received, nil
}

// write sends a frame with copies of the descriptors. It waits while the peer's socket is full.
func (s *socket) write(f *frame, passed descriptors) error {
	s.output = f.append(s.output[:0])
	var rights []byte
	if passed.count > 0 {
		rights = unix.UnixRights(passed.list[:passed.count]...)
	}
	if _, _, err := s.conn.WriteMsgUnix(s.output, rights, nil); err != nil {
		return fmt.Errorf("write to peer: %w", err)
	}
	return nil
}

// setTimeout sets the timeout of reads and writes, starting now; 0 means none.
func (s *socket) setTimeout(timeout time.Duration) {
	var deadline time.Time
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	_ = s.conn.SetDeadline(deadline) // fails only on a closed socket
}

// setWriteTimeout sets the timeout of writes, starting now.
func (s *socket) setWriteTimeout(timeout time.Duration) {
	_ = s.conn.SetWriteDeadline(time.Now().Add(timeout))
}

// setReadTimeout sets the timeout of reads, starting now.
func (s *socket) setReadTimeout(timeout time.Duration) {
	_ = s.conn.SetReadDeadline(time.Now().Add(timeout))
}

func (s *socket) close() { _ = s.conn.Close() }

// peerCredentials asks the kernel for the process at the other end.
func peerCredentials(conn *net.UnixConn) (comch.Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return comch.Peer{}, fmt.Errorf("get peer credentials: %w", err)
	}
	var credentials *unix.Ucred
	var optionErr error
	err = raw.Control(func(fd uintptr) {
		credentials, optionErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, optionErr); err != nil {
		return comch.Peer{}, fmt.Errorf("get peer credentials: %w", err)
	}
	return comch.Peer{PID: int(credentials.Pid), UID: credentials.Uid, GID: credentials.Gid}, nil
}

// maxDescriptors is how many descriptors a frame can carry.
const maxDescriptors = 2

// descriptors holds the descriptors of one frame. A handler takes what it needs; the rest is
// closed.
type descriptors struct {
	list  [maxDescriptors]int
	count int
}

// next removes and returns the next descriptor, or returns -1 and false if there is none. The
// caller owns it.
func (d *descriptors) next() (int, bool) {
	if d.count == 0 {
		return -1, false
	}
	first := d.list[0]
	copy(d.list[:], d.list[1:d.count])
	d.count--
	return first, true
}

func (d *descriptors) add(descriptor int) {
	d.list[d.count] = descriptor
	d.count++
}

// closeAll closes the remaining descriptors.
func (d *descriptors) closeAll() {
	for _, descriptor := range d.list[:d.count] {
		closeDescriptor(descriptor)
	}
	d.count = 0
}

// closeDescriptor closes a descriptor unless it is negative. It ignores errors: the descriptor is
// closed in any case, and no data is written to such files.
func closeDescriptor(descriptor int) {
	if descriptor >= 0 {
		_ = unix.Close(descriptor)
	}
}

// duplicate returns another descriptor of the same open file.
func duplicate(descriptor int) (int, error) {
	dup, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d: %w", descriptor, err)
	}
	return dup, nil
}
