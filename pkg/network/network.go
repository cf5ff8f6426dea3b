// SPDX-License-Identifier: Apache-2.0

// Package network is the seam to byte streams between machines. Kernel makes TCP connections;
// a simulation provides streams whose delays, losses, and cuts it controls.
package network

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Network connects and listens. Its methods may be called concurrently.
type Network interface {
	// Dial connects to remote from the address local, or from any if local is not valid.
	Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (Stream, error)
	// Listen accepts connections on address; port 0 picks one.
	Listen(ctx context.Context, address netip.AddrPort) (Listener, error)
	// SourceAddress returns the local address of connections to remote. It sends nothing.
	SourceAddress(remote netip.AddrPort) (netip.Addr, error)
}

// Stream is a connected byte stream with the semantics of TCP. Errors match those of net.TCPConn:
// io.EOF, net.ErrClosed, os.ErrDeadlineExceeded, or a syscall.Errno. LocalAddr and RemoteAddr
// return a *net.TCPAddr.
type Stream interface {
	net.Conn
	// CloseWrite ends the stream in one direction: the peer reads what was sent, and then io.EOF.
	CloseWrite() error
	// SetLinger with 0 makes Close reset the connection and drop what the peer has not received.
	SetLinger(seconds int) error
}

// Pollable is a Stream that is not a kernel's socket, and that one thread can use without blocking.
// TryRead and TryWrite behave like recv(2) and send(2) with MSG_DONTWAIT.
type Pollable interface {
	Stream
	// TryRead reads what has arrived. It returns 0 and no error at the end of the stream, and
	// EAGAIN if nothing has arrived.
	TryRead(b []byte) (int, syscall.Errno)
	// TryWrite sends as much as the stream takes, and returns EAGAIN if that is nothing.
	TryWrite(b []byte) (int, syscall.Errno)
	// Readable reports whether TryRead would return something other than EAGAIN, Writable the same
	// for TryWrite.
	Readable() bool
	Writable() bool
}

// Listener accepts streams.
type Listener interface {
	// Accept waits for the next stream. After Close it fails with net.ErrClosed.
	Accept() (Stream, error)
	// Address returns where the listener listens, with the actual port.
	Address() netip.AddrPort
	Close() error
}

// Kernel is the Network of this machine. The zero value is ready for use.
type Kernel struct {
	// Control, if set, is called for each socket before it is connected or bound, as in net.Dialer.
	Control func(network, address string, raw syscall.RawConn) error
}

// Dial makes a TCP connection without keep-alive probes; the Stream is a *net.TCPConn.
func (k Kernel) Dial(
	ctx context.Context, local netip.Addr, remote netip.AddrPort,
) (Stream, error) {
	dialer := net.Dialer{KeepAlive: -1, Control: k.Control}
	dialer.SetMultipathTCP(false) // MPTCP sockets lack options that TCP has
	if local.IsValid() && !local.IsUnspecified() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
	}
	connection, err := dialer.DialContext(ctx, "tcp", remote.String())
	if err != nil {
		return nil, err
	}
	stream := connection.(*net.TCPConn)
	// TCP connects a socket to itself if the kernel picks the port it dials, which happens on
	// loopback. It would keep the peer from its port.
	if stream.LocalAddr().String() == stream.RemoteAddr().String() {
		_ = stream.SetLinger(0)
		_ = stream.Close()
		return nil, status.Errorf(status.NotConnected,
			"connected to itself: nothing listens on %v: %w", remote, syscall.ECONNREFUSED)
	}
	return stream, nil
}

// Listen listens for TCP connections; each Stream is a *net.TCPConn. At 0.0.0.0 it accepts those
// over IPv4, at :: all.
func (k Kernel) Listen(ctx context.Context, address netip.AddrPort) (Listener, error) {
	config := net.ListenConfig{KeepAlive: -1, Control: k.Control}
	config.SetMultipathTCP(false)
	listener, err := config.Listen(ctx, protocolOf(address.Addr()), address.String())
	if err != nil {
		return nil, err
	}
	return kernelListener{listener.(*net.TCPListener)}, nil
}

// ListenTCP listens for connections of strangers at HOST:PORT, as net.Listen does, but over IPv4
// alone at 0.0.0.0, and without MPTCP: an MPTCP socket does not tell the zone of its address.
func ListenTCP(address string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	parsed, _ := netip.ParseAddrPort(address) // a name is of no family
	return config.Listen(context.Background(), protocolOf(parsed.Addr()), address)
}

// protocolOf returns the network for package net to listen at an address. That package listens over
// IPv6, too, if it gets 0.0.0.0 for "tcp".
func protocolOf(a netip.Addr) string {
	if a == netip.IPv4Unspecified() {
		return "tcp4"
	}
	return "tcp"
}

// SourceAddress asks the kernel's routing table.
func (Kernel) SourceAddress(remote netip.AddrPort) (netip.Addr, error) {
	// Connecting a UDP socket looks up the route and sends nothing.
	connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(remote))
	if err != nil {
		return netip.Addr{}, status.Errorf(status.NotConnected, "find the route to %v: %w",
			remote, err)
	}
	defer connection.Close()
	return AddressOf(connection.LocalAddr()).Addr(), nil
}

type kernelListener struct{ *net.TCPListener }

func (l kernelListener) Accept() (Stream, error) {
	connection, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return connection, nil
}

func (l kernelListener) Address() netip.AddrPort { return AddressOf(l.Addr()) }

// AddressOf returns the address of a TCP or UDP socket, with IPv4 addresses in their short form.
func AddressOf(a net.Addr) netip.AddrPort {
	address, ok := a.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return netip.AddrPort{}
	}
	full := address.AddrPort()
	return netip.AddrPortFrom(full.Addr().Unmap(), full.Port())
}

// SourceOf returns what counts as one source: an IPv4 address, or the network of an IPv6 address,
// because whoever has one address there has them all.
func SourceOf(address netip.Addr) netip.Prefix {
	bits := 64
	if address.Is4() {
		bits = 32
	}
	prefix, _ := address.Prefix(bits) // fails only for an address that is not valid
	return prefix
}
