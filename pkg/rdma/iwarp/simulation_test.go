// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/network/networktest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var (
	clientAddress = netip.MustParseAddr("10.0.0.1")
	serverAddress = netip.MustParseAddr("10.0.0.2")
)

// simulation is a link between two hosts of a network in memory. Once it is connected, the test
// delivers what the sides send.
type simulation struct {
	*link
	network *networktest.Network
	held    bool
	trace   []string // of all completions
}

func simulate(t *testing.T, options iwarp.Options) *simulation {
	t.Helper()
	s := &simulation{}
	s.network = networktest.New(networktest.Config{Transmit: func(f *networktest.Flow) {
		if !s.held {
			f.Deliver(f.InFlight())
		}
	}})
	client, server := options, options
	client.Network, server.Network = s.network.Host(clientAddress), s.network.Host(serverAddress)
	s.link = &link{
		x: openSide(t, client, clientAddress), y: openSide(t, server, serverAddress),
	}
	s.connect(t, directly)
	t.Cleanup(func() { // before the link's teardown
		s.held = false
		for _, f := range s.network.Flows() {
			f.Deliver(f.InFlight())
		}
	})
	s.held = true
	return s
}

// poll polls both sides once.
func (s *simulation) poll(step int) {
	for i, side := range []*side{s.x, s.y} {
		n := side.queue.Poll(side.poll[:])
		for _, c := range side.poll[:n] {
			s.trace = append(s.trace, fmt.Sprint(step, i, c.Opcode, c.Status, c.Length))
			if c.Opcode == rdma.OpDisconnected {
				side.disconnected = true
			} else {
				side.arrived++
			}
		}
	}
}

// The parts of each side's memory during an exchange. Messages arrive at the start.
const (
	exchangeBytes  = 100_000
	exchangeSource = 1 * exchangeBytes // of the Send and the Write
	exchangeTarget = 2 * exchangeBytes // of the peer's Write
	exchangeSink   = 3 * exchangeBytes // of the Read, which reads what the Write has written
	exchangeEnd    = 4 * exchangeBytes
)

// startExchange fills the memory and makes both sides write, send, and read at once.
func (s *simulation) startExchange(t *testing.T, seed byte) {
	sides := []*side{s.x, s.y}
	for i, side := range sides {
		_, _ = rand.NewChaCha8([32]byte{seed, byte(i)}).Read(side.bytes[:exchangeEnd])
	}
	for i, side := range sides {
		peer := sides[1-i]
		side.receive(t, 1, 64)
		post := []rdma.SendRequest{
			{Opcode: rdma.OpWrite, Local: side.segment(exchangeSource, exchangeBytes)},
			{Opcode: rdma.OpSend, Local: side.segment(exchangeSource, 64)},
			{Opcode: rdma.OpRead, Local: side.segment(exchangeSink, exchangeBytes)},
		}
		for k := range post {
			post[k].RemoteKey = peer.memory.RemoteKey()
			post[k].RemoteAddress = peer.memory.Base() + exchangeTarget
		}
		if err := side.conn.PostSend(post); err != nil {
			t.Fatal(err)
		}
	}
}

// afterExchange returns the memory of side after an exchange with peer, computed from both
// memories before.
func afterExchange(side, peer []byte) []byte {
	after := bytes.Clone(side)
	copy(after[:64], peer[exchangeSource:])
	copy(after[exchangeTarget:exchangeSink], peer[exchangeSource:])
	copy(after[exchangeSink:exchangeEnd], side[exchangeSource:])
	return after
}

func TestASimulationControlsEveryByte(t *testing.T) {
	for name, crc := range map[string]bool{"plain": false, "CRC": true} {
		for seed := range uint64(3) {
			var traces [2][]string
			for run := range traces {
				synctest.Test(t, func(t *testing.T) {
					traces[run] = runExchange(t, crc, seed)
				})
			}
			if !slices.Equal(traces[0], traces[1]) {
				t.Errorf("%s: two runs differ:\n%v\n%v", name, traces[0], traces[1])
			}
		}
	}
}

