// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The initiator of these tests has two threads, each with four buffers of a block.
const (
	initiatorThreads = 2
	initiatorCount   = 4
	initiatorBuffer  = 4096
	initiatorMemory  = initiatorThreads * initiatorCount * initiatorBuffer
)

var initiatorVersions = []dialects.Version{dialects.DOCA2_10, dialects.DOCA3_0, dialects.DOCA3_1,
	dialects.DOCA3_2}

// initiator is a scripted initiator of the DOCA storage applications.
type initiator struct {
	t          *testing.T
	ctx        context.Context
	version    dialects.Version
	connection comch.Connection
	region     *memory.Region
	export     []byte
	consumers  []comch.Consumer
	producers  []comch.Producer
	id         uint32 // of the next request
}

func connectInitiator(t *testing.T, provider comch.Provider, v dialects.Version) *initiator {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	t.Cleanup(cancel)
	connection, err := provider.Connect(ctx, comch.ClientConfig{
		Device: emulated.DefaultHostDevice, Name: client.DefaultChannelName})
	if err != nil {
		t.Fatal(err)
	}
	region, err := memory.Alloc("initiator", initiatorMemory)
	if err != nil {
		t.Fatal(err)
	}
	i := &initiator{t: t, ctx: ctx, version: v, connection: connection, region: region}
	t.Cleanup(func() {
		i.closeQueues()
		connection.Abort()
		_ = region.Close()
	})
	i.export, err = connection.ExportMemory(ctx, region,
		memory.PCIRead|memory.PCIWrite|memory.RemoteRead|memory.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *initiator) send(m dialects.Message) *dialects.Envelope {
	i.t.Helper()
	request := &dialects.Envelope{Correlation: i.id + 100, Message: m}
	if i.version != dialects.DOCA2_10 {
		request.ID = i.id
	}
	i.id++
	b, err := dialects.Encode(i.version, request)
	if err != nil {
		i.t.Fatal(err)
	}
	if err := i.connection.Send(i.ctx, b); err != nil {
		i.t.Fatal(err)
	}
	return request
}

// call returns the reply to a request, which may be a Response.
func (i *initiator) call(m dialects.Message) dialects.Message {
	i.t.Helper()
	request := i.send(m)
	b, err := i.connection.Receive(i.ctx)
	if err != nil {
		i.t.Fatalf("%s: %v", m.Name(), err)
	}
	reply, err := dialects.Decode(i.version, b)
	if err != nil {
		i.t.Fatalf("the reply to %s: %v", m.Name(), err)
	}
	if reply.ID != request.ID || reply.Correlation != request.Correlation {
		i.t.Errorf("the reply to %+v is %+v", request, reply)
	}
	return reply.Message
}

// expect fails the test unless the request succeeds.
func (i *initiator) expect(m dialects.Message) dialects.Message {
	i.t.Helper()
	reply := i.call(m)
	failure, isResponse := reply.(*dialects.Response)
	if isResponse && failure.Result != status.Success ||
		isResponse != (i.version == dialects.DOCA2_10) {
		i.t.Fatalf("%s: %+v", m.Name(), reply)
	}
	return reply
}

func (i *initiator) init() *dialects.InitStorage {
	return &dialects.InitStorage{Count: initiatorCount, BufferSize: initiatorBuffer, BatchSize: 1,
		Cores: initiatorThreads, Export: i.export}
}

func (i *initiator) openConsumers() {
	i.t.Helper()
	for range initiatorThreads {
		consumer, err := i.connection.NewConsumer(i.ctx, comch.ConsumerConfig{
			Receives: 2 * initiatorCount, MemorySize: 2 * initiatorCount * iomsg.Size})
		if err != nil {
			i.t.Fatal(err)
		}
		i.consumers = append(i.consumers, consumer)
	}
}

func (i *initiator) openProducers() {
	i.t.Helper()
	for range initiatorThreads {
		event, err := i.connection.NextConsumerEvent(i.ctx)
		if err != nil || !event.Created {
			i.t.Fatal(event, err)
		}
		producer, err := i.connection.NewProducer(i.ctx, event.ID)
		if err != nil {
			i.t.Fatal(err)
		}
		i.producers = append(i.producers, producer)
	}
}

func (i *initiator) postReceives() {
	i.t.Helper()
	for _, consumer := range i.consumers {
		for n := range uint32(2 * initiatorCount) {
			if err := consumer.PostReceive(n*iomsg.Size, iomsg.Size, uint64(n)); err != nil {
				i.t.Fatal(err)
			}
		}
		consumer.Flush()
	}
}

func (i *initiator) closeQueues() {
	for _, producer := range i.producers {
		_ = producer.Close()
	}
	for _, consumer := range i.consumers {
		_ = consumer.Close()
	}
	i.producers, i.consumers = nil, nil
}

// start takes all steps until the data path runs.
func (i *initiator) start() {
	i.t.Helper()
	if i.version == dialects.DOCA2_10 {
		i.expect(i.init())
		i.openConsumers()
		i.expect(&dialects.StartConnections{})
		i.openProducers()
	} else {
		reply := i.expect(&dialects.QueryStorage{}).(*dialects.QueryStorageReply)
		if reply.TotalSize != 1<<20 || reply.BlockSize != 4096 {
			i.t.Errorf("the storage has %+v", reply)
		}
		i.expect(i.init())
		i.openConsumers()
		i.openProducers()
	}
	i.expect(&dialects.StartStorage{})
	i.postReceives()
}

// request returns an IO message for a block of the memory and one of the storage. Where the version
// cannot name the latter, the former decides.
func (i *initiator) request(kind iomsg.Type, block, storage uint64) []byte {
	b := bytes.Repeat([]byte{0xa5}, iomsg.Size) // what is not set is not initialized
	binary.BigEndian.PutUint32(b[0:], uint32(kind))
	binary.BigEndian.PutUint32(b[4:], uint32(block))
	binary.BigEndian.PutUint64(b[8:], 77)
	binary.BigEndian.PutUint32(b[20:], initiatorBuffer)
	switch i.version {
	case dialects.DOCA2_10:
		binary.BigEndian.PutUint64(b[24:], i.region.Base()+block*initiatorBuffer)
	case dialects.DOCA3_0:
		binary.BigEndian.PutUint64(b[24:], i.region.Base()+storage*initiatorBuffer)
		binary.BigEndian.PutUint32(b[32:], uint32((block-storage)*initiatorBuffer))
	default:
		binary.BigEndian.PutUint64(b[24:], block*initiatorBuffer)
		binary.BigEndian.PutUint64(b[32:], storage*initiatorBuffer)
	}
	return b
}

// exchange sends an IO message on a thread, and returns what comes back.
func (i *initiator) exchange(thread int, request []byte) []byte {
	i.t.Helper()
	if err := i.producers[thread].Send(request, nil); err != nil {
		i.t.Fatal(err)
	}
	i.producers[thread].Flush()
	received := make([]comch.Received, 1)
	for i.consumers[thread].Poll(received) == 0 {
		if i.ctx.Err() != nil {
			i.t.Fatal("no response")
		}
		time.Sleep(time.Millisecond)
	}
	r := received[0]
	response := bytes.Clone(i.consumers[thread].Memory()[r.Offset:][:r.Length])
	if err := i.consumers[thread].PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
		i.t.Fatal(err)
	}
	i.consumers[thread].Flush()
	if len(response) != iomsg.Size {
		i.t.Fatalf("%d bytes came back", len(response))
	}
	return response
}

