// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// fakeTarget is the target of the relay's channel "fake". During a burst it does random things to
// the relay; otherwise it only answers the channel's standing connection.
type fakeTarget struct {
	chain    *chain
	listener network.Listener
	device   rdma.Device
	rdma     rdma.Listener
	running  sync.WaitGroup
	leaves   atomic.Bool // resets each connection behind open_volume_reply

	mu       sync.Mutex
	seed     uint64 // of the burst, 0 while it behaves
	served   uint64 // connections of this burst
	accepted uint64 // connections ever
	sessions map[*fakeSession]struct{}
	tokens   map[[16]byte]*fakeSession
}

// fakeSession is a control connection of the relay and its RDMA connections.
type fakeSession struct {
	target *fakeTarget
	stream network.Stream
	relay  *controlmsg.Responder
	ctx    context.Context
	cancel context.CancelFunc

	random  *rand.Rand // nil if the target behaves; of the control conversation
	config  controlmsg.ConfigureDataPath
	rdma    *endpoint
	pending chan rdma.Request
	polled  sync.WaitGroup
}

func startFakeTarget(c *chain) *fakeTarget {
	c.t.Helper()
	f := &fakeTarget{chain: c, sessions: make(map[*fakeSession]struct{}),
		tokens: make(map[[16]byte]*fakeSession)}
	address := netip.AddrPortFrom(c.loopback, 0)
	var err error
	if f.listener, err = (network.Kernel{}).Listen(context.Background(), address); err != nil {
		c.t.Fatal(err)
	}
	if f.device, err = iwarp.New(iwarp.Options{}).Open(address.Addr()); err != nil {
		c.t.Fatal(err)
	}
	if f.rdma, err = f.device.Listen(context.Background(), address); err != nil {
		c.t.Fatal(err)
	}
	f.running.Go(f.accept)
	f.running.Go(f.acceptRDMA)
	c.t.Cleanup(f.close)
	return f
}

func (f *fakeTarget) close() {
	err := errors.Join(f.listener.Close(), f.rdma.Close())
	f.endSessions()
	f.running.Wait()
	if err := errors.Join(err, f.device.Close()); err != nil {
		f.chain.t.Errorf("close the fake target: %v", err)
	}
}

// misbehave begins a burst, and cuts the connections that exist, or leaves them.
func (f *fakeTarget) misbehave(seed uint64) {
	f.mu.Lock()
	f.seed, f.served = seed, 0
	f.mu.Unlock()
	if seed%2 == 0 {
		f.endSessions()
	}
}

// behave ends a burst and everything that belongs to it.
func (f *fakeTarget) behave() {
	f.mu.Lock()
	f.seed = 0
	f.mu.Unlock()
	f.endSessions()
}

// connections returns how many connections the relay has ever made.
func (f *fakeTarget) connections() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.accepted
}

func (f *fakeTarget) endSessions() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.sessions {
		s.cancel()
	}
}

func (f *fakeTarget) accept() {
	for {
		stream, err := f.listener.Accept()
		if err != nil {
			return
		}
		s := &fakeSession{target: f, stream: stream, pending: make(chan rdma.Request)}
		s.ctx, s.cancel = context.WithCancel(context.Background())
		f.mu.Lock()
		f.served++
		f.accepted++
		if f.seed != 0 {
			s.random = rand.New(rand.NewPCG(f.seed, 1<<63|f.served))
		}
		f.sessions[s] = struct{}{}
		f.mu.Unlock()
		f.running.Go(s.run)
	}
}

// acceptRDMA passes each request to the session with its token.
func (f *fakeTarget) acceptRDMA() {
	for {
		request, err := f.rdma.Accept(context.Background())
		if err != nil {
			return
		}
		data, _ := controlmsg.DecodeRDMAPrivateData(request.PrivateData())
		f.mu.Lock()
		s := f.tokens[data.Token]
		delete(f.tokens, data.Token)
		f.mu.Unlock()
		if s == nil {
			_ = request.Reject([]byte("unknown token"))
			continue
		}
		select {
		case s.pending <- request:
		case <-s.ctx.Done():
			_ = request.Reject(nil)
		}
	}
}

func (s *fakeSession) chance(percent int) bool {
	return s.random != nil && s.random.IntN(100) < percent
}

