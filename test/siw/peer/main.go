// SPDX-License-Identifier: Apache-2.0

// Command peer plays the other side of rping and perftest: it speaks their protocols over the
// provider iwarp, against the original programs on Linux siw.
//
//	peer PROGRAM connect ADDRESS:PORT SIZE ROUNDS CRC    connect to a server
//	peer PROGRAM accept  ADDRESS:PORT SIZE ROUNDS CRC    accept a client
//
// PROGRAM is rping, ib_send_lat, ib_write_bw, or ib_read_bw. SIZE is the size of a message or
// transfer in bytes. CRC is true or false.
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

// timeout bounds the whole run, which may be on an emulated machine.
const timeout = 60 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

// settings holds the arguments of a run.
type settings struct {
	program string
	accepts bool // plays the server
	address netip.AddrPort
	size    int
	rounds  int
	crc     bool
}

func run(args []string) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	// The thread that polls a completion queue owns its connections.
	runtime.LockOSThread()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	e, err := newEndpoint(s.address.Addr(), s.crc)
	if err != nil {
		return err
	}
	if s.program != "rping" {
		return runPerftest(ctx, e, s)
	}
	p, err := newRping(e, s.size)
	if err != nil {
		return err
	}
	if s.accepts {
		return p.serve(ctx, s.address, s.rounds)
	}
	return p.ping(ctx, s.address, s.rounds)
}

// parse parses the arguments of the command line.
func parse(args []string) (settings, error) {
	if len(args) != 6 {
		return settings{}, fmt.Errorf(
			"usage: peer PROGRAM connect|accept ADDRESS:PORT SIZE ROUNDS CRC")
	}
	s := settings{program: args[0], accepts: args[1] == "accept"}
	var err error
	if s.address, err = netip.ParseAddrPort(args[2]); err != nil {
		return s, fmt.Errorf("invalid ADDRESS:PORT: %w", err)
	}
	if s.size, err = strconv.Atoi(args[3]); err != nil || s.size < 64 {
		return s, fmt.Errorf("invalid SIZE %q: must be a number, at least 64", args[3])
	}
	if s.rounds, err = strconv.Atoi(args[4]); err != nil || s.rounds < 1 {
		return s, fmt.Errorf("invalid ROUNDS %q: must be a number, at least 1", args[4])
	}
	if s.crc, err = strconv.ParseBool(args[5]); err != nil {
		return s, fmt.Errorf("invalid CRC: %w", err)
	}
	return s, nil
}

// endpoint is an open device of the provider iwarp, with a completion queue and a protection
// domain.
type endpoint struct {
	device rdma.Device
	queue  rdma.CompletionQueue
	domain rdma.ProtectionDomain
}

// buffer is registered memory.
type buffer struct {
	rdma.MemoryRegion
	bytes []byte
}

func newEndpoint(address netip.Addr, crc bool) (*endpoint, error) {
	device, err := iwarp.New(iwarp.Options{CRC: crc}).Open(address)
	if err != nil {
		return nil, err
	}
	e := &endpoint{device: device}
	if e.queue, err = device.NewCompletionQueue(64); err != nil {
		return nil, err
	}
	e.domain, err = device.NewProtectionDomain()
	return e, err
}

func (e *endpoint) register(size int, access memory.Access) (buffer, error) {
	b := make([]byte, size)
	m, err := e.domain.Register(memory.Wrap(b), access)
	return buffer{m, b}, err
}

// segment returns a range of the buffer.
func (b buffer) segment(offset, length int) rdma.Segment {
	return rdma.Segment{
		Key: b.LocalKey(), Address: b.Base() + uint64(offset), Length: uint32(length),
	}
}
