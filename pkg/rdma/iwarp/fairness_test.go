package iwarp

import (
	"io"
	"net"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// accept makes an established connection whose client is the test.
func (p *endpoint) accept(config rdma.ConnectionConfig) (*connection, *net.TCPConn) {
	p.Helper()
	client := p.dial()
	request := mpaFrame{revision: 2, enhanced: true, inboundReads: 2, outboundReads: 2}
	if _, err := client.Write(request.append(nil, mpaRequestKey)); err != nil {
		p.Fatal(err)
	}
	accepted, err := p.listener.Accept(contextFor(p.T))
	if err != nil {
		p.Fatal(err)
	}
	handle, err := accepted.Accept(contextFor(p.T), config)
	if err != nil {
		p.Fatal(err)
	}
	if _, err := io.ReadFull(client, make([]byte, mpaHeaderBytes+enhancedBytes)); err != nil {
		p.Fatal(err)
	}
	return handle.(*connection), client
}

// receiveFrame has the client send a frame, and the connection receive it.
func (p *endpoint) receiveFrame(c *connection, client io.Writer) {
	p.Helper()
	if _, err := client.Write(appendZeroWrite(nil, false)); err != nil {
		p.Fatal(err)
	}
	for c.queue.device.lastActive.Load() != c.domain {
		c.queue.Poll(nil)
	}
}

func TestTurnIsShorterUnderContention(t *testing.T) {
	const size = 1 << 20
	p := newEndpoint(t, Options{SendBufferBytes: 2 * size, ReceiveBufferBytes: 2 * size})
	c, client := p.accept(p.config)
	domain := p.config.Domain.(*protectionDomain)
	region, err := domain.Register(memory.Wrap(make([]byte, size)), 0)
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.device.NewProtectionDomain()
	if err != nil {
		t.Fatal(err)
	}
	config := p.config
	config.Domain = other
	neighbour, itsClient := p.accept(config)
	p.receiveFrame(c, client)
	go func() { _, _ = io.Copy(io.Discard, client) }()

	turn := func() uint32 {
		write := rdma.SendRequest{
			Opcode: rdma.OpWrite, Local: rdma.Segment{Key: region.LocalKey(), Address: region.Base(), Length: size},
		}
		if err := c.PostSend([]rdma.SendRequest{write}); err != nil {
			t.Fatal(err)
		}
		c.Flush()
		moved := size - c.transmitter.message.left
		for c.sends.sent != c.sends.tail {
			c.queue.Poll(nil)
		}
		c.queue.Poll(make([]rdma.Completion, 1))
		return moved
	}
	if n := turn(); n <= contendedTurnBytes+batchBytes {
		t.Errorf("without company a turn sends %d bytes", n)
	}
	p.receiveFrame(neighbour, itsClient)
	if n := turn(); n == 0 || n > contendedTurnBytes+batchBytes {
		t.Errorf("in company a turn sends %d bytes", n)
	}
	p.closeAll([]*connection{c, neighbour})
}

func TestQueueYieldsOnlyUnderContention(t *testing.T) {
	d := &device{}
	first, second := &completionQueue{device: d}, &completionQueue{device: d}
	c := &connection{queue: first, domain: &protectionDomain{}}
	neighbour := &connection{queue: second, domain: &protectionDomain{}}
	given := func(c *connection, rounds, bytes int) (count int) {
		for range rounds {
			c.countMoved(bytes)
			if c.queue.fairness.yieldDue() {
				count++
			}
		}
		return count
	}
	if n := given(c, 1000, yieldBytes); n != 0 {
		t.Errorf("a session alone gave its core away %d times", n)
	}
	given(neighbour, 1, 1)
	if n := given(c, 1000, yieldBytes); n != contendedYields {
		t.Errorf("the core was given away %d times after the last sign of company", n)
	}
	for range contendedYields {
		given(neighbour, 1, 1)
		if n := given(c, 40, yieldBytes/4); n != 10 {
			t.Fatalf("beside another session the core was given away %d times for %d bytes", n, 10*yieldBytes)
		}
	}
}