// runExchange delivers random pieces of what is in flight until everything has arrived.
func runExchange(t *testing.T, crc bool, seed uint64) []string {
	start := time.Now()
	random := rand.New(rand.NewPCG(seed, seed))
	s := simulate(t, iwarp.Options{CRC: crc})
	s.startExchange(t, byte(seed))
	wantX := afterExchange(s.x.bytes, s.y.bytes)
	wantY := afterExchange(s.y.bytes, s.x.bytes)
	for step := 0; s.x.arrived < 4 || s.y.arrived < 4; step++ {
		s.poll(step)
		s.network.Flows()[random.IntN(2)].Deliver(random.IntN(20_000))
		if step > 10_000 || s.x.disconnected || s.y.disconnected {
			t.Fatalf("step %d: %v, %v", step, s.x.conn.Err(), s.y.conn.Err())
		}
	}
	if !bytes.Equal(s.x.bytes, wantX) || !bytes.Equal(s.y.bytes, wantY) {
		t.Error("the memory differs from the model")
	}
	if elapsed := time.Since(start); elapsed != 0 {
		t.Errorf("the simulation waited for %v", elapsed)
	}
	return s.trace
}

// TestAFlippedBitChangesNoOtherMemory flips one random bit in transit. After that, every byte of
// both memories has either its value from before or the value that was sent to it.
func TestAFlippedBitChangesNoOtherMemory(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, seed))
			s := simulate(t, iwarp.Options{CRC: true})
			s.startExchange(t, byte(seed))
			before := [2][]byte{bytes.Clone(s.x.bytes), bytes.Clone(s.y.bytes)}
			flipped, earliest := false, random.IntN(20)
			for step := 0; !s.x.disconnected || !s.y.disconnected; step++ {
				s.poll(step)
				flows := s.network.Flows()
				if len(flows) == 0 {
					continue
				}
				f := flows[random.IntN(2)]
				f.Edit(func(b []byte) {
					if flipped || step < earliest || len(b) == 0 {
						return
					}
					// Half of the bits are in or near a header, which decides where data goes.
					near := []int{16, exchangeBytes}[random.IntN(2)]
					b[random.IntN(min(len(b), near))] ^= 1 << random.IntN(8)
					flipped = true
				})
				f.Deliver(random.IntN(30_000))
				if step == 5000 { // a damaged length may announce bytes that nobody sends
					s.x.conn.Close()
				}
			}
			for i, side := range []*side{s.x, s.y} {
				after := afterExchange(before[i], before[1-i])
				for at, b := range side.bytes[:exchangeEnd] {
					if b != before[i][at] && b != after[at] {
						t.Fatalf("seed %d: side %d: byte %d was changed", seed, i, at)
					}
				}
				if !bytes.Equal(side.bytes[exchangeEnd:], before[i][exchangeEnd:]) {
					t.Errorf("seed %d: side %d: memory that nobody sent to was changed", seed, i)
				}
			}
		})
	}
}

func TestASimulatedThreadSleepsOnlyWithoutWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, iwarp.Options{})
		s.poll(0)
		if !s.y.queue.Arm() {
			t.Error("an idle queue has work")
		}
		s.y.receive(t, 1, 64)
		s.x.chain(t, s.y, 4096)
		if !s.y.queue.Arm() {
			t.Error("the queue has work before anything has arrived")
		}
		flow := s.network.Flows()[0]
		flow.Deliver(flow.InFlight())
		if s.y.queue.Arm() {
			t.Error("the queue has no work although a message has arrived")
		}
		s.poll(1)
		if s.y.arrived != 1 || !s.y.queue.Arm() {
			t.Errorf("%d completions", s.y.arrived)
		}
	})
}

