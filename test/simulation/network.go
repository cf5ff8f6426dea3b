package simulation

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network"
)

// window is how many bytes each direction of a stream holds: sent and not read yet.
const window = 64 << 10

// lossTimeout is when a kernel gives up a connection whose peer does not acknowledge: the relay and
// the target set TCP_USER_TIMEOUT and keep-alive to about this.
const lossTimeout = 6 * time.Second

// internet carries TCP streams between the processes of a world. Bytes that one side writes are in
// flight until the scheduler delivers them.
type internet struct {
	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	dials     []*dial
	ends      []*streamEnd // open at this side or with something left to deliver
	nextPort  uint16
	cut       map[[2]netip.Addr]time.Time // partitions, since when
}

func newInternet() *internet {
	return &internet{
		listeners: make(map[netip.AddrPort]*listener), nextPort: 20000,
		cut: make(map[[2]netip.Addr]time.Time),
	}
}

// host is one process's access to the internet. It implements network.Network.
type host struct {
	internet *internet
	process  *process
	address  netip.Addr
}

// dial is an attempt to connect, which the scheduler completes.
type dial struct {
	from    *host
	to      netip.AddrPort
	outcome chan dialOutcome // has room for one
}

type dialOutcome struct {
	stream *streamEnd
	err    error
}

