// SPDX-License-Identifier: Apache-2.0

// Package networktest is a network in memory, for tests and simulations. It starts no goroutines,
// and depends on time only where a deadline is set. Whoever waits for it waits on a channel, so
// testing/synctest can tell when all of a test's goroutines are idle.
//
// A Network connects hosts, each of which is a network.Network. Its streams behave like TCP between
// Linux machines, including half-close, reset, and full buffers. What one end writes is readable at
// the other end at once, unless Config.Transmit is set. Then it is in flight until it is delivered,
// and meanwhile the test can hold it back, change it, or fail the connection:
//
//	n := networktest.New(networktest.Config{Transmit: func(f *networktest.Flow) {
//		f.Edit(func(inFlight []byte) { inFlight[0] ^= 1 })
//		f.Deliver(f.InFlight())
//	}})
//	options.Network = n.Host(netip.MustParseAddr("10.0.0.1"))
package networktest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/network"
)

// Config configures a Network. The zero value is ready for use.
type Config struct {
	// BufferBytes is how much each direction of a connection holds, in flight and unread. 0 means
	// DefaultBufferBytes.
	BufferBytes int
	// Transmit, if set, decides when bytes arrive. It is called after something was put in flight:
	// bytes, the end of the stream, or a reset. The call comes from the goroutine that did so, with
	// no lock held. Transmit may deliver at once, and may keep the flow and deliver later.
	Transmit func(f *Flow)
	// ResetsFollow makes a reset arrive behind what its sender had in flight, as in a network that
	// delays. Without it, a reset drops what is in flight, as in a network that loses.
	ResetsFollow bool
	// Dial, if set, is called before each connection is made. It may wait, and its error becomes
	// that of the caller's Dial.
	Dial func(ctx context.Context, local, remote netip.AddrPort) error
}

// DefaultBufferBytes is the default of Config.BufferBytes.
const DefaultBufferBytes = 256 << 10

// backlog is how many connections may wait for a listener's Accept. Further ones are refused.
const backlog = 1024

// Network connects hosts. Its methods, and those of everything made with it, may be called
// concurrently. Use New to make one.
type Network struct {
	config Config

	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	ports     uint16  // the port that was picked last
	flows     []*Flow // of open connections, two each
}

// New returns a Network without hosts.
func New(config Config) *Network {
	if config.BufferBytes <= 0 {
		config.BufferBytes = DefaultBufferBytes
	}
	return &Network{
		config: config, listeners: map[netip.AddrPort]*listener{}, ports: firstPort - 1,
	}
}

// Flows returns the flows of all open connections, in the order in which they were dialled. The
// flow from the dialling end comes first.
func (n *Network) Flows() []*Flow {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.flows)
}

// Host returns the view of a host that has the given addresses, at least one.
func (n *Network) Host(addresses ...netip.Addr) *Host {
	return &Host{network: n, addresses: addresses}
}

// Host is the network.Network of one host, or of one process on it: several Hosts may have the same
// addresses.
type Host struct {
	network   *Network
	addresses []netip.Addr
	killed    bool // guarded by network.mu
}

// Kill closes all listeners and streams of the host, as the kernel does when a process dies. From
// then on, Dial and Listen fail with ENETDOWN.
func (h *Host) Kill() {
	n := h.network
	n.mu.Lock()
	h.killed = true
	var listeners []*listener
	for _, l := range n.listeners {
		if l.host == h && !slices.Contains(listeners, l) {
			listeners = append(listeners, l)
		}
	}
	slices.SortFunc(listeners, func(a, b *listener) int { return a.address.Compare(b.address) })
	var streams []*stream
	for _, f := range n.flows {
		if f.writer.host == h {
			streams = append(streams, f.writer)
		}
	}
	n.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close() // fails only if it is closed already
	}
	for _, s := range streams {
		_ = s.Close()
	}
}

// errorOf returns errno the way package net reports it.
func errorOf(operation string, local, remote netip.AddrPort, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(operation, errno)
	}
	e := &net.OpError{Op: operation, Net: "tcp", Err: err}
	if local.IsValid() {
		e.Source = net.TCPAddrFromAddrPort(local)
	}
	if remote.IsValid() {
		e.Addr = net.TCPAddrFromAddrPort(remote)
	}
	return e
}

