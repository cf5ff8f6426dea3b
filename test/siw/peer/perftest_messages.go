package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// The sizes of control messages, as perftest 6.06 sends them.
const (
	versionBytes = 16 // text
	keysBytes    = 56 // numbers in network byte order at their places in a C structure
)

// The places of what matters to iWARP in a side's keys; the rest addresses
// InfiniBand queue pairs.
const (
	readDepthOffset = 4
	keyOffset       = 16
	addressOffset   = 24
)

// readDepth is how many Reads are outstanding, and cycleBytes what perftest
// rounds its buffers up to.
const (
	readDepth  = 4
	cycleBytes = 4096
)

// remoteKeys is the memory that the other side offers.
type remoteKeys struct {
	key     uint32
	address uint64
}

// open makes both connections, with what the sides tell each other before.
func (p *perftest) open(ctx context.Context) error {
	var err error
	if p.accepts {
		if p.listener, err = p.device.Listen(ctx, p.address); err != nil {
			return err
		}
	}
	if p.control.Connection, err = p.connection(ctx, rdma.ConnectionConfig{
		Context: controlContext, Receives: []rdma.ReceiveRequest{p.controlReceive()},
	}); err != nil {
		return err
	}
	for _, message := range []struct {
		what  string
		bytes []byte
	}{
		{"version", append([]byte("6.06"), make([]byte, versionBytes-4)...)},
		{"size of the cyclic buffer", binary.BigEndian.AppendUint32(nil, cycleBytes)},
		{"size of a cache line", binary.BigEndian.AppendUint32(nil, 64)},
		{"MTU", []byte("3\x00")}, // IBV_MTU_1024
	} {
		if _, err := p.swap(ctx, message.what, message.bytes); err != nil {
			return err
		}
	}
	if _, err := p.swapKeys(ctx, "turn to connect"); err != nil {
		return err
	}
	if p.data.Connection, err = p.connection(ctx, rdma.ConnectionConfig{Context: dataContext}); err != nil {
		return err
	}
	_, err = p.swapKeys(ctx, "second connection")
	return err
}

// swap sends a control message and returns the other side's, of the same
// length. The client sends first.
func (p *perftest) swap(ctx context.Context, what string, mine []byte) ([]byte, error) {
	if !p.accepts {
		if err := p.tell(ctx, mine); err != nil {
			return nil, err
		}
	}
	if err := p.until(ctx, what, func() bool { return len(p.inbox) > 0 }); err != nil {
		return nil, err
	}
	theirs := p.inbox[0]
	p.inbox = p.inbox[1:]
	if len(theirs) != len(mine) {
		return nil, fmt.Errorf("%s: perftest sent %d bytes, not %d: %x", what, len(theirs), len(mine), theirs)
	}
	if p.accepts {
		return theirs, p.tell(ctx, mine)
	}
	return theirs, nil
}

func (p *perftest) tell(ctx context.Context, message []byte) error {
	copy(p.messages.bytes, message)
	return p.do(ctx, &p.control, rdma.SendRequest{Opcode: rdma.OpSend, Local: p.messages.segment(0, len(message))})
}

// swapKeys tells the other side what is offered. It also serves to wait for
// the other side.
func (p *perftest) swapKeys(ctx context.Context, what string) (remoteKeys, error) {
	var mine [keysBytes]byte
	binary.BigEndian.PutUint32(mine[readDepthOffset:], readDepth)
	binary.BigEndian.PutUint32(mine[keyOffset:], p.offered.RemoteKey())
	binary.BigEndian.PutUint64(mine[addressOffset:], p.offered.Base())
	theirs, err := p.swap(ctx, what, mine[:])
	if err != nil {
		return remoteKeys{}, err
	}
	return remoteKeys{
		key: binary.BigEndian.Uint32(theirs[keyOffset:]), address: binary.BigEndian.Uint64(theirs[addressOffset:]),
	}, nil
}

// prepare swaps the keys as often as perftest does before a run.
func (p *perftest) prepare(ctx context.Context) (keys remoteKeys, err error) {
	for _, what := range []string{"keys", "keys, again", "queue pairs ready"} {
		if keys, err = p.swapKeys(ctx, what); err != nil {
			return keys, err
		}
	}
	return keys, nil
}

// report swaps the outcome of a bandwidth test, field by field. Only the
// client's has a meaning: the server prints it.
func (p *perftest) report(ctx context.Context) error {
	if _, err := p.swapKeys(ctx, "end of the run"); err != nil {
		return err
	}
	for _, field := range []struct {
		what    string
		value   uint64
		counted bool
	}{
		{"size", uint64(p.size), true},
		{"iterations", uint64(p.rounds), true},
		{"peak bandwidth", math.Float64bits(1), false},
		{"average bandwidth", math.Float64bits(1), false},
		{"message rate", math.Float64bits(1), false},
	} {
		mine := binary.BigEndian.AppendUint64(nil, field.value)
		theirs, err := p.swap(ctx, field.what, mine)
		if err != nil {
			return err
		}
		if p.accepts && field.counted && !bytes.Equal(theirs, mine) {
			return fmt.Errorf("perftest reports %s %x, not %x", field.what, theirs, mine)
		}
	}
	return nil
}
