package iwarp_test

import (
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
)

// direction is which way bytes go through a proxy.
type direction int

const (
	toListener direction = iota
	toDialer
)

// proxy forwards one TCP connection. see gets every piece before it goes on;
// piece limits the next one's size.
type proxy struct {
	piece func() int
	see   func(direction, []byte)
}

// start returns where to connect to in place of target.
func (p proxy) start(t testing.TB, target netip.AddrPort) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		defer l.Close()
		near, err := l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", target.String())
		if err != nil {
			t.Error(err)
			_ = near.Close()
			return
		}
		running.Go(func() { p.forward(far, near, toListener) })
		running.Go(func() { p.forward(near, far, toDialer) })
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func (p proxy) forward(to, from net.Conn, d direction) {
	defer to.(*net.TCPConn).CloseWrite()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer[:min(p.piece(), len(buffer))])
		if n > 0 {
			p.see(d, buffer[:n])
			if _, err := to.Write(buffer[:n]); err != nil {
				_, _ = io.Copy(io.Discard, from)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// randomPieces are mostly small, now and then large.
func randomPieces() func() int {
	return func() int { return 1<<rand.IntN(17)>>rand.IntN(3) | 1 }
}

func ignore(direction, []byte) {}
