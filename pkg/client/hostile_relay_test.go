// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testDepth = 4
	testBlock = 4096
)

// fakeRelay performs the handshake like a relay. The test then uses its consumers and producers to
// do whatever it wants on the data path.
type fakeRelay struct {
	t        testing.TB
	provider comch.Provider
	volume   controlmsg.OpenVolumeReply
	// consumers and producers are the relay's ends of the client's queues, in the order of the
	// queues.
	consumers []comch.Consumer
	producers []comch.Producer
	// imported is the memory that the client has exported, if keepMemory is set.
	imported   chan *memory.Region
	keepMemory atomic.Bool
	// configured is the last request for a data path, and readOnly grants read-only sessions.
	configured atomic.Pointer[controlmsg.ConfigureDataPath]
	readOnly   atomic.Bool
	// receives is how many requests the relay takes on each queue.
	receives   atomic.Uint32
	leaseMs    atomic.Uint32                        // of its targets
	farewell   error                                // that a session ends with, set before cancel
	responder  atomic.Pointer[controlmsg.Responder] // of the current session
	connection atomic.Value                         // comch.Connection of the current session
	// holder is what the relay tells the client about itself.
	holder  atomic.Uint64
	started chan struct{}
	ended   chan struct{}
	cancel  context.CancelFunc
}

func newFakeRelay(t testing.TB, changes ...func(*controlmsg.OpenVolumeReply)) *fakeRelay {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	r := &fakeRelay{
		t: t, cancel: cancel, ended: make(chan struct{}),
		imported: make(chan *memory.Region, 16), started: make(chan struct{}, 16),
		provider: emulated.New(emulated.Options{Directory: filepath.Join(t.TempDir(), "comch")}),
		volume: controlmsg.OpenVolumeReply{
			Volume: "fake", Size: 1 << 20, BlockSize: testBlock, Transport: "iwarp",
			MaxQueues: 4, MaxDepth: 64, MaxBufferSize: 1 << 20,
		},
	}
	r.receives.Store(64)
	for _, change := range changes {
		change(&r.volume)
	}
	server, err := r.provider.Listen(ctx, comch.ServerConfig{
		Device: emulated.DefaultDevice, Representor: emulated.DefaultRepresentor,
		Name: client.DefaultChannelName,
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		defer server.Close()
		for {
			connection, err := server.Accept(ctx)
			if err != nil {
				return
			}
			r.serve(ctx, connection)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-r.ended
		for i := range r.consumers {
			_ = r.consumers[i].Close()
			_ = r.producers[i].Close()
		}
	})
	return r
}

func (r *fakeRelay) serve(ctx context.Context, connection comch.Connection) {
	r.connection.Store(connection)
	responder := controlmsg.NewResponder(controlmsg.NewComchTransport(connection),
		controlmsg.EndpointConfig{Role: controlmsg.RoleRelay,
			OnHello: func(_ *controlmsg.Hello, reply *controlmsg.HelloReply) error {
				reply.LeaseMs = r.leaseMs.Load()
				return nil
			}})
	r.responder.Store(responder)
	defer connection.Abort()
	defer func() { responder.Close(r.farewell) }()
	for {
		request, err := responder.Next(ctx)
		if err != nil {
			return
		}
		err = responder.Reply(ctx, request.Correlation, r.reply(ctx, connection, request.Message))
		if err != nil {
			return
		}
		if request.Message.Kind() == controlmsg.KindStartStorage {
			r.started <- struct{}{}
		}
	}
}

func (r *fakeRelay) reply(
	ctx context.Context, connection comch.Connection, message controlmsg.Message,
) controlmsg.Message {
	switch m := message.(type) {
	case *controlmsg.OpenVolume:
		return &r.volume
	case *controlmsg.ConfigureDataPath:
		r.configured.Store(m)
		if r.keepMemory.Load() {
			region, _, err := connection.ImportMemory(m.Export.Descriptor)
			if err != nil {
				r.t.Error(err)
				return nil
			}
			r.imported <- region
		}
		return &controlmsg.ConfigureDataPathReply{InboundReads: 1, ReadOnly: r.readOnly.Load(),
			HolderID: controlmsg.HolderID(r.holder.Load())}
	case *controlmsg.StartDataPathConnections:
		reply := &controlmsg.StartDataPathConnectionsReply{}
		for _, id := range m.ConsumerIDs {
			reply.ConsumerIDs = append(reply.ConsumerIDs,
				r.newQueue(ctx, connection, comch.ConsumerID(id)))
		}
		return reply
	case *controlmsg.StartStorage:
		return &controlmsg.StartStorageReply{}
	case *controlmsg.Stop:
		return &controlmsg.StopReply{}
	}
	return &controlmsg.DestroyObjectsReply{}
}

func (r *fakeRelay) newQueue(
	ctx context.Context, connection comch.Connection, id comch.ConsumerID,
) uint32 {
	consumer, err := connection.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: 64, MemorySize: 64 * iomsg.Size})
	if err != nil {
		r.t.Error(err)
		return 1
	}
	for i := range r.receives.Load() {
		if err := consumer.PostReceive(i*iomsg.Size, iomsg.Size, uint64(i)); err != nil {
			r.t.Error(err)
		}
	}
	consumer.Flush()
	producer, err := connection.NewProducer(ctx, id)
	if err != nil {
		r.t.Error(err)
	}
	r.consumers, r.producers = append(r.consumers, consumer), append(r.producers, producer)
	return uint32(consumer.ID())
}

