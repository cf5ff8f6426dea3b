// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// A worker serves sockets only. For a connection with TLS two goroutines copy between the
// connection and one end of a socket pair, and the worker serves the other end.

// copyBuffer is the size in bytes of the buffer of each direction: several TLS records.
const copyBuffer = 64 << 10

// decrypt returns a socket that carries the plain text of a TLS connection. The connection ends
// when the client ends it, or when the socket is closed and the client has accepted what was sent.
// A deadline of the connection bounds the latter.
func (s *Server) decrypt(encrypted *tls.Conn) (socket, error) {
	near, far, err := socketPair()
	if err != nil {
		return -1, err
	}
	s.running.Go(func() {
		var input sync.WaitGroup
		input.Go(func() {
			// After a request to disconnect, requests in progress still get their replies.
			_, _ = io.CopyBuffer(onlyWriter{far}, onlyReader{encrypted}, make([]byte, copyBuffer))
			_ = far.(*net.UnixConn).CloseWrite()
		})
		_, err := io.CopyBuffer(onlyWriter{encrypted}, onlyReader{far}, make([]byte, copyBuffer))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// The client would not accept the end of TLS, either: do not wait for that.
			_ = encrypted.NetConn().Close()
		}
		// The worker has closed its end. Closing sends the client the end of TLS, and ends input.
		_ = encrypted.SetDeadline(time.Now().Add(s.closeTimeout))
		_ = encrypted.Close()
		_ = far.Close()
		input.Wait()
	})
	return near, nil
}

// onlyReader and onlyWriter hide what else a connection can do, so that io.CopyBuffer uses its
// buffer.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// connOf returns a connection that owns the descriptor of a socket.
func connOf(descriptor int) (net.Conn, error) {
	file := os.NewFile(uintptr(descriptor), "socket pair")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "use socket pair: %w", err)
	}
	return conn, nil
}
