// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"github.com/zc-relay/zc-relay/cmd/internal/audit"
)

// limitedListener limits the number of open connections, in all and per source. At a limit, a new
// connection replaces the oldest one without a request in progress, of the same source or of the
// source that has most: connections that send nothing keep nobody out. If all have one, the new
// connection gets no place, but is reserved for health; a few such connections may be open, and the
// next one replaces the oldest of them. So no client makes another one wait to be accepted.
type limitedListener struct {
	net.Listener
	tls func() *tls.Config

	mu       sync.Mutex
	places   []*limitedConn // oldest first
	reserved []*limitedConn // oldest first
}

func newLimitedListener(inner net.Listener, secure func() *tls.Config) *limitedListener {
	return &limitedListener{Listener: inner, tls: secure}
}

// Accept waits for a connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &limitedConn{Conn: inner, listener: l, source: sourceOfAddress(inner.RemoteAddr()),
		silent: true}
	if replaced := l.admit(c); replaced != nil {
		_ = replaced.Conn.Close() // its goroutine in net/http ends
	}
	if l.tls != nil {
		if config := l.tls(); config != nil {
			c.begun = true
			return tls.Server(c, config), nil
		}
	}
	return c, nil
}

// admit gives a connection a place, or reserves it, and returns the one that it replaces, if any.
func (l *limitedListener) admit(c *limitedConn) (replaced *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := countSources(l.places)
	var candidate func(*limitedConn) bool
	switch {
	case c.source.IsValid() && counts[c.source] >= maxPerSource:
		candidate = func(o *limitedConn) bool { return o.silent && o.source == c.source }
	case len(l.places) >= maxConnections:
		most := mostOf(l.places, counts, func(o *limitedConn) bool { return o.silent })
		candidate = func(o *limitedConn) bool { return o.silent && o.source == most }
	default:
		l.places = append(l.places, c)
		return nil
	}
	if i := slices.IndexFunc(l.places, candidate); i >= 0 {
		replaced = l.places[i]
		l.places = append(slices.Delete(l.places, i, i+1), c)
		return replaced
	}
	c.reserved = true
	if len(l.reserved) >= maxReserved {
		most := mostOf(l.reserved, countSources(l.reserved),
			func(*limitedConn) bool { return true })
		i := slices.IndexFunc(l.reserved, func(o *limitedConn) bool { return o.source == most })
		replaced = l.reserved[i]
		l.reserved = slices.Delete(l.reserved, i, i+1)
	}
	l.reserved = append(l.reserved, c)
	return replaced
}

func countSources(connections []*limitedConn) map[netip.Prefix]int {
	counts := make(map[netip.Prefix]int)
	for _, c := range connections {
		counts[c.source]++
	}
	return counts
}

// mostOf returns the source with most connections among those that may count.
func mostOf(connections []*limitedConn, counts map[netip.Prefix]int,
	mayCount func(*limitedConn) bool) (most netip.Prefix) {
	for _, c := range connections {
		if mayCount(c) && counts[c.source] > counts[most] {
			most = c.source
		}
	}
	return most
}

// observe is the ConnState of the HTTP server.
func (l *limitedListener) observe(connection net.Conn, state http.ConnState) {
	if c := limitedOf(connection); c != nil {
		l.mu.Lock()
		c.silent = state != http.StateActive
		l.mu.Unlock()
	}
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	listener *limitedListener
	source   netip.Prefix // invalid for a Unix socket
	reserved bool         // has no place, and is for health only
	silent   bool         // no request is in progress; guarded by listener.mu
	begun    bool         // something was read, or is TLS
}

// limitedOf returns what is below a connection of the HTTP server.
func limitedOf(connection net.Conn) *limitedConn {
	if secure, is := connection.(*tls.Conn); is {
		connection = secure.NetConn()
	}
	c, _ := connection.(*limitedConn)
	return c
}

// ipv6SourceBits is the length of the prefix that counts as one source: a host may use all
// addresses of its network.
const ipv6SourceBits = 64

// sourceOfAddress returns what the limits per source count for an address.
func sourceOfAddress(address net.Addr) netip.Prefix {
	tcp, is := address.(*net.TCPAddr)
	if !is {
		return netip.Prefix{}
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	ip = ip.Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = ipv6SourceBits
	}
	source, _ := ip.Prefix(bits) // invalid for no address
	return source
}

// Read reads from the connection. If the first byte cannot begin a request, the peer speaks another
// protocol: Read replaces its bytes by a bad request, so that the HTTP server rejects it at once
// and does not wait for the end of a line.
func (c *limitedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.begun {
		c.begun = true
		if p[0] < ' ' && p[0] != '\r' && p[0] != '\n' {
			n = copy(p, "?\r\n\r\n")
		}
	}
	return n, err
}

// Close closes the connection and gives its place back.
func (c *limitedConn) Close() error {
	l := c.listener
	isThis := func(other *limitedConn) bool { return other == c }
	l.mu.Lock()
	l.places = slices.DeleteFunc(l.places, isThis)
	l.reserved = slices.DeleteFunc(l.reserved, isThis)
	l.mu.Unlock()
	return c.Conn.Close()
}

// connectionKey is the key in a request's context of its connection.
type connectionKey struct{}

// withConnection is the ConnContext of the HTTP server. It looks at the process when that connects:
// later, the number may be that of another one.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	c := limitedOf(conn)
	if c == nil {
		return context.WithValue(ctx, requesterKey{}, audit.Peer(conn))
	}
	ctx = context.WithValue(ctx, requesterKey{}, audit.Peer(c.Conn))
	return context.WithValue(ctx, connectionKey{}, c)
}

// connectionOf returns the connection of a request, nil if it is not known.
func connectionOf(r *http.Request) *limitedConn {
	c, _ := r.Context().Value(connectionKey{}).(*limitedConn)
	return c
}

// sourceOf returns what the limits per source count for a request.
func sourceOf(r *http.Request) netip.Prefix {
	if c := connectionOf(r); c != nil {
		return c.source
	}
	return netip.Prefix{}
}