// io returns the result of a request, whose other fields must come back as they were.
func (i *initiator) io(thread int, request []byte) status.Code {
	i.t.Helper()
	response := i.exchange(thread, request)
	end := 40
	switch i.version {
	case dialects.DOCA2_10:
		end = 32
	case dialects.DOCA3_0:
		end = 36
	}
	if binary.BigEndian.Uint32(response) != 0 || !bytes.Equal(response[4:16], request[4:16]) ||
		!bytes.Equal(response[20:end], request[20:end]) {
		i.t.Errorf("request  %x\nresponse %x", request, response)
	}
	return status.Code(binary.BigEndian.Uint32(response[16:]))
}

func (i *initiator) block(n uint64) []byte {
	return i.region.Bytes()[n*initiatorBuffer:][:initiatorBuffer]
}

// stop ends the data path, as the version does.
func (i *initiator) stop() {
	i.t.Helper()
	if i.version != dialects.DOCA2_10 {
		i.expect(&dialects.StopStorage{})
		return
	}
	message := i.request(iomsg.Stop, 0, 0)
	back := i.exchange(0, message)
	if !bytes.Equal(back[:16], message[:16]) || !bytes.Equal(back[20:32], message[20:32]) {
		i.t.Errorf("stop %x came back as %x", message, back)
	}
}

