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

// exchange makes both sides send, write, and read at once, while random pieces of what is in flight
// are delivered.
func (s *simulation) exchange(t *testing.T, random *rand.Rand) {
	const size = 100_000
	sides := []*side{s.x, s.y}
	for i, side := range sides {
		for at := range 4 * size {
			side.bytes[at] = byte(at * (i + 3) >> 7)
		}
	}
	for i, side := range sides {
		peer := sides[1-i]
		side.receive(t, 1, 64)
		post := []rdma.SendRequest{
			{Opcode: rdma.OpWrite, Local: side.segment(size, size)},
			{Opcode: rdma.OpSend, Local: side.segment(size, 64)},
			{Opcode: rdma.OpRead, Local: side.segment(3*size, size)},
		}
		for k := range post {
			post[k].RemoteKey = peer.memory.RemoteKey()
			post[k].RemoteAddress = peer.memory.Base() + 2*size
		}
		if err := side.conn.PostSend(post); err != nil {
			t.Fatal(err)
		}
	}
	for step := 0; s.x.arrived < 4 || s.y.arrived < 4; step++ {
		s.poll(step)
		f := s.network.Flows()[random.IntN(2)]
		f.Deliver(random.IntN(20_000))
		if step > 10_000 || s.x.disconnected || s.y.disconnected {
			t.Fatalf("step %d: %v, %v", step, s.x.conn.Err(), s.y.conn.Err())
		}
	}
	for i, side := range sides {
		peer := sides[1-i]
		if !bytes.Equal(side.bytes[size:2*size], peer.bytes[2*size:3*size]) {
			t.Error("the written data differs")
		}
		if !bytes.Equal(side.bytes[3*size:4*size], side.bytes[size:2*size]) {
			t.Error("a Read did not return what the Write before it had written")
		}
	}
}

func TestASimulationControlsEveryByte(t *testing.T) {
	for name, crc := range map[string]bool{"plain": false, "CRC": true} {
		for seed := range uint64(3) {
			var traces [2][]string
			for run := range traces {
				synctest.Test(t, func(t *testing.T) {
					start := time.Now()
					s := simulate(t, iwarp.Options{CRC: crc})
					s.exchange(t, rand.New(rand.NewPCG(seed, seed)))
					if elapsed := time.Since(start); elapsed != 0 {
						t.Errorf("%s: the simulation waited for %v", name, elapsed)
					}
					traces[run] = s.trace
				})
			}
			if !slices.Equal(traces[0], traces[1]) {
				t.Errorf("%s: two runs differ:\n%v\n%v", name, traces[0], traces[1])
			}
		}
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
