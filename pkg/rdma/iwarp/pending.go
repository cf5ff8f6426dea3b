package iwarp

import (
	"net"
	"slices"
	"sync"
)

// pendingClients are accepted TCP connections that have not sent a complete
// request. Beyond the limit the oldest is cut off: an honest client sends at
// once, so it is the most likely stray, and strays cannot lock others out.
type pendingClients struct {
	limit int

	mu    sync.Mutex
	conns []*net.TCPConn
}

func (p *pendingClients) add(conn *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) == p.limit {
		_ = p.conns[0].Close() // ends the wait of its goroutine
		p.conns = slices.Delete(p.conns, 0, 1)
	}
	p.conns = append(p.conns, conn)
}

// remove reports whether the connection had not been cut off.
func (p *pendingClients) remove(conn *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.conns, conn)
	if i < 0 {
		return false
	}
	p.conns = slices.Delete(p.conns, i, i+1)
	return true
}
