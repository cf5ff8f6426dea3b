package iwarp

import (
	"fmt"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// stagingBytes is what one system call reads of a stream of small FPDUs.
	stagingBytes = 64 << 10
	// directBytes is from where on the rest of a payload is read straight
	// into its memory: a system call costs more than copying less.
	directBytes = 8 << 10
	// aheadBytes is read into staging among large FPDUs: room for trailers,
	// headers and the small messages between them, while little of the next
	// large payload is dragged along and has to be copied.
	aheadBytes = 512
	// largeMemory is after how many small FPDUs in a row a stream no longer
	// counts as one of large FPDUs.
	largeMemory = 8
	// receiveBudget is how many bytes one turn of a connection reads before
	// others get theirs.
	receiveBudget = 256 << 10
	// lastWordsReads bounds the reading of what came before a reset.
	lastWordsReads = 64
)

// receive reads and processes what has arrived, until there is no more or the
// turn is over. What is left keeps the socket readable.
func (c *connection) receive() {
	for done := 0; done < c.queue.turnBytes(receiveBudget); {
		n, wanted, err := c.receiveOnce()
		if c.phase != phaseOpen {
			return
		}
		if err != 0 {
			c.receiveFailed(err)
			return
		}
		if n == 0 {
			c.endOfStream()
			return
		}
		if n < wanted {
			return
		}
		done += n
	}
}

// receiveOnce makes one system call and processes what it brings.
func (c *connection) receiveOnce() (n, wanted int, err errno) {
	r := &c.receiver
	staging := c.queue.staging[:r.ahead()]
	// With CRCs everything is staged: what is summed must be out of the reach
	// of whoever else can write to the memory.
	if !c.useCRC && r.stage == stagePayload && r.left >= directBytes && r.region != nil {
		return c.receiveDirect(staging)
	}
	if n, err = c.socket.receive(staging); n > 0 {
		c.moved(n)
		c.process(staging[:n])
	}
	return n, len(staging), err
}

// receiveDirect has the kernel put the rest of the payload where it belongs,
// and what follows into staging.
func (c *connection) receiveDirect(staging []byte) (n, wanted int, err errno) {
	r := &c.receiver
	region := r.region
	if !region.uses.acquire() {
		c.fail(r.revokedViolation())
		return 0, 0, 0
	}
	target := region.bytes[r.offset : r.offset+uint64(r.left)]
	n, err = c.socket.receiveInto(target, staging)
	region.uses.release()
	if n == 0 {
		return 0, 1, err
	}
	c.moved(n)
	placed := min(n, len(target))
	r.placed(placed)
	c.process(staging[:n-placed])
	return n, len(target) + len(staging), 0
}

// process consumes what was received, and ends the connection if it is wrong.
func (c *connection) process(input []byte) {
	v := c.consume(input)
	c.queue.holds.release()
	if v != nil {
		c.fail(v)
	}
}

func (c *connection) receiveFailed(err errno) {
	switch err {
	case syscall.EAGAIN, syscall.EINTR:
	case syscall.EFAULT:
		c.fail(violationFault)
	default:
		c.lose(err)
	}
}

// endOfStream handles the peer's FIN, which is in order between messages.
func (c *connection) endOfStream() {
	if c.receiver.atBoundary() {
		c.end(nil, rdma.StatusFlushed)
		return
	}
	c.end(status.Errorf(status.ConnectionReset, "connection to %v: stream ended inside a message", c.parameters.Remote), rdma.StatusFlushed)
}

// lose ends a connection that TCP has given up. What arrived before, maybe a
// Terminate that says why, is still processed.
func (c *connection) lose(cause errno) {
	for range lastWordsReads {
		n, _, err := c.receiveOnce()
		if c.phase != phaseOpen {
			return
		}
		if n == 0 && err == 0 && cause == syscall.EPIPE {
			// Linux reports a reset as EPIPE if the peer's FIN came before
			// it: the peer has closed in order while this side was sending.
			c.endOfStream()
			return
		}
		if n == 0 && err != syscall.ECONNRESET {
			break
		}
	}
	code, outcome := status.ConnectionReset, rdma.StatusFlushed
	if cause == syscall.ETIMEDOUT || cause == syscall.EHOSTUNREACH || cause == syscall.ENETUNREACH {
		code, outcome = status.TimeOut, rdma.StatusRetryExceeded
	}
	c.end(status.Errorf(code, "connection to %v was lost: %w", c.parameters.Remote, fmt.Errorf("tcp: %w", cause)), outcome)
}
