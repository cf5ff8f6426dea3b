package simulation

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// packetWindow is how many packets each direction of a socket holds.
const packetWindow = 32

// bus connects the Comch clients and servers of one machine: SOCK_SEQPACKET sockets that pass
// descriptors. Packets are in flight until the scheduler delivers them.
type bus struct {
	mu        sync.Mutex
	listeners []*busListener
	ends      []*socketEnd
	loans     []loan

	loanNumber int64
}

// busHost is one process's access to the bus. It implements emulated.Sockets.
type busHost struct {
	bus     *bus
	process *process
	// passed, if set, is called with each descriptor that the process sends or receives.
	passed func(descriptor int)
}

func (h *busHost) Listen(_ context.Context, service comch.Service, _ bool,
) (emulated.SocketListener, error) {
	b := h.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := slices.ContainsFunc(b.listeners,
		func(l *busListener) bool { return l.service == service })
	if taken || h.process.dead {
		return nil, status.Errorf(status.AlreadyExist, "server %q is already running",
			service.Name)
	}
	l := &busListener{host: h, service: service, changed: make(chan struct{})}
	b.listeners = append(b.listeners, l)
	return l, nil
}

func (h *busHost) Connect(_ context.Context, hostDevice, name string) (emulated.Socket, error) {
	b := h.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.listeners, func(l *busListener) bool {
		return l.service.Representor == hostDevice && l.service.Name == name
	})
	if i < 0 || h.process.dead {
		return nil, status.Errorf(status.NotFound, "no server named %q", name)
	}
	l := b.listeners[i]
	if len(l.backlog) >= 16 {
		return nil, status.Errorf(status.Full, "server %q has too many clients waiting", name)
	}
	client := &socketEnd{host: h, changed: make(chan struct{})}
	server := &socketEnd{host: l.host, changed: make(chan struct{})}
	client.peer, server.peer = server, client
	b.ends = append(b.ends, client, server)
	l.backlog = append(l.backlog, server)
	l.broadcast()
	return client, nil
}

func (h *busHost) Pair() (first, second emulated.Socket, err error) {
	return nil, nil, status.Errorf(status.NotSupported, "the simulation has no MsgQ")
}

func (h *busHost) Services() ([]comch.Service, error) { return nil, nil }

type busListener struct {
	host    *busHost
	service comch.Service
	backlog []*socketEnd
	closed  bool
	changed chan struct{}
}

func (l *busListener) broadcast() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *busListener) Accept() (emulated.Socket, error) {
	b := l.host.bus
	for {
		b.mu.Lock()
		switch {
		case l.closed:
			b.mu.Unlock()
			return nil, net.ErrClosed
		case len(l.backlog) > 0:
			e := l.backlog[0]
			l.backlog = l.backlog[1:]
			b.mu.Unlock()
			return e, nil
		}
		changed := l.changed
		b.mu.Unlock()
		<-changed
	}
}

func (l *busListener) OpenToEveryUser() error { return nil }

func (l *busListener) Address() string { return "simulated/" + l.service.Name }

func (l *busListener) Close() error {
	l.host.bus.mu.Lock()
	defer l.host.bus.mu.Unlock()
	l.closeLocked()
	return nil
}

func (l *busListener) closeLocked() {
	if l.closed {
		return
	}
	l.closed = true
	b := l.host.bus
	b.listeners = slices.DeleteFunc(slices.Clone(b.listeners),
		func(other *busListener) bool { return other == l })
	for _, e := range l.backlog {
		e.closeLocked()
	}
	l.broadcast()
}

// packet is a packet with the descriptors that it owns.
type packet struct {
	bytes  []byte
	passed []int
}

func (p *packet) close() {
	for _, descriptor := range p.passed {
		_ = unix.Close(descriptor)
	}
	p.passed = nil
}

// socketEnd is one end of a socket. It implements emulated.Socket.
type socketEnd struct {
	host *busHost
	peer *socketEnd

	// Guarded by bus.mu.
	in, out []packet // delivered to this end, and in flight to the peer
	inEnded bool
	reset   bool // the next read fails with ECONNRESET
	closed  bool
	changed chan struct{}
	readBy  time.Time
	writeBy time.Time
}

func (e *socketEnd) broadcast() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// wait waits for a change or the deadline. The caller holds the lock, which wait releases
// meanwhile.
func (e *socketEnd) wait(by time.Time) {
	changed := e.changed
	e.host.bus.mu.Unlock()
	defer e.host.bus.mu.Lock()
	if by.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(by))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

func (e *socketEnd) ReadPacket(b []byte, passed []int) (length, descriptors int, err error) {
	e.host.bus.mu.Lock()
	defer e.host.bus.mu.Unlock()
	for {
		switch {
		case e.closed:
			return 0, 0, net.ErrClosed
		case e.reset:
			e.reset = false
			return 0, 0, syscall.ECONNRESET
		case len(e.in) > 0:
			p := e.in[0]
			e.in = e.in[1:]
			e.peer.broadcast()
			if len(p.bytes) > len(b) || len(p.passed) > len(passed) {
				p.close()
				return 0, 0, emulated.ErrTruncated
			}
			copy(passed, p.passed)
			return copy(b, p.bytes), len(p.passed), nil
		case e.inEnded:
			return 0, 0, io.EOF
		case expired(e.readBy):
			return 0, 0, os.ErrDeadlineExceeded
		}
		e.wait(e.readBy)
	}
}

