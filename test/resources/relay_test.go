// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// relaySession is a session of a relay with the target.
type relaySession struct {
	*peer
	stream     network.Stream
	source     netip.Addr
	target     controlmsg.Caller
	device     rdma.Device
	rdma       *endpoint
	configured controlmsg.ConfigureDataPath
	announced  []announcement // RDMA connections
	received   int
}

type announcement struct {
	reply *controlmsg.CreateRDMAConnectionReply
	role  iomsg.ConnectionRole
	index int // of the connection in the endpoint, -1 if there is none
}

type relayStep = func(*relaySession)

var (
	relayOrder = []relayStep{(*relaySession).hello, (*relaySession).open, (*relaySession).configure,
		(*relaySession).connectQueues, (*relaySession).connected, (*relaySession).start,
		(*relaySession).exchange, (*relaySession).exchange, (*relaySession).stop,
		(*relaySession).destroy}
	relayExtras = []relayStep{(*relaySession).announceAny, (*relaySession).connectAny,
		(*relaySession).exchange, (*relaySession).sendGarbage, (*relaySession).closeAny}
)

// relayToTarget runs a few sessions with the target.
func (p *peer) relayToTarget() {
	p.sessions(func() {
		s := &relaySession{peer: p, source: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
		if p.chance(20) {
			s.source = netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + p.random.IntN(3))})
		}
		if err := s.run(); err != nil {
			p.t.Errorf("seed %d: the fuzzer's own side of a session failed: %v", p.seed, err)
		}
	})
}

func (s *relaySession) run() error {
	stream, err := network.Kernel{}.Dial(s.ctx, s.source, s.targetAddress)
	s.totals.connections.Add(1)
	if err != nil {
		return nil //nolint:nilerr // the target may have no place
	}
	s.stream = stream
	if s.device, err = iwarp.New(iwarp.Options{}).Open(s.source); err != nil {
		return err
	}
	if s.rdma, err = newEndpoint(s.device); err != nil {
		return err
	}
	s.target = s.converse(controlmsg.NewTCPTransport(stream, controlmsg.TCPConfig{}),
		controlmsg.RoleRelay)
	play(s.peer, s, relayOrder, relayExtras)
	s.linger(s.target.Done())
	switch s.random.IntN(3) {
	case 0:
		s.target.Close(nil)
	case 1:
		s.target.Close(status.Shutdown)
	default:
		_ = stream.SetLinger(0)
		_ = stream.Close()
	}
	err = s.rdma.close(s.ctx)
	s.target.Close(nil)
	if err != nil {
		return err
	}
	return s.device.Close()
}

func (s *relaySession) call(m controlmsg.Message) (controlmsg.Message, bool) {
	reply, err := s.target.Call(s.ctx, m)
	return reply, err == nil
}

func (s *relaySession) hello() { s.call(s.peer.hello(controlmsg.RoleRelay)) }

func (s *relaySession) open() {
	if _, ok := s.call(&controlmsg.OpenVolume{
		Volume: pick(s.random, "disk", "disk", "disk", "file", "file", "none"),
	}); ok {
		s.totals.opened.Add(1)
	}
}

func (s *relaySession) configure() {
	m := s.configuration()
	m.Export = controlmsg.Export{
		Access: memory.RemoteRead | memory.RemoteWrite, Length: dataSize,
		RDMA: &controlmsg.RDMAExport{Transport: s.device.Capabilities().Transport,
			Key: s.rdma.registered.RemoteKey(), Base: s.rdma.registered.Base()},
	}
	if s.chance(10) {
		m.Export.RDMA.Key = s.random.Uint32()
	}
	if s.chance(5) {
		m.Export.Length = 1 + s.random.Uint64N(1<<40)
	}
	if _, ok := s.call(m); ok {
		s.configured = *m
		s.totals.configured.Add(1)
	}
}

func (s *relaySession) announce(queue uint32, role iomsg.ConnectionRole) {
	source := s.source
	if s.chance(3) {
		source = netip.AddrFrom4([4]byte{127, 0, 0, 9})
	}
	reply, ok := s.call(&controlmsg.CreateRDMAConnection{Queue: queue, Role: role, Source: source})
	// An unruly requester may get the answer to another request.
	if reply, isReply := reply.(*controlmsg.CreateRDMAConnectionReply); ok && isReply {
		s.announced = append(s.announced, announcement{index: -1, role: role, reply: reply})
	}
}

// announceAny announces a connection that need not exist, or that exists already.
func (s *relaySession) announceAny() {
	s.announce(s.random.Uint32N(6),
		pick(s.random, iomsg.ControlConnection, iomsg.DataConnection))
}