// startDialectChain starts a chain, of which the test uses no client in our own protocol.
// In 2.10 the place of data in the client's memory is its place in the storage, of which other
// clients know nothing.
func TestOnlyInitiatorsOf2_10UseTargetsOf2_10(t *testing.T) {
	for _, c := range []relay.ChannelConfig{
		{Protocol: relay.ProtocolNative, TargetProtocol: "doca-2.10"},
		{Protocol: "doca-3.2", TargetProtocol: "doca-2.10"},
		{TargetProtocol: "doca-2.10", Isolation: relay.Staged},
		{TargetProtocol: "doca-3.0", Isolation: relay.Staged},
	} {
		c.Targets = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:7470")}
		_, err := relay.New(t.Context(), relay.Config{Settings: relay.Settings{
			Channels: []relay.ChannelConfig{c}}})
		if !errors.Is(err, status.InvalidValue) {
			t.Errorf("protocol %q, target protocol %q, isolation %q: %v", c.Protocol,
				c.TargetProtocol, c.Isolation, err)
		}
	}
	c := startDialectChain(t)
	c.startRelay(relay.ChannelConfig{Targets: []netip.AddrPort{c.proxy.target},
		TargetProtocol: "doca-2.10"})
	c.connect()
	if err := c.call(&controlmsg.OpenVolume{}); !errors.Is(err, status.NotSupported) {
		t.Errorf("our client opens the volume: %v", err)
	}
}

func startDialectChain(t *testing.T) *chain {
	c := startChain(t)
	c.requester.Close(nil)
	return c
}

func TestInitiatorsOfTheApplicationsReadAndWrite(t *testing.T) {
	for _, v := range initiatorVersions {
		t.Run(v.String(), func(t *testing.T) {
			c := startDialectChain(t)
			i := connectInitiator(t, c.provider, v)
			i.start()
			// Every thread writes its buffers, and the other one reads them: the storage is shared.
			const blocks = initiatorThreads * initiatorCount
			for n := range uint64(blocks) {
				copy(i.block(n), bytes.Repeat([]byte{byte(n + 1)}, initiatorBuffer))
				if code := i.io(int(n/initiatorCount), i.request(iomsg.Write, n, n)); code != 0 {
					t.Errorf("write %d: %v", n, code)
				}
			}
			clear(i.region.Bytes())
			for n := range uint64(blocks) {
				if code := i.io(1-int(n/initiatorCount), i.request(iomsg.Read, n, n)); code != 0 {
					t.Errorf("read %d: %v", n, code)
				}
				want := bytes.Repeat([]byte{byte(n + 1)}, initiatorBuffer)
				if !bytes.Equal(i.block(n), want) {
					t.Errorf("block %d has %x…", n, i.block(n)[:4])
				}
			}
			if v != dialects.DOCA2_10 { // whose memory and storage go together
				if code := i.io(0, i.request(iomsg.Read, 7, 5)); code != 0 || i.block(7)[0] != 6 {
					t.Errorf("read of block 5 to buffer 7: %v, %d", code, i.block(7)[0])
				}
			}
			i.checkRejections()
			i.stop()
			i.closeQueues()
			i.expect(&dialects.Shutdown{})
			select {
			case <-i.connection.Done():
			case <-i.ctx.Done():
				t.Error("the relay has not closed the connection")
			}
		})
	}
}

// checkRejections sends requests that must fail, alone.
func (i *initiator) checkRejections() {
	i.t.Helper()
	for name, c := range map[string]struct {
		kind           iomsg.Type
		block, storage uint64
		size           uint32
	}{
		"outside of the memory":      {iomsg.Read, initiatorThreads * initiatorCount, 0, 4096},
		"before the memory":          {iomsg.Write, math.MaxUint64, 0, 4096},
		"beyond the memory's end":    {iomsg.Write, 7, 7, 8192},
		"no bytes":                   {iomsg.Read, 0, 0, 0},
		"part of a block":            {iomsg.Read, 0, 0, 100},
		"much too big":               {iomsg.Read, 0, 0, math.MaxUint32},
		"flush, which they lack":     {iomsg.Flush, 0, 0, 0},
		"trim, which they lack":      {iomsg.Trim, 0, 0, 4096},
		"hello, which they lack":     {iomsg.Hello, 0, 0, 0},
		"result":                     {iomsg.Result, 0, 0, 4096},
		"a type that nobody defines": {1000, 0, 0, 4096},
	} {
		request := i.request(c.kind, c.block, c.storage)
		binary.BigEndian.PutUint32(request[20:], c.size)
		if code := i.io(0, request); code == status.Success {
			i.t.Errorf("%s: success", name)
		}
	}
	if i.version >= dialects.DOCA3_1 {
		if code := i.io(0, i.request(iomsg.Read, 0, 256)); code == status.Success {
			i.t.Error("a read beyond the storage: success")
		}
		if code := i.io(0, i.request(iomsg.Stop, 0, 0)); code == status.Success {
			i.t.Error("a stop, which they lack: success")
		}
	}
}