func (h *host) Dial(
	ctx context.Context, _ netip.Addr, remote netip.AddrPort,
) (network.Stream, error) {
	d := &dial{from: h, to: remote, outcome: make(chan dialOutcome, 1)}
	n := h.internet
	n.mu.Lock()
	if h.process.dead {
		n.mu.Unlock()
		return nil, opError("dial", syscall.ENETDOWN)
	}
	n.dials = append(n.dials, d)
	n.mu.Unlock()
	select {
	case o := <-d.outcome:
		if o.err != nil {
			return nil, o.err
		}
		return o.stream, nil
	case <-ctx.Done():
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, other := range n.dials {
		if other == d {
			n.dials = append(n.dials[:i:i], n.dials[i+1:]...)
		}
	}
	select {
	case o := <-d.outcome:
		if o.stream != nil {
			o.stream.closeLocked(true)
		}
	default:
	}
	return nil, ctx.Err()
}

func (h *host) Listen(_ context.Context, address netip.AddrPort) (network.Listener, error) {
	n := h.internet
	n.mu.Lock()
	defer n.mu.Unlock()
	if address.Port() == 0 {
		n.nextPort++
		address = netip.AddrPortFrom(address.Addr(), n.nextPort)
	}
	if h.process.dead || n.listeners[address] != nil {
		return nil, opError("listen", syscall.EADDRINUSE)
	}
	l := &listener{host: h, address: address, changed: make(chan struct{})}
	n.listeners[address] = l
	return l, nil
}

func (h *host) SourceAddress(netip.AddrPort) (netip.Addr, error) { return h.address, nil }

func opError(operation string, err error) error {
	return &net.OpError{Op: operation, Net: "tcp", Err: err}
}

type listener struct {
	host    *host
	address netip.AddrPort
	backlog []*streamEnd
	closed  bool
	changed chan struct{}
}

func (l *listener) Accept() (network.Stream, error) {
	n := l.host.internet
	for {
		n.mu.Lock()
		switch {
		case l.closed:
			n.mu.Unlock()
			return nil, opError("accept", net.ErrClosed)
		case len(l.backlog) > 0:
			e := l.backlog[0]
			l.backlog = l.backlog[1:]
			n.mu.Unlock()
			return e, nil
		}
		changed := l.changed
		n.mu.Unlock()
		<-changed
	}
}

func (l *listener) Address() netip.AddrPort { return l.address }

func (l *listener) Close() error {
	n := l.host.internet
	n.mu.Lock()
	defer n.mu.Unlock()
	l.closeLocked()
	return nil
}

func (l *listener) closeLocked() {
	if l.closed {
		return
	}
	l.closed = true
	if l.host.internet.listeners[l.address] == l {
		delete(l.host.internet.listeners, l.address)
	}
	for _, e := range l.backlog {
		e.closeLocked(true)
	}
	close(l.changed)
}

// streamEnd is one end of a stream. It implements network.Pollable.
type streamEnd struct {
	host          *host
	local, remote netip.AddrPort
	peer          *streamEnd

	// Guarded by internet.mu.
	in       []byte // delivered, not read yet
	inEnded  bool   // the peer's FIN has been delivered
	failure  syscall.Errno
	out      []byte // in flight to the peer
	outEnded bool   // a FIN follows out
	outReset bool   // a RST is in flight
	closed   bool
	linger0  bool
	arrived  int       // bytes delivered to the peer
	stalled  time.Time // since when the peer has acknowledged nothing; zero if it has
	changed  chan struct{}
	readBy   time.Time
	writeBy  time.Time
}

func (e *streamEnd) lock() *sync.Mutex { return &e.host.internet.mu }

func (e *streamEnd) broadcast() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// wait waits for a change of the end, or for the deadline. The caller holds the lock, which wait
// releases meanwhile.
func (e *streamEnd) wait(by time.Time) {
	changed := e.changed
	e.lock().Unlock()
	defer e.lock().Lock()
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

func expired(by time.Time) bool { return !by.IsZero() && !time.Now().Before(by) }

func (e *streamEnd) Read(b []byte) (int, error) {
	e.lock().Lock()
	defer e.lock().Unlock()
	for {
		switch {
		case e.closed:
			return 0, opError("read", net.ErrClosed)
		case expired(e.readBy):
			return 0, opError("read", os.ErrDeadlineExceeded)
		}
		n, errno := e.receiveLocked(b)
		switch {
		case n > 0 || len(b) == 0:
			return n, nil
		case errno == 0:
			return 0, io.EOF
		case errno != syscall.EAGAIN:
			return 0, opError("read", errno)
		}
		e.wait(e.readBy)
	}
}

func (e *streamEnd) receiveLocked(b []byte) (int, syscall.Errno) {
	switch {
	case len(e.in) > 0:
		n := copy(b, e.in)
		e.in = e.in[n:]
		return n, 0
	case e.failure != 0:
		return 0, e.failure
	case e.inEnded:
		return 0, 0
	}
	return 0, syscall.EAGAIN
}

func (e *streamEnd) Write(b []byte) (int, error) {
	e.lock().Lock()
	defer e.lock().Unlock()
	written := 0
	for {
		switch {
		case e.closed:
			return written, opError("write", net.ErrClosed)
		case expired(e.writeBy):
			return written, opError("write", os.ErrDeadlineExceeded)
		}
		n, errno := e.sendLocked(b[written:])
		if written += n; written == len(b) {
			return written, nil
		}
		if errno != 0 && errno != syscall.EAGAIN {
			return written, opError("write", errno)
		}
		e.wait(e.writeBy)
	}
}

func (e *streamEnd) sendLocked(b []byte) (int, syscall.Errno) {
	switch {
	case e.failure != 0:
		return 0, e.failure
	case e.outEnded:
		return 0, syscall.EPIPE
	}
	n := min(len(b), window-len(e.out)-len(e.peer.in))
	if n <= 0 {
		return 0, syscall.EAGAIN
	}
	e.out = append(e.out, b[:n]...)
	return n, 0
}

func (e *streamEnd) TryRead(b []byte) (int, syscall.Errno) {
	e.lock().Lock()
	defer e.lock().Unlock()
	if e.closed {
		return 0, syscall.EBADF
	}
	return e.receiveLocked(b)
}

func (e *streamEnd) TryWrite(b []byte) (int, syscall.Errno) {
	e.lock().Lock()
	defer e.lock().Unlock()
	if e.closed {
		return 0, syscall.EBADF
	}
	return e.sendLocked(b)
}

func (e *streamEnd) Readable() bool {
	e.lock().Lock()
	defer e.lock().Unlock()
	return e.closed || len(e.in) > 0 || e.inEnded || e.failure != 0
}

func (e *streamEnd) Writable() bool {
	e.lock().Lock()
	defer e.lock().Unlock()
	return e.closed || e.failure != 0 || e.outEnded || len(e.out)+len(e.peer.in) < window
}

func (e *streamEnd) CloseWrite() error {
	e.lock().Lock()
	defer e.lock().Unlock()
	if e.closed {
		return opError("shutdown", net.ErrClosed)
	}
	e.outEnded = true
	return nil
}

func (e *streamEnd) SetLinger(seconds int) error {
	e.lock().Lock()
	defer e.lock().Unlock()
	e.linger0 = seconds == 0
	return nil
}

func (e *streamEnd) Close() error {
	e.lock().Lock()
	defer e.lock().Unlock()
	if e.closed {
		return opError("close", net.ErrClosed)
	}
	e.closeLocked(e.linger0)
	return nil
}

// closeLocked closes the end as a kernel does: with a reset if the application wants one or has not
// read everything, otherwise with a FIN behind what was sent.
func (e *streamEnd) closeLocked(reset bool) {
	if e.closed {
		return
	}
	e.closed = true
	if reset || len(e.in) > 0 {
		e.out, e.outReset = nil, true
	}
	e.outEnded = true
	e.in = nil
	e.broadcast()
	e.peer.broadcast() // there may be room in the window now
}

func (e *streamEnd) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(e.local) }
func (e *streamEnd) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(e.remote) }

