// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"encoding/binary"
	"errors"
	"runtime"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// initiator is a session of a Comch client with the relay.
type initiator struct {
	*peer
	connection comch.Connection
	relay      controlmsg.Caller
	configured controlmsg.ConfigureDataPath
	consumers  []comch.Consumer
	producers  []comch.Producer
	regions    []*memory.Region
	reposts    bool // received buffers are posted again
	received   int
}

type initiatorStep = func(*initiator)

var (
	initiatorOrder = []initiatorStep{(*initiator).hello, (*initiator).open, (*initiator).configure,
		(*initiator).connect, (*initiator).start, (*initiator).exchange, (*initiator).exchange,
		(*initiator).stopQueues, (*initiator).stop, (*initiator).destroy}
	initiatorExtras = []initiatorStep{(*initiator).openConsumer, (*initiator).closeConsumer,
		(*initiator).openProducer, (*initiator).closeProducer, (*initiator).export,
		(*initiator).sendGarbage}
)

// initiate runs a few sessions with the relay.
func (p *peer) initiate() {
	p.sessions(func() {
		connection, err := p.comch.Connect(p.ctx, comch.ClientConfig{
			Device: emulated.DefaultHostDevice,
			Name: pick(p.random, "disk", "disk", "disk", "disk", "disk", "fake", "fake",
				"extra-0"),
		})
		p.totals.connections.Add(1)
		if err != nil {
			return
		}
		s := &initiator{peer: p, connection: connection, reposts: !p.chance(10)}
		s.relay = p.converse(controlmsg.NewComchTransport(connection), controlmsg.RoleInitiator)
		play(p, s, initiatorOrder, initiatorExtras)
		p.linger(connection.Done())
		s.end()
	})
}

// end ends the session in one of several ways, and releases what this side has.
func (s *initiator) end() {
	switch s.random.IntN(3) {
	case 0: // closes everything first, and then gracefully
		s.closeObjects()
		s.relay.Close(nil)
	case 1:
		s.relay.Close(status.Shutdown)
	default:
		s.connection.Abort()
		s.relay.Close(nil)
	}
	s.closeObjects()
	s.connection.Abort()
	for _, region := range s.regions {
		_ = region.Close()
	}
}

func (s *initiator) closeObjects() {
	for _, producer := range s.producers {
		_ = producer.Close()
	}
	for _, consumer := range s.consumers {
		_ = consumer.Close()
	}
	s.producers, s.consumers = nil, nil
}

func (s *initiator) call(m controlmsg.Message) (controlmsg.Message, bool) {
	reply, err := s.relay.Call(s.ctx, m)
	return reply, err == nil
}

func (s *initiator) hello() { s.call(s.peer.hello(controlmsg.RoleInitiator)) }

func (s *initiator) open() {
	if _, ok := s.call(&controlmsg.OpenVolume{Volume: pick(s.random, "", "", "disk")}); ok {
		s.totals.opened.Add(1)
	}
}

// export exports new memory, and returns the descriptor.
func (s *initiator) export() { s.exportMemory() }

func (s *initiator) exportMemory() (descriptor []byte, length uint64) {
	if len(s.regions) >= 8 {
		return nil, 0
	}
	length = 1 + s.random.Uint64N(1<<pick(s.random, 12, 20, 24))
	region, err := memory.Alloc("random-export", length)
	if err != nil {
		return nil, 0
	}
	s.regions = append(s.regions, region)
	access := memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite
	if s.chance(10) {
		access &= memory.Access(s.random.Uint32())
	}
	descriptor, err = s.connection.ExportMemory(s.ctx, region, access)
	if err != nil {
		return nil, 0
	}
	return descriptor, length
}

func (s *initiator) configure() {
	m := s.configuration()
	descriptor, length := s.exportMemory()
	if descriptor == nil || s.chance(5) {
		descriptor = binary.BigEndian.AppendUint64(nil, s.random.Uint64())
	}
	m.Export = controlmsg.Export{Descriptor: descriptor, Length: max(length, 1),
		Access: memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite}
	if s.chance(5) {
		m.Export.Length = s.random.Uint64()>>s.random.IntN(60) + 1
	}
	if _, ok := s.call(m); ok {
		s.configured = *m
		s.totals.configured.Add(1)
	}
}

// mostConsumers bounds what a session opens, and with it what the relay may hold for it.
const mostConsumers = 16

func (s *initiator) openConsumer() {
	if len(s.consumers) >= mostConsumers {
		return
	}
	receives := int(s.configured.Depth) + 8
	if s.chance(5) {
		receives = 1 + s.random.IntN(receives)
	}
	consumer, err := s.connection.NewConsumer(s.ctx,
		comch.ConsumerConfig{Receives: receives, MemorySize: receives * iomsg.Size})
	if err != nil {
		return
	}
	s.consumers = append(s.consumers, consumer)
	for i := range receives - s.random.IntN(2)*s.random.IntN(receives) {
		_ = consumer.PostReceive(uint32(i*iomsg.Size), iomsg.Size, uint64(i))
	}
	consumer.Flush()
}

func (s *initiator) closeConsumer() {
	if last := len(s.consumers) - 1; last >= 0 {
		_ = s.consumers[last].Close()
		s.consumers = s.consumers[:last]
	}
}

func (s *initiator) openProducer() {
	s.newProducer(comch.ConsumerID(1 + s.random.Uint32N(8)))
}

func (s *initiator) newProducer(id comch.ConsumerID) {
	if len(s.producers) >= mostConsumers {
		return
	}
	if producer, err := s.connection.NewProducer(s.ctx, id); err == nil {
		s.producers = append(s.producers, producer)
	}
}