// Each case is a row of requests after the steps that are named, and what the last one gets.
func TestRequestsOutOfOrderAreRejected(t *testing.T) {
	c := startDialectChain(t)
	of2_10, of3 := initiatorVersions[:1], initiatorVersions[1:]
	for _, test := range []struct {
		name     string
		versions []dialects.Version
		started  bool
		requests []dialects.Message // nil stands for init_storage
		want     status.Code
		open     bool // the session goes on
	}{
		{"start first", initiatorVersions, false, []dialects.Message{&dialects.StartStorage{}},
			status.Unexpected, true},
		{"connect first", of2_10, false, []dialects.Message{&dialects.StartConnections{}},
			status.Unexpected, true},
		{"configure twice", of2_10, false, []dialects.Message{nil, nil}, status.Unexpected, false},
		{"start before connecting", of2_10, false,
			[]dialects.Message{nil, &dialects.StartStorage{}}, status.Unexpected, false},
		{"start twice", initiatorVersions, true, []dialects.Message{&dialects.StartStorage{}},
			status.Unexpected, false},
		{"a request of relays", initiatorVersions, false,
			[]dialects.Message{&dialects.CreateConnection{Details: []byte("x")}},
			status.Unexpected, true},
		{"stop first", of3, false, []dialects.Message{&dialects.StopStorage{}},
			status.Unexpected, true},
		{"a reply", initiatorVersions, false,
			[]dialects.Message{&dialects.CreateConnectionReply{Details: []byte("x")}},
			status.Unexpected, true},
		{"query while running", of3, true, []dialects.Message{&dialects.QueryStorage{}},
			status.Unexpected, false},
		{"init while running", initiatorVersions, true, []dialects.Message{nil},
			status.Unexpected, false},
		{"stop twice", of3, true,
			[]dialects.Message{&dialects.StopStorage{}, &dialects.StopStorage{}},
			status.Unexpected, false},
		{"no threads", of3, false,
			[]dialects.Message{&dialects.InitStorage{Count: 1, Export: []byte("no export")}},
			status.InvalidValue, true},
	} {
		for _, v := range test.versions {
			t.Run(fmt.Sprintf("%s/%v", test.name, v), func(t *testing.T) {
				i := connectInitiator(t, c.provider, v)
				if test.started {
					i.start()
				}
				var reply dialects.Message
				for _, request := range test.requests {
					if request == nil {
						request = i.init()
					}
					reply = i.call(request)
				}
				failure, isFailure := reply.(*dialects.Response)
				if !isFailure || failure.Result != test.want || failure.Text == "" {
					t.Fatalf("the reply is %+v", reply)
				}
				if test.open {
					i.start()
					return
				}
				if _, err := i.connection.Receive(i.ctx); err == nil || i.ctx.Err() != nil {
					t.Errorf("the connection goes on: %v", err)
				}
			})
		}
	}
	i := connectInitiator(t, c.provider, dialects.DOCA3_2)
	i.start() // the relay still serves
}

// An initiator of 2.10 that has stopped the data path by an IO message has to end the session. How
// long it may take is tested in package dialects.
func TestTheTimeToEndBeginsWhenAnInitiatorOf2_10Stops(t *testing.T) {
	c := startDialectChain(t)
	testkit.Eventually(t, "the session of the test's own client has ended",
		func() bool { return c.relay.Sessions() == 0 })
	i := connectInitiator(t, c.provider, dialects.DOCA2_10)
	i.start()
	sessions := c.relay.StoppedByMessage()
	if len(sessions) != 1 {
		t.Fatalf("%d sessions", len(sessions))
	}
	select {
	case <-sessions[0]:
		t.Error("it has stopped before it was told to")
	default:
	}
	i.stop()
	<-sessions[0]
}