func TestASimulatedNetworkFails(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(t *testing.T, s *simulation)
		x, y error // of the connections
	}{
		"the network is lost": {func(_ *testing.T, s *simulation) {
			s.network.Flows()[0].Fail(syscall.ETIMEDOUT)
		}, status.TimeOut, status.TimeOut},
		"the connection is reset": {func(_ *testing.T, s *simulation) {
			s.network.Flows()[0].Fail(syscall.ECONNRESET)
		}, status.ConnectionReset, status.ConnectionReset},
		"one side aborts": {func(_ *testing.T, s *simulation) {
			s.x.conn.Abort()
		}, status.ConnectionAborted, status.ConnectionReset},
		"a byte is damaged": {func(t *testing.T, s *simulation) {
			s.x.chain(t, s.y, 4096)
			s.network.Flows()[0].Edit(func(b []byte) { b[8] ^= 4 })
		}, status.ConnectionReset, status.ConnectionReset},
		"one side closes": {func(_ *testing.T, s *simulation) { s.x.conn.Close() }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(t, iwarp.Options{CRC: true})
				want := bytes.Clone(s.y.bytes)
				s.poll(0)
				c.fail(t, s)
				for step := 1; !s.x.disconnected || !s.y.disconnected; step++ {
					if step > 100 {
						t.Fatal("the connection does not end")
					}
					s.poll(step)
					for _, f := range s.network.Flows() {
						f.Deliver(f.InFlight())
					}
				}
				for _, end := range []struct{ got, want error }{
					{s.x.conn.Err(), c.x}, {s.y.conn.Err(), c.y},
				} {
					if !errors.Is(end.got, end.want) {
						t.Errorf("a connection ended with %v, want %v", end.got, end.want)
					}
				}
				if !bytes.Equal(s.y.bytes, want) {
					t.Error("memory was changed")
				}
				if flows := s.network.Flows(); len(flows) != 0 {
					t.Errorf("%d flows are left", len(flows))
				}
			})
		})
	}
}

// opaqueNetwork makes streams that can only be used by blocking calls.
type opaqueNetwork struct{ network.Network }

func (n opaqueNetwork) Dial(
	ctx context.Context, local netip.Addr, remote netip.AddrPort,
) (network.Stream, error) {
	s, err := n.Network.Dial(ctx, local, remote)
	return struct{ network.Stream }{s}, err
}

func TestAStreamThatCannotBePolledIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := networktest.New(networktest.Config{})
		options := iwarp.Options{Network: opaqueNetwork{n.Host(clientAddress)}}
		x := openSide(t, options, clientAddress)
		y := openSide(t, iwarp.Options{Network: n.Host(serverAddress)}, serverAddress)
		listener, err := y.device.Listen(t.Context(), netip.AddrPortFrom(serverAddress, 0))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		failed := make(chan error)
		go func() {
			_, err := x.device.Connect(t.Context(), listener.Address(), x.config())
			failed <- err
		}()
		request, err := listener.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := request.Accept(t.Context(), y.config()); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, status.NotSupported) {
			t.Errorf("Connect returns %v", err)
		}
		y.awaitDisconnected(t)
		_, _ = x.queue.Close(), y.queue.Close()
	})
}

// TestASimulatedHandshakeTimesOut connects to a listener that never responds.
func TestASimulatedHandshakeTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := networktest.New(networktest.Config{})
		remote := netip.AddrPortFrom(serverAddress, 7471)
		listener, err := n.Host(serverAddress).Listen(t.Context(), remote)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		x := openSide(t, iwarp.Options{Network: n.Host(clientAddress)}, clientAddress)
		start := time.Now()
		_, err = x.device.Connect(context.Background(), remote, x.config())
		if elapsed := time.Since(start); elapsed != rdma.DefaultConnectTimeout ||
			!errors.Is(err, status.TimeOut) {
			t.Errorf("after %v: %v", elapsed, err)
		}
		if err := x.queue.Close(); err != nil {
			t.Error(err)
		}
	})
}