func (s *fakeSession) run() {
	f := s.target
	defer func() {
		s.cancel()
		s.polled.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.sessions, s)
		for token, owner := range f.tokens {
			if owner == s {
				delete(f.tokens, token)
			}
		}
	}()
	switch {
	case s.chance(10): // the connection stays silent
		<-s.ctx.Done()
		_ = s.stream.Close()
		return
	case s.chance(5):
		_, _ = s.stream.Write([]byte{0, 0, 0, byte(s.random.IntN(60)), 1, 2, 3, 4})
		<-s.ctx.Done()
		_ = s.stream.Close()
		return
	case s.chance(10):
		_ = s.stream.SetLinger(0)
		_ = s.stream.Close()
		return
	}
	s.relay = controlmsg.NewResponder(
		controlmsg.NewTCPTransport(s.stream, controlmsg.TCPConfig{}),
		controlmsg.EndpointConfig{Role: controlmsg.RoleTarget,
			KeepAlive: controlmsg.DefaultKeepAlive()})
	s.serve()
	if s.chance(30) {
		_ = s.stream.SetLinger(0)
		_ = s.stream.Close()
	}
	s.relay.Close(nil)
}

// serve answers requests until the session ends.
func (s *fakeSession) serve() {
	for {
		request, err := s.relay.Next(s.ctx)
		if err != nil {
			return
		}
		if s.chance(8) {
			select {
			case <-s.ctx.Done():
			case <-time.After(pick(s.random, time.Millisecond, 50*time.Millisecond,
				controlTimeout/2, 2*controlTimeout)):
			}
		}
		if s.chance(4) {
			return
		}
		reply := s.reply(request.Message)
		if reply == nil || s.chance(8) {
			code := status.Code(1 + s.random.Uint32N(40))
			err = s.relay.Fail(s.ctx, request.Correlation,
				status.Errorf(code, "a random failure"))
		} else {
			err = s.relay.Reply(s.ctx, request.Correlation, reply)
		}
		if err != nil {
			return
		}
		kind := request.Message.Kind()
		if kind == controlmsg.KindOpenVolume && s.target.leaves.Load() {
			_ = s.stream.SetLinger(0)
			_ = s.stream.Close()
			return
		}
		if kind == controlmsg.KindDestroyObjects {
			return
		}
	}
}

func (s *fakeSession) reply(request controlmsg.Message) controlmsg.Message {
	switch m := request.(type) {
	case *controlmsg.OpenVolume:
		return s.volume()
	case *controlmsg.ConfigureDataPath:
		if s.random == nil || s.rdma == nil && !s.startRDMA(m) {
			return nil
		}
		return &controlmsg.ConfigureDataPathReply{InboundReads: s.random.Uint32N(64)}
	case *controlmsg.CreateRDMAConnection:
		return s.announce(m)
	case *controlmsg.StartDataPathConnections:
		return &controlmsg.StartDataPathConnectionsReply{ConsumerIDs: m.ConsumerIDs}
	case *controlmsg.StartStorage:
		return &controlmsg.StartStorageReply{}
	case *controlmsg.Stop:
		return &controlmsg.StopReply{}
	case *controlmsg.DestroyObjects:
		return &controlmsg.DestroyObjectsReply{}
	}
	return nil
}

func (s *fakeSession) volume() *controlmsg.OpenVolumeReply {
	v := &controlmsg.OpenVolumeReply{Volume: "fake", UUID: [16]byte{1}, Size: volumeSize,
		BlockSize: blockSize, MaxQueues: 64, MaxDepth: 4096, MaxBufferSize: 1 << 20,
		Transport: s.target.device.Capabilities().Transport}
	if s.chance(10) {
		v.BlockSize = 1 << s.random.IntN(24)
		v.Size = uint64(v.BlockSize) * s.random.Uint64N(1<<30)
	}
	if s.chance(10) {
		v.MaxQueues, v.MaxDepth = 1+s.random.Uint32N(1024), 1+s.random.Uint32N(1<<16)
		v.MaxBufferSize = 1 + s.random.Uint32N(1<<30)
	}
	if s.chance(3) {
		v.Transport = "carrier pigeon"
	}
	return v
}

// startRDMA makes the session's RDMA endpoint, and starts the goroutine that uses it.
func (s *fakeSession) startRDMA(m *controlmsg.ConfigureDataPath) bool {
	var err error
	if s.rdma, err = newEndpoint(s.target.device); err != nil {
		s.target.chain.t.Errorf("endpoint of the fake target: %v", err)
		return false
	}
	s.config = *m
	random := rand.New(rand.NewPCG(s.random.Uint64(), 0))
	s.polled.Go(func() { s.serveRDMA(random) })
	return true
}