func TestWhatAnInitiatorAsksForIsBounded(t *testing.T) {
	c := startDialectChain(t)
	for name, test := range map[string]struct {
		version dialects.Version
		change  func(*dialects.InitStorage)
	}{
		"no buffers": {dialects.DOCA2_10,
			func(m *dialects.InitStorage) { m.Count = 0 }},
		"parts of buffers": {dialects.DOCA2_10,
			func(m *dialects.InitStorage) { m.Count = 3 }},
		"sizes beyond 32 bits": {dialects.DOCA2_10,
			func(m *dialects.InitStorage) { m.Count = 1 << 31 }},
		"no memory": {dialects.DOCA2_10,
			func(m *dialects.InitStorage) { m.Export = nil }},
		"damaged memory": {dialects.DOCA2_10,
			func(m *dialects.InitStorage) { m.Export[9]++ }},
		"no threads": {dialects.DOCA3_2,
			func(m *dialects.InitStorage) { m.Cores = 0 }},
		"too many threads": {dialects.DOCA3_2,
			func(m *dialects.InitStorage) { m.Cores = 5000 }},
		"no transactions": {dialects.DOCA3_1,
			func(m *dialects.InitStorage) { m.Count = 0 }},
		"too many transactions": {dialects.DOCA3_0,
			func(m *dialects.InitStorage) { m.Count = math.MaxUint32 }},
		"a descriptor of nothing": {dialects.DOCA3_2,
			func(m *dialects.InitStorage) { m.Export = make([]byte, 2000) }},
	} {
		i := connectInitiator(t, c.provider, test.version)
		request := i.init()
		request.Export = bytes.Clone(request.Export)
		test.change(request)
		reply, isFailure := i.call(request).(*dialects.Response)
		if !isFailure || reply.Result == status.Success {
			t.Errorf("%s: %+v", name, reply)
		}
		i.start() // with a proper request
		i.connection.Abort()
	}
}

// An initiator of another release than the channel's is not understood.
func TestAChannelMayHaveOneProtocol(t *testing.T) {
	for _, test := range []struct {
		protocol relay.Protocol
		version  dialects.Version
		works    bool
	}{
		{"doca-2.10", dialects.DOCA2_10, true},
		{"doca-3.0", dialects.DOCA3_0, true},
		{"doca-3.2", dialects.DOCA3_2, true},
		{relay.ProtocolNative, dialects.DOCA3_2, false},
		{"doca-2.10", dialects.DOCA3_2, false},
		{"doca-3.2", dialects.DOCA2_10, false},
	} {
		t.Run(fmt.Sprint(test.protocol, "/", test.version), func(t *testing.T) {
			c := startDialectChain(t)
			settings := relay.ChannelConfig{Targets: []netip.AddrPort{c.proxy.target},
				Protocol: test.protocol}
			c.startRelay(settings)
			i := connectInitiator(t, c.provider, test.version)
			if test.works {
				i.start()
				return
			}
			if test.version == dialects.DOCA2_10 {
				i.send(i.init())
			} else {
				i.send(&dialects.QueryStorage{})
			}
			select {
			case <-i.connection.Done():
			case <-i.ctx.Done():
				t.Error("the connection goes on")
			}
		})
	}
	_, err := relay.New(t.Context(), relay.Config{Settings: relay.Settings{
		Channels: []relay.ChannelConfig{{Targets: []netip.AddrPort{loopback},
			Protocol: "doca-1.0"}}}})
	if err == nil || !strings.Contains(err.Error(), "doca-") && status.CodeOf(err) == 0 {
		t.Errorf("an unknown protocol: %v", err)
	}
}

// An initiator that leaves, whenever it does, leaves nothing behind.
func TestInitiatorsMayLeaveAtAnyTime(t *testing.T) {
	c := startDialectChain(t)
	for step := range 6 {
		for _, v := range []dialects.Version{dialects.DOCA2_10, dialects.DOCA3_2} {
			i := connectInitiator(t, c.provider, v)
			switch step {
			case 1:
				i.send(i.init())
			case 2:
				i.expect(i.init())
			case 3:
				i.expect(i.init())
				i.openConsumers()
				if v == dialects.DOCA2_10 {
					i.send(&dialects.StartConnections{})
				}
			case 4:
				i.start()
			case 5:
				i.start()
				if err := i.producers[0].Send(i.request(iomsg.Write, 0, 0), nil); err != nil {
					t.Fatal(err)
				}
				i.producers[0].Flush()
			}
			i.connection.Abort()
		}
	}
	i := connectInitiator(t, c.provider, dialects.DOCA3_2)
	i.start()
}