// request waits for the client's next request on its first queue.
func (r *fakeRelay) request() iomsg.Message {
	r.t.Helper()
	received := make([]comch.Received, 1)
	testkit.Eventually(r.t, "the client has sent something",
		func() bool { return r.consumers[0].Poll(received) > 0 })
	var m iomsg.Message
	iomsg.Decode(r.consumers[0].Memory()[received[0].Offset:], &m)
	return m
}

func (r *fakeRelay) send(b []byte) {
	r.t.Helper()
	if err := r.producers[0].Send(b, nil); err != nil {
		r.t.Fatal(err)
	}
	r.producers[0].Flush()
}

// cut ends the connection to the client.
func (r *fakeRelay) cut() { r.connection.Load().(comch.Connection).Abort() }

// open opens the volume. A request times out after ioTimeout.
func (r *fakeRelay) open(ioTimeout time.Duration) *client.Volume {
	r.t.Helper()
	return r.openWith(client.Config{IOTimeout: ioTimeout})
}

// openWith opens the volume with a configuration that it completes.
func (r *fakeRelay) openWith(config client.Config) *client.Volume {
	r.t.Helper()
	config.Provider, config.Device = r.provider, emulated.DefaultHostDevice
	config.Queues, config.Depth, config.BufferSize = 1, testDepth, testBlock
	config.SyncDepth, config.ControlTimeout = -1, testkit.Patience
	v, err := client.Open(context.Background(), config)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(v.Abort)
	<-r.started
	return v
}

// results polls until there are count outcomes.
func results(t *testing.T, q *client.Queue, count int) []client.Result {
	t.Helper()
	var all []client.Result
	batch := make([]client.Result, 8)
	testkit.Eventually(t, fmt.Sprintf("there are %d results", count), func() bool {
		all = append(all, batch[:q.Poll(batch)]...)
		return len(all) >= count
	})
	return all
}

func submit(t *testing.T, q *client.Queue, tag uint64) {
	t.Helper()
	err := q.Submit(&client.Request{Type: client.Read, Length: testBlock, Tag: tag})
	if err != nil {
		t.Fatal(err)
	}
	q.Ring()
}

func TestAProtocolViolationEndsTheSessionAndFailsEveryRequestOnce(t *testing.T) {
	encode := func(m iomsg.Message) []byte {
		b := make([]byte, iomsg.Size)
		iomsg.Encode(b, &m)
		return b
	}
	for _, c := range []struct {
		name string
		sent func(request iomsg.Message) []byte
		want status.Code
	}{
		{"another size", func(iomsg.Message) []byte {
			return make([]byte, 10)
		}, status.InvalidValue},
		{"a response to no request", func(m iomsg.Message) []byte {
			return encode(iomsg.Message{UserData: m.UserData + 2})
		}, status.Unexpected},
		{"a slot out of range", func(m iomsg.Message) []byte {
			return encode(iomsg.Message{UserData: m.UserData | 0xFFFF})
		}, status.Unexpected},
		{"an older generation", func(m iomsg.Message) []byte {
			return encode(iomsg.Message{UserData: m.UserData - 1<<32})
		}, status.Unexpected},
		{"a request", encode, status.Unexpected},
		{"an unsolicited stop", func(iomsg.Message) []byte {
			return encode(iomsg.Message{Type: iomsg.Stop})
		}, status.Unexpected},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newFakeRelay(t)
			v := r.open(testkit.Patience)
			q := v.Queue(0)
			submit(t, q, 1)
			request := r.request()
			submit(t, q, 2)
			r.send(c.sent(request))
			seen := map[uint64]int{}
			for _, result := range results(t, q, 2) {
				seen[result.Tag]++
				if result.Code == status.Success {
					t.Errorf("request %d succeeded", result.Tag)
				}
			}
			if seen[1] != 1 || seen[2] != 1 {
				t.Errorf("number of outcomes by request: %v", seen)
			}
			if err := v.Err(); !errors.Is(err, c.want) {
				t.Errorf("the volume ended with %v, want %v", err, c.want)
			}
			if err := q.Submit(&client.Request{Type: client.Read, Length: testBlock}); err == nil {
				t.Error("a failed volume accepted a request")
			}
		})
	}
}

func TestARelayThatBreaksTheProtocolGetsNoSecondSession(t *testing.T) {
	r := newFakeRelay(t)
	v := openReconnecting(r)
	submit(t, v.Queue(0), 1)
	r.send(make([]byte, 10))
	results(t, v.Queue(0), 1)
	select {
	case <-v.Done():
	case <-r.started:
		t.Fatal("the volume is reopened")
	}
	if err := v.Err(); !errors.Is(err, status.InvalidValue) {
		t.Errorf("the volume ended with %v", err)
	}
}

