// Command peer is the other side of rping: it speaks rping's protocol with
// the embedded iWARP endpoint, to be run against an rping on Linux siw.
//
//	peer connect ADDRESS:PORT SIZE ROUNDS CRC    against rping -s
//	peer accept  ADDRESS:PORT SIZE ROUNDS CRC    against rping -c
//
// In each round the rping client announces a buffer of SIZE bytes, the server
// Reads it and answers; the client announces a second buffer, the server
// Writes what it has read there and answers. CRC is true or false.
package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
)

// timeout bounds the whole run, in an emulated machine.
const timeout = 60 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("usage: peer connect|accept ADDRESS:PORT SIZE ROUNDS CRC")
	}
	address, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return fmt.Errorf("address: %w", err)
	}
	size, err := strconv.Atoi(args[2])
	if err != nil || size < 64 {
		return fmt.Errorf("size %q is no number from 64 on", args[2])
	}
	rounds, err := strconv.Atoi(args[3])
	if err != nil {
		return fmt.Errorf("rounds: %w", err)
	}
	crc, err := strconv.ParseBool(args[4])
	if err != nil {
		return fmt.Errorf("crc: %w", err)
	}
	// The thread that polls a completion queue owns its connections.
	runtime.LockOSThread()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	p, err := newPeer(address.Addr(), size, crc)
	if err != nil {
		return err
	}
	if args[0] == "accept" {
		return p.serve(ctx, address, rounds)
	}
	return p.ping(ctx, address, rounds)
}

// peer is a device with the buffers of one rping process.
type peer struct {
	device   rdma.Device
	queue    rdma.CompletionQueue
	domain   rdma.ProtectionDomain
	conn     rdma.Connection
	size     int
	messages buffer // one to send, one to receive
	start    buffer
	sink     buffer
}

// buffer is registered memory.
type buffer struct {
	rdma.MemoryRegion
	bytes []byte
}

func newPeer(address netip.Addr, size int, crc bool) (*peer, error) {
	device, err := iwarp.New(iwarp.Options{CRC: crc}).Open(address)
	if err != nil {
		return nil, err
	}
	p := &peer{device: device, size: size}
	if p.queue, err = device.NewCompletionQueue(16); err != nil {
		return nil, err
	}
	if p.domain, err = device.NewProtectionDomain(); err != nil {
		return nil, err
	}
	if p.messages, err = p.register(2*infoBytes, memory.LocalWrite); err != nil {
		return nil, err
	}
	if p.start, err = p.register(size, memory.LocalWrite|memory.RemoteRead); err != nil {
		return nil, err
	}
	p.sink, err = p.register(size, memory.LocalWrite|memory.RemoteWrite)
	return p, err
}

func (p *peer) register(size int, access memory.Access) (buffer, error) {
	b := make([]byte, size)
	m, err := p.domain.Register(memory.Wrap(b), access)
	return buffer{m, b}, err
}

func (p *peer) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{
		Domain: p.domain, Queue: p.queue, SendRequests: 8, ReceiveRequests: 8, InboundReads: 4, OutboundReads: 4,
		Receives: []rdma.ReceiveRequest{p.receive()},
	}
}