// connectQueues announces and establishes the connections of all queues, most of the time.
func (s *relaySession) connectQueues() {
	for queue := range min(s.configured.QueueCount, mostConnections/2) {
		for role := range iomsg.ConnectionRoleCount {
			s.announce(queue, role)
			if !s.chance(3) {
				s.connect(len(s.announced) - 1)
			}
		}
	}
}

// connectAny uses a token that has been used already, or none.
func (s *relaySession) connectAny() { s.connect(s.random.IntN(len(s.announced)+1) - 1) }

// connect uses the token of an announced connection, or a wrong token, and says hello.
func (s *relaySession) connect(announced int) {
	remote := s.targetRDMA
	data := controlmsg.RDMAPrivateData{Token: [16]byte{1, 2, 3}}
	if announced >= 0 && !s.chance(3) {
		data.Token = s.announced[announced].reply.Token
	}
	privateData := data.Append(nil)
	if s.chance(2) {
		privateData = privateData[:s.random.IntN(len(privateData))]
	}
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	s.totals.connections.Add(1)
	index, err := s.rdma.connect(func(config rdma.ConnectionConfig) (rdma.Connection, error) {
		config.Source = s.source
		return s.device.Connect(ctx, remote, config)
	}, privateData)
	if err != nil {
		return
	}
	if announced >= 0 {
		s.announced[announced].index = index
	}
	s.rdma.connections[index].silent = s.chance(3)
	if !s.chance(3) {
		s.rdma.send(index, &iomsg.Message{Type: iomsg.Hello,
			IOSize: pick(s.random, 0, iomsg.Size, receiveSize, s.random.Uint32())})
	}
}

func (s *relaySession) closeAny() {
	if i := s.random.IntN(mostConnections); s.rdma.isOpen(i) {
		s.rdma.connections[i].rdma.Close()
	}
}

func (s *relaySession) connected() {
	s.call(&controlmsg.StartDataPathConnections{ConsumerIDs: []uint32{1, 2, 3}})
}

func (s *relaySession) start() {
	if _, ok := s.call(&controlmsg.StartStorage{}); ok {
		s.totals.started.Add(1)
	}
}

func (s *relaySession) stop()    { s.call(&controlmsg.Stop{}) }
func (s *relaySession) destroy() { s.call(&controlmsg.DestroyObjects{}) }

func (s *relaySession) sendGarbage() {
	garbage := make([]byte, 1+s.random.IntN(200))
	for i := range garbage {
		garbage[i] = byte(s.random.Uint32())
	}
	_ = s.stream.SetWriteDeadline(time.Now().Add(callTimeout))
	_, _ = s.stream.Write(garbage)
}

// exchange sends requests on all connections, and receives the responses.
func (s *relaySession) exchange() {
	connections := slices.DeleteFunc(slices.Clone(s.announced),
		func(a announcement) bool { return a.index < 0 })
	if len(connections) == 0 || s.configured.QueueCount == 0 {
		return
	}
	want := s.received
	slot := s.random.Uint32()
	for range s.random.IntN(min(int(s.configured.Depth), sends/2)) {
		c := pick(s.random, connections...)
		m := s.request(dataSize)
		if m.Type.IsRequest() && m.Type.Operation().Connection() != c.role && !s.chance(2) {
			continue
		}
		slot++
		m.Slot, m.Generation = slot%s.configured.Depth, s.random.Uint32()
		if s.chance(2) {
			m.Slot = s.random.Uint32()
		}
		s.totals.messages.Add(1)
		want++
		if staging := c.reply.Staging; m.Type == iomsg.Write && staging != nil && s.chance(50) {
			m.Flags |= iomsg.Pushed
			address := staging.Base + uint64(m.Slot)*uint64(s.configured.BufferSize)
			if s.chance(3) {
				address += s.random.Uint64N(1 << 30)
			}
			s.rdma.write(c.index, &m, staging.Key, address, min(m.IOSize, dataSize))
			continue
		}
		s.rdma.send(c.index, &m)
	}
	for deadline := time.Now().Add(exchangeTime); s.received < want; {
		n := s.rdma.poll(func(int, *iomsg.Message) { s.received++ })
		isOver := !slices.ContainsFunc(connections,
			func(a announcement) bool { return s.rdma.isOpen(a.index) })
		if isOver || n == 0 && time.Now().After(deadline) {
			return
		}
		if n == 0 {
			time.Sleep(200 * time.Microsecond)
		}
	}
}