// TestALostRequestTimesOutUnderLoad polls only when a response to another request has arrived.
func TestALostRequestTimesOutUnderLoad(t *testing.T) {
	r := newFakeRelay(t)
	v := r.open(300 * time.Millisecond)
	q := v.Queue(0)
	submit(t, q, 7)
	r.request() // gets no response
	received, batch := make([]comch.Received, 1), make([]client.Result, 8)
	for deadline := time.Now().Add(testkit.Patience); v.Err() == nil; {
		if time.Now().After(deadline) {
			t.Fatal("the lost request does not time out")
		}
		if q.Submit(&client.Request{Type: client.Read, Length: testBlock, Tag: 8}) != nil {
			break // the session has ended
		}
		q.Ring()
		if r.consumers[0].Poll(received) == 0 {
			t.Fatal("the request has not arrived")
		}
		message := r.consumers[0].Memory()[received[0].Offset:][:iomsg.Size]
		iomsg.TurnIntoResult(message, status.Success)
		r.send(message)
		if err := r.consumers[0].PostReceive(received[0].Offset, iomsg.Size,
			received[0].UserData); err != nil {
			t.Fatal(err)
		}
		r.consumers[0].Flush()
		for _, result := range batch[:q.Poll(batch)] {
			if result.Tag == 8 && result.Code != status.Success {
				t.Fatalf("outcome is %+v", result)
			}
		}
	}
	if err := v.Err(); !errors.Is(err, status.TimeOut) {
		t.Errorf("the volume ended with %v", err)
	}
	for _, result := range results(t, q, 1) {
		if result.Tag == 7 && result.Code == status.TimeOut {
			return
		}
	}
	t.Error("the lost request has not timed out")
}

func TestARelayThatNeverRespondsTimesOut(t *testing.T) {
	r := newFakeRelay(t)
	v := r.open(300 * time.Millisecond)
	submit(t, v.Queue(0), 7)
	if got := results(t, v.Queue(0), 1); got[0].Tag != 7 || got[0].Code != status.TimeOut {
		t.Errorf("outcome is %+v", got[0])
	}
	if err := v.Err(); !errors.Is(err, status.TimeOut) {
		t.Errorf("the volume ended with %v", err)
	}
}

func TestOutstandingRequestsFailWhenTheRelayDies(t *testing.T) {
	r := newFakeRelay(t)
	v := r.open(testkit.Patience)
	submit(t, v.Queue(0), 7)
	r.cancel()
	if got := results(t, v.Queue(0), 1); got[0].Code == status.Success {
		t.Errorf("outcome is %+v", got[0])
	}
	<-v.Done()
	if v.Err() == nil {
		t.Error("Err returned nil for a failed volume")
	}
}

func TestAVolumeThatDoesNotFitIsRejected(t *testing.T) {
	for _, change := range []func(*controlmsg.OpenVolumeReply){
		func(v *controlmsg.OpenVolumeReply) { v.Size = testBlock + 1 },
		func(v *controlmsg.OpenVolumeReply) { v.MaxQueues = 1; v.MaxDepth = 1 },
		func(v *controlmsg.OpenVolumeReply) { v.MaxBufferSize = 512; v.BlockSize = 512 },
	} {
		r := newFakeRelay(t, change)
		v, err := client.Open(context.Background(), client.Config{
			Provider: r.provider, Device: emulated.DefaultHostDevice,
			Queues: 1, Depth: testDepth, BufferSize: testBlock,
			SyncDepth: -1, ControlTimeout: testkit.Patience,
		})
		if err == nil {
			v.Abort()
			t.Errorf("volume %+v was accepted", r.volume)
		}
	}
}

func TestOpenFailsWhenNoRelayOffersTheChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		openWithoutRelay(t, emulated.New(emulated.Options{
			Directory: filepath.Join(t.TempDir(), "comch")}))
	})
}

// openWithoutRelay expects that Open searches for a relay until it times out.
func openWithoutRelay(t *testing.T, provider comch.Provider) {
	t.Helper()
	const timeout = 10 * time.Second
	begun := time.Now()
	_, err := client.Open(t.Context(), client.Config{
		Provider: provider, Device: emulated.DefaultHostDevice, ControlTimeout: timeout,
	})
	if waited := time.Since(begun); !errors.Is(err, status.NotFound) || waited != timeout {
		t.Errorf("open: %v, after %v", err, waited)
	}
}

// slowSearch is a provider that finds no server. Each search after the first takes until the end of
// its context.
type slowSearch struct {
	comch.Provider
	searches int
}

func (p *slowSearch) Connect(ctx context.Context, _ comch.ClientConfig) (comch.Connection, error) {
	p.searches++
	if p.searches > 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, status.NotFound
}

func TestASearchThatTheTimeOutEndsHasFoundNoRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { openWithoutRelay(t, &slowSearch{}) })
}