func (s *initiator) closeProducer() {
	if last := len(s.producers) - 1; last >= 0 {
		_ = s.producers[last].Close()
		s.producers = s.producers[:last]
	}
}

func (s *initiator) sendGarbage() {
	garbage := make([]byte, 1+s.random.IntN(200))
	for i := range garbage {
		garbage[i] = byte(s.random.Uint32())
	}
	_ = s.connection.Send(s.ctx, garbage)
}

// connect opens a consumer per queue, and producers to those of the relay.
func (s *initiator) connect() {
	request := &controlmsg.StartDataPathConnections{}
	for range min(max(s.configured.QueueCount, 1), mostConsumers) {
		s.openConsumer()
	}
	for _, consumer := range s.consumers {
		request.ConsumerIDs = append(request.ConsumerIDs, uint32(consumer.ID()))
	}
	if count := int(s.configured.QueueCount); count < len(request.ConsumerIDs) && !s.chance(5) {
		request.ConsumerIDs = request.ConsumerIDs[len(request.ConsumerIDs)-count:]
	}
	if len(request.ConsumerIDs) > 0 && s.chance(5) {
		request.ConsumerIDs[0] += s.random.Uint32N(100)
	}
	reply, _ := s.call(request)
	if reply, ok := reply.(*controlmsg.StartDataPathConnectionsReply); ok {
		for _, id := range reply.ConsumerIDs {
			s.newProducer(comch.ConsumerID(id))
		}
	}
}

func (s *initiator) start() {
	if _, ok := s.call(&controlmsg.StartStorage{}); ok {
		s.totals.started.Add(1)
	}
}

func (s *initiator) stop()    { s.call(&controlmsg.Stop{}) }
func (s *initiator) destroy() { s.call(&controlmsg.DestroyObjects{}) }

// exchangeTime bounds the wait for responses, which a relay or a target that is fake need not send.
const exchangeTime = 300 * time.Millisecond

// exchange sends requests on all queues and receives the responses, or some of them.
func (s *initiator) exchange() {
	want := s.received
	for range s.random.IntN(200) {
		if len(s.producers) == 0 {
			return
		}
		var packet [iomsg.Size]byte
		request := s.request(uint64(s.configured.Export.Length))
		iomsg.Encode(packet[:], &request)
		if !s.send(pick(s.random, s.producers...), packet[:]) {
			break // the relay takes no requests
		}
		want++
	}
	if s.chance(10) {
		return
	}
	s.await(func() bool { return s.received >= want })
}

// stopQueues sends the stop message of each queue.
func (s *initiator) stopQueues() {
	var packet [iomsg.Size]byte
	iomsg.Encode(packet[:], &iomsg.Message{Type: iomsg.Stop})
	want := s.received
	for _, producer := range s.producers {
		if s.send(producer, packet[:]) {
			want++
		}
	}
	if want == s.received {
		return
	}
	s.await(func() bool { return s.received >= want })
}

// send sends a message as soon as the relay has a receive for it.
func (s *initiator) send(producer comch.Producer, packet []byte) bool {
	err := error(status.Again)
	s.await(func() bool {
		err = producer.Send(packet, nil)
		return !errors.Is(err, status.Again)
	})
	producer.Flush()
	s.totals.messages.Add(1)
	return err == nil
}

// await receives responses until condition holds, the session has ended, or exchangeTime is over.
func (s *initiator) await(condition func() bool) {
	for deadline := time.Now().Add(exchangeTime); !condition(); runtime.Gosched() {
		select {
		case <-s.connection.Done():
			return
		default:
		}
		if s.poll() == 0 {
			if time.Now().After(deadline) {
				return
			}
			time.Sleep(200 * time.Microsecond)
		}
	}
}

func (s *initiator) poll() (count int) {
	var received [32]comch.Received
	for _, consumer := range s.consumers {
		n := consumer.Poll(received[:])
		for _, r := range received[:n] {
			if s.reposts {
				_ = consumer.PostReceive(r.Offset, iomsg.Size, r.UserData)
			}
		}
		consumer.Flush()
		count += n
	}
	s.received += count
	return count
}

// request returns a random IO message, most of them valid for a region of the given length.
func (p *peer) request(length uint64) iomsg.Message {
	m := iomsg.Message{
		Type: pick(p.random, iomsg.Read, iomsg.Read, iomsg.Write, iomsg.Write, iomsg.Flush,
			iomsg.Trim, iomsg.WriteZeroes, iomsg.Extents),
		Trace: p.random.Uint32(), UserData: p.random.Uint64(),
	}
	if m.Type.Operation().HasRange() {
		m.IOSize = blockSize * (1 + p.random.Uint32N(4))
		m.StorageOffset = p.random.Uint64N(volumeSize/blockSize) * blockSize
		m.RequesterOffset = p.random.Uint64N(length/blockSize+1) * blockSize
	}
	if m.Type == iomsg.Extents {
		m.Range = blockSize * (1 + p.random.Uint64N((volumeSize-m.StorageOffset)/blockSize))
	}
	if m.Type == iomsg.Write && p.chance(10) {
		m.Flags = iomsg.FUA
	}
	switch p.random.IntN(100) {
	case 0:
		m.Type = iomsg.Type(p.random.Uint32N(32))
	case 1:
		m.IOSize = p.random.Uint32()
	case 2:
		m.RequesterOffset = p.random.Uint64()
	case 3:
		m.StorageOffset = p.random.Uint64()
	case 4:
		m.Flags = iomsg.Flags(p.random.Uint32N(8))
	case 5:
		m.Range = p.random.Uint64()
	}
	return m
}