func (e *socketEnd) WritePacket(b []byte, passed []int) error {
	e.host.bus.mu.Lock()
	defer e.host.bus.mu.Unlock()
	for {
		switch {
		case e.closed:
			return net.ErrClosed
		case e.peer.closed:
			return syscall.EPIPE
		case expired(e.writeBy):
			return os.ErrDeadlineExceeded
		case len(e.out)+len(e.peer.in) < packetWindow:
			p := packet{bytes: slices.Clone(b)}
			for _, descriptor := range passed {
				duplicate, err := e.host.bus.duplicate(descriptor, e.peer.host.process)
				if err != nil {
					p.close()
					return err
				}
				p.passed = append(p.passed, duplicate)
				for _, host := range []*busHost{e.host, e.peer.host} {
					if host.passed != nil {
						host.passed(duplicate)
					}
				}
			}
			e.out = append(e.out, p)
			return nil
		}
		e.wait(e.writeBy)
	}
}

func (e *socketEnd) SetReadDeadline(t time.Time) error  { return e.setDeadline(&e.readBy, t) }
func (e *socketEnd) SetWriteDeadline(t time.Time) error { return e.setDeadline(&e.writeBy, t) }

func (e *socketEnd) setDeadline(of *time.Time, t time.Time) error {
	e.host.bus.mu.Lock()
	defer e.host.bus.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	*of = t
	e.broadcast()
	return nil
}

func (e *socketEnd) Peer() (comch.Peer, error) {
	return comch.Peer{PID: e.peer.host.process.id, UID: uint32(os.Geteuid())}, nil
}

func (e *socketEnd) Close() error {
	e.host.bus.mu.Lock()
	defer e.host.bus.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	e.closeLocked()
	return nil
}

func (e *socketEnd) closeLocked() {
	if e.closed {
		return
	}
	e.closed = true
	for i := range e.in {
		e.in[i].close()
	}
	e.peer.reset = len(e.in) > 0
	e.in = nil
	e.broadcast()
	e.peer.broadcast()
}

// The rest is for the scheduler.

// deliverable reports whether the end has something in flight that can arrive now. The end of a
// connection follows its last packet.
func (e *socketEnd) deliverable() bool {
	return (len(e.out) > 0 || e.closed && !e.peer.inEnded) && !e.host.process.frozen &&
		!e.peer.host.process.frozen
}

func (b *bus) deliver(e *socketEnd) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := e.peer
	switch {
	case len(e.out) > 0 && p.closed:
		e.out[0].close()
		e.out = e.out[1:]
	case len(e.out) > 0:
		p.in = append(p.in, e.out[0])
		e.out = e.out[1:]
	default:
		p.inEnded = true
	}
	p.broadcast()
	for _, end := range []*socketEnd{e, p} {
		if end.closed && len(end.out) == 0 && (end.peer.inEnded || end.peer.closed) {
			b.ends = slices.DeleteFunc(slices.Clone(b.ends),
				func(other *socketEnd) bool { return other == end })
		}
	}
}

// kill closes everything of a process, as the kernel does when it dies.
func (b *bus) kill(p *process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range slices.Clone(b.listeners) {
		if l.host.process == p {
			l.closeLocked()
		}
	}
	for _, e := range b.ends {
		if e.host.process == p {
			e.closeLocked()
		}
	}
}

// loan is an open file description that one process has passed to another, with a lock that shows
// whether anybody still has it (memory.Lease). When a process dies, the kernel closes its
// descriptors and mappings; here they live on. So the receiver gets another description of the
// file, with a lock of its own, and this one stays open for as long as a living receiver uses that.
type loan struct {
	kept     int
	receiver *process
	number   int64 // of the byte that the receiver's description locks
}

// firstLoan is beyond the bytes that leases lock.
const firstLoan = 1 << 40

// duplicate returns the descriptor that a receiver gets for one that is passed to it.
func (b *bus) duplicate(descriptor int, receiver *process) (int, error) {
	duplicate, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var stat unix.Stat_t
	if unix.Fstat(duplicate, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return duplicate, nil
	}
	other, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", duplicate), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return duplicate, nil // a file that cannot be written to is not leased
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: firstLoan}
	err = unix.FcntlFlock(uintptr(other), unix.F_OFD_GETLK, &lock)
	if err != nil || lock.Type == unix.F_UNLCK {
		_ = unix.Close(other)
		return duplicate, nil
	}
	b.loanNumber++
	own := unix.Flock_t{Type: unix.F_RDLCK, Start: firstLoan + b.loanNumber, Len: 1}
	if err := unix.FcntlFlock(uintptr(other), unix.F_OFD_SETLK, &own); err != nil {
		panic("simulation: lock a file in memory: " + err.Error())
	}
	b.loans = append(b.loans, loan{duplicate, receiver, own.Start})
	return other, nil
}

// endLoans drops the descriptions that no living process uses any more.
func (b *bus) endLoans(all bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.loans = slices.DeleteFunc(b.loans, func(l loan) bool {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: l.number, Len: 1}
		used := unix.FcntlFlock(uintptr(l.kept), unix.F_OFD_GETLK, &lock) == nil &&
			lock.Type != unix.F_UNLCK
		if used && !l.receiver.dead && !all {
			return false
		}
		_ = unix.Close(l.kept)
		return true
	})
}

// openDescriptors returns the descriptors that this process has open, and what they refer to.
func openDescriptors() map[string]string {
	open := make(map[string]string)
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		open[e.Name()], _ = os.Readlink("/proc/self/fd/" + e.Name())
	}
	return open
}

func closeDescriptors(open map[string]string) {
	for name := range open {
		if descriptor, err := strconv.Atoi(name); err == nil {
			_ = unix.Close(descriptor)
		}
	}
}
