// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// streamBuffer is the number of bytes that the middle reads at once.
const streamBuffer = 1 << 20

// stream is the TCP connection, used by raw non-blocking system calls.
type stream struct{ fd int }

func newStream(c net.Conn) (stream, error) {
	file, err := c.(*net.TCPConn).File()
	if err != nil {
		return stream{}, err
	}
	fd, err := unix.Dup(int(file.Fd()))
	if err != nil {
		return stream{}, err
	}
	// As pkg/rdma/iwarp does for sockets within a machine: no pacing.
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	return stream{fd}, unix.SetNonblock(fd, true)
}

// read returns the number of bytes read, 0 if there are none yet.
func (s stream) read(b []byte) (int, error) {
	n, err := unix.Read(s.fd, b)
	switch {
	case err == unix.EAGAIN:
		return 0, nil
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// write writes all of b.
func (s stream) write(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(s.fd, b)
		if err == unix.EAGAIN {
			yield()
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// poller says which streams are readable. With a single stream it does not ask the kernel: reading
// is the cheaper question.
type poller struct {
	epoll  int
	events []unix.EpollEvent
}

// newPoller returns a poller of as many streams, which watch then adds.
func newPoller(streams int) (*poller, error) {
	p := &poller{events: make([]unix.EpollEvent, streams)}
	if streams == 1 {
		return p, nil
	}
	var err error
	p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return p, err
}

// watch adds the stream with an index.
func (p *poller) watch(index int, s stream) error {
	if len(p.events) == 1 {
		return nil
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(index)}
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, s.fd, &event)
}

// ready returns events whose Fd is the index of a stream that may be readable.
func (p *poller) ready() []unix.EpollEvent {
	if len(p.events) == 1 {
		return p.events
	}
	n, _ := unix.EpollWait(p.epoll, p.events, 0)
	return p.events[:max(0, n)]
}

// runMiddle forwards requests to the storage, and copies the responses back.
func runMiddle(p parameters) error {
	if err := await(p.sharedFile(p.sessions - 1)); err != nil {
		return err
	}
	if err := await(p.socketFile()); err != nil {
		return err
	}
	address, err := os.ReadFile(p.socketFile())
	if err != nil {
		return err
	}
	sockets, err := newPoller(p.sessions)
	if err != nil {
		return err
	}
	sessions := make([]middle, p.sessions)
	for i := range sessions {
		connection, err := net.Dial("tcp", strings.TrimSpace(string(address)))
		if err != nil {
			return err
		}
		m := &sessions[i]
		m.p, m.in = p, make([]byte, 0, streamBuffer)
		if m.shared, m.data, err = mapShared(&p, i, false); err != nil {
			return err
		}
		if m.tcp, err = newStream(connection); err != nil {
			return err
		}
		if err := sockets.watch(i, m.tcp); err != nil {
			return err
		}
	}
	for {
		busy := false
		for i := range sessions {
			forwarded, err := sessions[i].forward()
			if err != nil {
				return err
			}
			busy = busy || forwarded
		}
		for _, event := range sockets.ready() {
			placed, err := sessions[event.Fd].place()
			if err != nil {
				return err
			}
			busy = busy || placed
		}
		if !busy {
			yield()
		}
	}
}

// middle is a session as the middle sees it.
type middle struct {
	p                  parameters
	shared             *shared
	data               []byte
	tcp                stream
	in                 []byte
	out                []byte
	forwarded, answers uint64
}

// forward sends all available requests in one write, including the data of writes.
func (m *middle) forward() (bool, error) {
	m.out = m.out[:0]
	var message [messageSize]byte
	for m.shared.requests.get(m.forwarded, &message) {
		m.forwarded++
		m.out = append(m.out, message[:]...)
		if m.p.write {
			slot := int(binary.BigEndian.Uint32(message[8:]))
			m.out = append(m.out, m.data[slot*m.p.blockSize:][:m.p.blockSize]...)
		}
	}
	return len(m.out) > 0, m.tcp.write(m.out)
}

// place copies the data of all available responses and publishes them.
func (m *middle) place() (bool, error) {
	n, err := m.tcp.read(m.in[len(m.in):cap(m.in)])
	if n == 0 || err != nil {
		return false, err
	}
	m.in = m.in[:len(m.in)+n]
	size := messageSize
	if !m.p.write {
		size += m.p.blockSize
	}
	rest := m.in
	for len(rest) >= size {
		message := [messageSize]byte(rest)
		if !m.p.write {
			slot := int(binary.BigEndian.Uint32(message[8:]))
			copy(m.data[slot*m.p.blockSize:], rest[messageSize:size])
		}
		m.shared.answers.put(m.answers, &message)
		m.answers++
		rest = rest[size:]
	}
	m.in = m.in[:copy(m.in[:cap(m.in)], rest)]
	return true, nil
}