// Dial connects to a listener. It fails with ECONNREFUSED if there is none, with EADDRNOTAVAIL if
// local is not an address of this host, and with ENETUNREACH if no address of this host has the
// family of remote.
func (h *Host) Dial(
	ctx context.Context, local netip.Addr, remote netip.AddrPort,
) (network.Stream, error) {
	n := h.network
	if !local.IsValid() || local.IsUnspecified() {
		var err error
		if local, err = h.SourceAddress(remote); err != nil {
			return nil, err
		}
	}
	if !slices.Contains(h.addresses, local) {
		return nil, errorOf("dial", netip.AddrPortFrom(local, 0), remote, syscall.EADDRNOTAVAIL)
	}
	n.mu.Lock()
	source := netip.AddrPortFrom(local, n.pickPort(h.addresses))
	n.mu.Unlock()
	if n.config.Dial != nil {
		if err := n.config.Dial(ctx, source, remote); err != nil {
			return nil, errorOf("dial", source, remote, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, errorOf("dial", source, remote, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.killed {
		return nil, errorOf("dial", source, remote, syscall.ENETDOWN)
	}
	l := n.listeners[remote]
	if l == nil || len(l.waiting) == backlog {
		return nil, errorOf("dial", source, remote, syscall.ECONNREFUSED)
	}
	near, far := n.connect(h, l.host, source, remote)
	l.waiting = append(l.waiting, far)
	l.changed.wake()
	return near, nil
}

// Listen accepts connections to address. It fails with EADDRNOTAVAIL if that is not an address of
// this host, and with EADDRINUSE if somebody listens there.
func (h *Host) Listen(ctx context.Context, address netip.AddrPort) (network.Listener, error) {
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, errorOf("listen", netip.AddrPort{}, address, err)
	}
	if h.killed {
		return nil, errorOf("listen", netip.AddrPort{}, address, syscall.ENETDOWN)
	}
	bound := []netip.Addr{address.Addr()}
	if address.Addr().IsUnspecified() {
		bound = h.addresses
	} else if !slices.Contains(h.addresses, address.Addr()) {
		return nil, errorOf("listen", netip.AddrPort{}, address, syscall.EADDRNOTAVAIL)
	}
	if address.Port() == 0 {
		address = netip.AddrPortFrom(address.Addr(), n.pickPort(bound))
	}
	l := &listener{network: n, host: h, address: address}
	for _, b := range bound {
		key := netip.AddrPortFrom(b, address.Port())
		if n.listeners[key] != nil {
			return nil, errorOf("listen", netip.AddrPort{}, address, syscall.EADDRINUSE)
		}
		l.keys = append(l.keys, key)
	}
	for _, key := range l.keys {
		n.listeners[key] = l
	}
	return l, nil
}

// SourceAddress returns the first address of the host that has the family of remote.
func (h *Host) SourceAddress(remote netip.AddrPort) (netip.Addr, error) {
	for _, a := range h.addresses {
		if a.Is4() == remote.Addr().Is4() {
			return a, nil
		}
	}
	return netip.Addr{}, errorOf("dial", netip.AddrPort{}, remote, syscall.ENETUNREACH)
}

// firstPort is the lowest port that is picked for those who ask for none.
const firstPort = 49152

// pickPort returns the next port at which nobody listens on any of the addresses.
func (n *Network) pickPort(addresses []netip.Addr) uint16 {
	for {
		n.ports = max(n.ports+1, firstPort)
		if !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
			return n.listeners[netip.AddrPortFrom(a, n.ports)] != nil
		}) {
			return n.ports
		}
	}
}

// listener queues the far ends of connections until they are accepted.
type listener struct {
	network *Network
	host    *Host
	address netip.AddrPort
	keys    []netip.AddrPort // in Network.listeners; nil once closed
	waiting []*stream
	changed signal
}

func (l *listener) Address() netip.AddrPort { return l.address }

func (l *listener) Accept() (network.Stream, error) {
	for {
		l.network.mu.Lock()
		if l.keys == nil {
			l.network.mu.Unlock()
			return nil, errorOf("accept", netip.AddrPort{}, l.address, net.ErrClosed)
		}
		if len(l.waiting) > 0 {
			s := l.waiting[0]
			l.waiting = l.waiting[1:]
			l.network.mu.Unlock()
			return s, nil
		}
		changed := l.changed.channel()
		l.network.mu.Unlock()
		<-changed
	}
}

// Close resets the connections that have not been accepted.
func (l *listener) Close() error {
	l.network.mu.Lock()
	if l.keys == nil {
		l.network.mu.Unlock()
		return errorOf("close", netip.AddrPort{}, l.address, net.ErrClosed)
	}
	for _, key := range l.keys {
		delete(l.network.listeners, key)
	}
	waiting := l.waiting
	l.keys, l.waiting = nil, nil
	l.changed.wake()
	l.network.mu.Unlock()
	for _, s := range waiting {
		_ = s.SetLinger(0)
		_ = s.Close()
	}
	return nil
}

// signal wakes all who wait for a change. It is guarded by Network.mu.
type signal struct{ waiting chan struct{} }

// channel returns a channel that the next wake closes.
func (s *signal) channel() <-chan struct{} {
	if s.waiting == nil {
		s.waiting = make(chan struct{})
	}
	return s.waiting
}

func (s *signal) wake() {
	if s.waiting != nil {
		close(s.waiting)
		s.waiting = nil
	}
}