func (e *streamEnd) SetDeadline(t time.Time) error {
	if err := e.SetReadDeadline(t); err != nil {
		return err
	}
	return e.SetWriteDeadline(t)
}

func (e *streamEnd) SetReadDeadline(t time.Time) error  { return e.setDeadline(&e.readBy, t) }
func (e *streamEnd) SetWriteDeadline(t time.Time) error { return e.setDeadline(&e.writeBy, t) }

func (e *streamEnd) setDeadline(of *time.Time, t time.Time) error {
	e.lock().Lock()
	defer e.lock().Unlock()
	if e.closed {
		return opError("set deadline", net.ErrClosed)
	}
	*of = t
	e.broadcast()
	return nil
}

func (e *streamEnd) String() string { return fmt.Sprintf("%v→%v", e.local, e.remote) }

// The rest is for the scheduler.

// connect completes an attempt to connect.
func (n *internet) connect(d *dial) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, other := range n.dials {
		if other == d {
			n.dials = append(n.dials[:i:i], n.dials[i+1:]...)
		}
	}
	l := n.listeners[d.to]
	if l == nil || len(l.backlog) >= 128 {
		d.outcome <- dialOutcome{err: opError("dial", syscall.ECONNREFUSED)}
		return
	}
	n.nextPort++
	local := netip.AddrPortFrom(d.from.address, n.nextPort)
	client := &streamEnd{host: d.from, local: local, remote: d.to, changed: make(chan struct{})}
	server := &streamEnd{host: l.host, local: d.to, remote: local, changed: make(chan struct{})}
	client.peer, server.peer = server, client
	n.ends = append(n.ends, client, server)
	l.backlog = append(l.backlog, server)
	close(l.changed)
	l.changed = make(chan struct{})
	d.outcome <- dialOutcome{stream: client}
}

// deliverable reports whether the end has something in flight that can arrive now.
func (n *internet) deliverable(e *streamEnd) bool {
	return (len(e.out) > 0 || e.outReset || e.outEnded && !e.peer.inEnded) && e.peer.failure == 0 &&
		!e.host.process.frozen && !e.peer.host.process.frozen &&
		!n.isCut(e.host.address, e.peer.host.address)
}

// deliver lets up to limit bytes arrive, or what follows the last of them. It inverts the bit flip
// in them, unless that is negative.
func (n *internet) deliver(e *streamEnd, limit, flip int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e.stalled = time.Time{}
	p := e.peer
	switch {
	case len(e.out) > 0 && p.closed:
		// The peer's kernel answers data for a closed socket by a reset.
		e.out, e.failure = nil, syscall.ECONNRESET
		e.broadcast()
	case len(e.out) > 0:
		count := min(limit, len(e.out))
		start := len(p.in)
		p.in = append(p.in, e.out[:count]...)
		if flip >= 0 {
			p.in[start+flip/8%count] ^= 1 << (flip % 8)
		}
		e.arrived += count
		e.out = e.out[count:]
		if len(e.out) == 0 {
			e.out = nil
		}
		p.broadcast()
	case e.outReset:
		e.outReset, p.failure, p.inEnded = false, syscall.ECONNRESET, true
		p.out = nil
		p.broadcast()
	default:
		p.inEnded = true
		p.broadcast()
	}
	n.forget(e)
	n.forget(p)
}