// announce offers an RDMA connection: mostly a right one, sometimes with staging that cannot be
// used, or at an address where nobody listens.
func (s *fakeSession) announce(m *controlmsg.CreateRDMAConnection) controlmsg.Message {
	if s.rdma == nil {
		return nil
	}
	r := &controlmsg.CreateRDMAConnectionReply{Address: s.target.rdma.Address()}
	for i := range r.Token {
		r.Token[i] = byte(s.random.Uint32())
	}
	s.target.mu.Lock()
	if !s.chance(3) {
		s.target.tokens[r.Token] = s
	}
	s.target.mu.Unlock()
	if s.chance(3) {
		r.Address = netip.AddrPortFrom(s.target.chain.loopback, 1+uint16(s.random.Uint32N(1<<16-1)))
	}
	if s.chance(1) {
		r.Address = netip.MustParseAddrPort("[::1]:1")
	}
	if m.Role == iomsg.DataConnection && s.chance(60) {
		need := uint64(s.config.Depth) * uint64(s.config.BufferSize)
		r.Staging = &rdma.RemoteMemory{Key: s.rdma.registered.RemoteKey(),
			Base: s.rdma.registered.Base(), Length: need,
			Access: memory.RemoteWrite}
		if s.chance(20) {
			r.Staging.Key, r.Staging.Base = s.random.Uint32(), s.random.Uint64()>>1
		}
		if s.chance(5) {
			r.Staging.Length = 1 + s.random.Uint64()>>s.random.IntN(64)>>1
		}
	}
	return r
}

// serveRDMA accepts the relay's RDMA connections and answers what arrives on them.
func (s *fakeSession) serveRDMA(random *rand.Rand) {
	for {
		select {
		case request := <-s.pending:
			s.acceptRDMA(random, request)
			continue
		case <-s.ctx.Done():
			closing, cancel := context.WithTimeout(context.Background(), burstTimeout)
			defer cancel()
			if err := s.rdma.close(closing); err != nil {
				s.target.chain.t.Errorf("close an endpoint of the fake target: %v", err)
			}
			return
		default:
		}
		if s.rdma.poll(func(i int, m *iomsg.Message) { s.respond(random, i, m) }) == 0 {
			time.Sleep(200 * time.Microsecond)
		}
	}
}

func (s *fakeSession) acceptRDMA(random *rand.Rand, request rdma.Request) {
	if random.IntN(100) < 3 || s.rdma.used == mostConnections {
		_ = request.Reject([]byte("no"))
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	_, _ = s.rdma.connect(func(config rdma.ConnectionConfig) (rdma.Connection, error) {
		return request.Accept(ctx, config)
	}, nil)
}

// respond answers a message of the relay, which need not be right.
func (s *fakeSession) respond(random *rand.Rand, i int, m *iomsg.Message) {
	fate := random.IntN(400)
	if m.Type == iomsg.Hello {
		if fate > 8 {
			s.rdma.send(i, &iomsg.Message{Type: iomsg.Hello,
				IOSize: pick(random, 0, iomsg.Size, receiveSize, random.Uint32())})
		}
		return
	}
	if m.Type == iomsg.Stop && fate > 40 {
		s.rdma.send(i, m)
		return
	}
	request := *m
	m.Type, m.Result = iomsg.Result, pick(random, 0, 0, 0, status.IOFailed)
	switch fate {
	case 0: // a tag that belongs to no request
		m.Slot += 1 + random.Uint32N(3)
	case 1:
		m.Generation++
	case 2:
		s.rdma.send(i, m)
	case 3:
		m.Type = iomsg.Type(random.Uint32N(32))
	case 4:
		m.Result = status.Code(random.Uint32())
	case 5: // no response
		return
	case 6:
		m.Result = status.Shutdown
	case 7:
		s.rdma.connections[i].rdma.Close()
		return
	}
	if request.Type != iomsg.Read || m.Result != 0 {
		s.rdma.send(i, m)
		return
	}
	export := s.config.Export
	address := export.RDMA.Base + request.RequesterOffset
	if fate == 8 {
		address += random.Uint64N(1 << 40)
	}
	s.rdma.write(i, m, export.RDMA.Key, address, request.IOSize)
}
