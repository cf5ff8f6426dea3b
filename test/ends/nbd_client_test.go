// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// nbdClient is a client of a gateway that may have any number of requests in progress. Any
// goroutine may call its methods.
type nbdClient struct {
	conn    net.Conn
	sending sync.Mutex

	mu     sync.Mutex // guards the fields below
	cookie uint64     // of the last request
	calls  map[uint64]*nbdCall
	end    error
}

// nbdCall is a request in progress.
type nbdCall struct {
	data []byte // where a read puts it
	done chan error
}

// errRefused is why a client does not get the export (NBD_REP_ERR_POLICY).
var errRefused = errors.New("the gateway refuses the export")

// dialNBD connects to the default export of a gateway.
func dialNBD(socket string) (*nbdClient, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	c := &nbdClient{conn: conn, calls: make(map[uint64]*nbdCall)}
	if err := errors.Join(conn.SetDeadline(time.Now().Add(testkit.Patience)),
		c.negotiate()); err != nil {
		_ = conn.Close()
		return nil, err
	}
	go c.receive()
	return c, nil
}

func (c *nbdClient) negotiate() error {
	const (
		fixedNewstyle, noZeroes = 1 << 0, 1 << 1
		optionGo                = 7
		ack, info, policy       = 1, 3, 1<<31 + 2
	)
	hello := make([]byte, 18)
	if _, err := io.ReadFull(c.conn, hello); err != nil {
		return err
	}
	request := binary.BigEndian.AppendUint32(nil, fixedNewstyle|noZeroes)
	request = append(request, "IHAVEOPT"...)
	request = binary.BigEndian.AppendUint32(request, optionGo)
	request = binary.BigEndian.AppendUint32(request, 6)
	request = append(request, make([]byte, 6)...) // the empty name, and no requests for information
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	for {
		header := make([]byte, 20)
		if _, err := io.ReadFull(c.conn, header); err != nil {
			return err
		}
		text := make([]byte, binary.BigEndian.Uint32(header[16:]))
		if _, err := io.ReadFull(c.conn, text); err != nil {
			return err
		}
		switch kind := binary.BigEndian.Uint32(header[12:]); kind {
		case info:
		case ack:
			return nil
		case policy:
			return fmt.Errorf("%w: %s", errRefused, text)
		default:
			return fmt.Errorf("reply %#x to NBD_OPT_GO: %s", kind, text)
		}
	}
}

// start sends a request, and returns where its outcome will be. data is what a write sends, or
// where a read puts what it gets.
func (c *nbdClient) start(kind blockio.Command, flags blockio.CommandFlags, offset, length int,
	data []byte) <-chan error {
	call := &nbdCall{done: make(chan error, 1)}
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	if kind == blockio.Read {
		call.data = data
	}
	c.cookie++
	b := binary.BigEndian.AppendUint32(nil, 0x25609513)
	b = binary.BigEndian.AppendUint16(b, uint16(flags))
	b = binary.BigEndian.AppendUint16(b, uint16(kind))
	b = binary.BigEndian.AppendUint64(b, c.cookie)
	b = binary.BigEndian.AppendUint64(b, uint64(offset))
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	if c.end != nil {
		call.done <- c.end
	} else {
		c.calls[c.cookie] = call
	}
	c.mu.Unlock()
	if kind == blockio.Write {
		b = append(b, data...)
	}
	if _, err := c.conn.Write(b); err != nil {
		c.finish(err)
	}
	return call.done
}

// do sends a request, and waits for its outcome.
func (c *nbdClient) do(kind blockio.Command, flags blockio.CommandFlags, offset, length int,
	data []byte) error {
	return <-c.start(kind, flags, offset, length, data)
}

// receive receives replies until the connection ends.
func (c *nbdClient) receive() {
	for {
		b := make([]byte, 16)
		if _, err := io.ReadFull(c.conn, b); err != nil {
			c.finish(err)
			return
		}
		cookie := binary.BigEndian.Uint64(b[8:])
		c.mu.Lock()
		call := c.calls[cookie]
		delete(c.calls, cookie)
		c.mu.Unlock()
		if magic := binary.BigEndian.Uint32(b); magic != 0x67446698 || call == nil {
			c.finish(fmt.Errorf("reply %x to no request", b))
			return
		}
		if errno := binary.BigEndian.Uint32(b[4:]); errno != 0 {
			call.done <- fmt.Errorf("error %d", errno)
			continue
		}
		if _, err := io.ReadFull(c.conn, call.data); err != nil {
			call.done <- err
			c.finish(err)
			return
		}
		call.done <- nil
	}
}

// finish ends the connection, and fails the requests in progress.
func (c *nbdClient) finish(err error) {
	_ = c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return
	}
	c.end = fmt.Errorf("the connection has ended: %w", err)
	for _, call := range c.calls {
		call.done <- c.end
	}
	c.calls = nil
}

// ended returns why the connection has ended, nil if it has not.
func (c *nbdClient) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}