// handshakeBytes is more than the MPA request and reply, which no CRC protects.
const handshakeBytes = 256

// frameHeaderBytes is about the length of the headers of an FPDU, which often begins what is in
// flight.
const frameHeaderBytes = 20

// carriesFrames reports whether the next bytes belong to frames of RDMA.
func (e *streamEnd) carriesFrames() bool {
	return e.arrived >= handshakeBytes &&
		(e.local.Port() == rdmaPort || e.remote.Port() == rdmaPort)
}

// forget removes an end that is closed and has delivered everything.
func (n *internet) forget(e *streamEnd) {
	if !e.closed || len(e.out) > 0 || e.outReset || !e.peer.inEnded && !e.peer.closed &&
		e.peer.failure == 0 {
		return
	}
	for i, other := range n.ends {
		if other == e {
			n.ends = append(n.ends[:i:i], n.ends[i+1:]...)
			return
		}
	}
}

// reset breaks a stream as a middlebox would: both ends see a reset.
func (n *internet) reset(e *streamEnd) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e.fail(syscall.ECONNRESET)
	e.peer.fail(syscall.ECONNRESET)
}

func (e *streamEnd) fail(errno syscall.Errno) {
	if e.failure == 0 {
		e.failure = errno
	}
	e.out, e.outReset, e.outEnded = nil, false, true
	e.inEnded = true
	e.broadcast()
}

// kill closes everything of a process, as the kernel does when it dies.
func (n *internet) kill(p *process) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.listenersOf(p) {
		l.closeLocked()
	}
	for _, e := range n.ends {
		if e.host.process == p {
			e.closeLocked(false)
		}
	}
	kept := n.dials[:0:0]
	for _, d := range n.dials {
		if d.from.process == p {
			d.outcome <- dialOutcome{err: opError("dial", syscall.ENETDOWN)}
			continue
		}
		kept = append(kept, d)
	}
	n.dials = kept
}

func (n *internet) listenersOf(p *process) []*listener {
	var of []*listener
	for _, l := range n.listeners {
		if l.host.process == p {
			of = append(of, l)
		}
	}
	slices.SortFunc(of, func(a, b *listener) int { return a.address.Compare(b.address) })
	return of
}

// isCut reports whether nothing passes between two hosts.
func (n *internet) isCut(a, b netip.Addr) bool {
	_, cut := n.cut[pair(a, b)]
	return cut
}

func pair(a, b netip.Addr) [2]netip.Addr {
	if b.Less(a) {
		a, b = b, a
	}
	return [2]netip.Addr{a, b}
}

// partition cuts two hosts off from each other, or joins them again.
func (n *internet) partition(a, b netip.Addr, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if cut {
		n.cut[pair(a, b)] = time.Now()
		return
	}
	delete(n.cut, pair(a, b))
}

// expire fails the streams whose peers have acknowledged nothing for too long.
func (n *internet) expire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for _, e := range n.ends {
		if e.closed || e.failure != 0 {
			continue
		}
		since, cut := n.cut[pair(e.host.address, e.peer.host.address)]
		if cut && now.Sub(since) > lossTimeout {
			e.fail(syscall.ETIMEDOUT)
			continue
		}
		if len(e.out) == 0 || n.deliverable(e) {
			e.stalled = time.Time{}
			continue
		}
		if e.stalled.IsZero() {
			e.stalled = now
		}
		full := len(e.out)+len(e.peer.in) >= window
		if full && now.Sub(e.stalled) > lossTimeout {
			e.fail(syscall.ETIMEDOUT)
		}
	}
}
