package controlmsg

import "net"

// lastWordsConn is a TCP connection that reads on once after a reset: what the
// peer said before it closed may still be there, and tells why.
type lastWordsConn struct {
	*net.TCPConn
	reset bool // Read has seen the connection reset
}

func (c *lastWordsConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if n > 0 || c.reset || !isReset(err) {
		return n, err
	}
	c.reset = true
	if n, readOnErr := c.TCPConn.Read(b); n > 0 {
		return n, readOnErr
	}
	return 0, err
}
