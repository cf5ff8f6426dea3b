// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/comch/hook"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// plainProvider is the emulated Comch, whose descriptors of memory take the place of libdoca's.
type plainProvider struct{ comch.Provider }

type plainConnection struct{ comch.Connection }

func (p plainProvider) Connect(
	ctx context.Context, c comch.ClientConfig,
) (comch.Connection, error) {
	connection, err := p.Provider.Connect(ctx, c)
	if err != nil {
		return nil, err
	}
	return plainConnection{connection}, nil
}

func (c plainConnection) ExportPlain(
	ctx context.Context, region *memory.Region, access memory.Access,
) ([]byte, error) {
	return c.ExportMemory(ctx, region, access)
}

// withoutExports is a Comch whose memory programs written for DOCA cannot import.
type withoutExports struct{ comch.Provider }

type withoutExportsConnection struct{ comch.Connection }

func (p withoutExports) Connect(
	ctx context.Context, c comch.ClientConfig,
) (comch.Connection, error) {
	connection, err := p.Provider.Connect(ctx, c)
	return withoutExportsConnection{connection}, err
}

// theirRelay is a relay of the DOCA storage applications that follows a script.
type theirRelay struct {
	*testing.T
	ctx        context.Context
	version    dialects.Version
	connection comch.Connection
	consumers  []comch.Consumer
	producers  []comch.Producer
	base       uint64 // of the client's memory
	leaves     bool   // after the script, rather than waiting for the client to leave
}

const theirQueues = 2

// startTheirRelay runs a script in front of one client, and returns how to open the volume.
func startTheirRelay(
	t *testing.T, v dialects.Version, script func(r *theirRelay),
) client.Config {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	config := client.Config{
		Provider: plainProvider{emulated.New(emulated.Options{
			Directory: filepath.Join(t.TempDir(), "comch")})},
		Device: emulated.DefaultHostDevice, Protocol: v, ControlTimeout: testkit.Patience,
		Queues: theirQueues, Depth: testDepth, BufferSize: testBlock, SyncDepth: -1,
	}
	name := client.ChannelName3
	if v == dialects.DOCA2_10 {
		name = client.DefaultChannelName
	}
	server, err := config.Provider.Listen(ctx, comch.ServerConfig{Device: emulated.DefaultDevice,
		Representor: emulated.DefaultRepresentor, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		connection, err := server.Accept(ctx)
		if err != nil {
			return
		}
		r := &theirRelay{T: t, ctx: ctx, version: v, connection: connection}
		script(r)
		if !r.leaves {
			select {
			case <-connection.Done():
			case <-ctx.Done():
			}
		}
		for i := range r.consumers {
			_, _ = r.consumers[i].Close(), r.producers[i].Close()
		}
		connection.Abort()
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = server.Close()
	})
	return config
}

// expect receives the next request, which must be like want.
func (r *theirRelay) expect(want dialects.Message) *dialects.Envelope {
	b, err := r.connection.Receive(r.ctx)
	var e *dialects.Envelope
	if err == nil {
		e, err = dialects.Decode(r.version, b)
	}
	if err != nil || e.Message.Name() != want.Name() {
		r.Errorf("expected %s: %+v, %v", want.Name(), e, err)
		return &dialects.Envelope{Message: want}
	}
	return e
}

func (r *theirRelay) send(e *dialects.Envelope) {
	b, err := dialects.Encode(r.version, e)
	if err == nil {
		err = r.connection.Send(r.ctx, b)
	}
	if err != nil {
		r.Errorf("send %s: %v", e.Message.Name(), err)
	}
}

// answer receives a request and replies, in 2.10 with a response to everything.
func (r *theirRelay) answer(want, reply dialects.Message) dialects.Message {
	request := r.expect(want)
	if _, isResponse := reply.(*dialects.Response); !isResponse && r.version == dialects.DOCA2_10 {
		reply = &dialects.Response{}
	}
	r.send(&dialects.Envelope{ID: request.ID, Correlation: request.Correlation, Message: reply})
	return request.Message
}

// first is the client's first request, and reply the reply to it.
func (r *theirRelay) first() (request, reply dialects.Message) {
	if r.version == dialects.DOCA2_10 {
		return &dialects.InitStorage{}, &dialects.Response{}
	}
	return &dialects.QueryStorage{},
		&dialects.QueryStorageReply{TotalSize: 1 << 20, BlockSize: testBlock}
}

// begin answers everything before start_data_path_connections or start_storage.
func (r *theirRelay) begin() {
	if r.version != dialects.DOCA2_10 {
		r.answer(r.first())
	}
	answered := r.answer(&dialects.InitStorage{}, &dialects.InitStorageReply{})
	init, ok := answered.(*dialects.InitStorage)
	if !ok || init.Count != testDepth ||
		r.version != dialects.DOCA2_10 && init.Cores != theirQueues {
		r.Errorf("the client initializes the storage with %+v", init)
	}
	region, _, err := r.connection.ImportMemory(init.Export)
	if err != nil {
		r.Error(err)
		return
	}
	r.base = region.Base()
	_ = region.Close()
}

// openQueues waits for the client's consumers, and opens the relay's ends of count queues.
func (r *theirRelay) openQueues(count int) {
	for range count {
		event, err := r.connection.NextConsumerEvent(r.ctx)
		if err != nil {
			r.Error(err)
			return
		}
		producer, err := r.connection.NewProducer(r.ctx, event.ID)
		if err != nil {
			r.Error(err)
			return
		}
		consumer, err := r.connection.NewConsumer(r.ctx,
			comch.ConsumerConfig{Receives: 8, MemorySize: 8 * iomsg.Size})
		if err != nil {
			r.Error(err)
			return
		}
		for i := range uint32(8) {
			if err := consumer.PostReceive(i*iomsg.Size, iomsg.Size, 0); err != nil {
				r.Error(err)
			}
		}
		consumer.Flush()
		r.consumers, r.producers = append(r.consumers, consumer), append(r.producers, producer)
	}
}

// connect opens the relay's ends of count queues, for which clients of 2.10 ask.
func (r *theirRelay) connect(count int) {
	if r.version == dialects.DOCA2_10 {
		r.answer(&dialects.StartConnections{}, nil)
	}
	r.openQueues(count)
}

// start is the whole handshake.
func (r *theirRelay) start() {
	r.begin()
	r.connect(theirQueues)
	r.answer(&dialects.StartStorage{}, &dialects.StartStorageReply{})
}

// request waits for the client's next message on a queue.
func (r *theirRelay) request(queue int) []byte {
	received := make([]comch.Received, 1)
	for r.consumers[queue].Poll(received) == 0 {
		if r.ctx.Err() != nil {
			r.Error("the client sends nothing")
			return make([]byte, iomsg.Size)
		}
		time.Sleep(20 * time.Microsecond)
	}
	message := make([]byte, iomsg.Size)
	copy(message, r.consumers[queue].Memory()[received[0].Offset:])
	_ = r.consumers[queue].PostReceive(received[0].Offset, iomsg.Size, 0)
	r.consumers[queue].Flush()
	return message
}

func (r *theirRelay) respond(queue int, message []byte) {
	if err := r.producers[queue].Send(message, nil); err != nil {
		r.Error(err)
	}
	r.producers[queue].Flush()
}

// finish is the orderly end.
func (r *theirRelay) finish() {
	if r.version == dialects.DOCA2_10 {
		stop := r.request(0)
		if iomsg.Type(binary.BigEndian.Uint32(stop)) != iomsg.Stop {
			r.Errorf("the client stops with %x", stop)
		}
		r.respond(0, stop)
	} else {
		r.answer(&dialects.StopStorage{}, &dialects.StopStorageReply{})
	}
	r.answer(&dialects.Shutdown{}, &dialects.ShutdownReply{})
}

// carryOut submits a request and waits for its result.
func carryOut(t *testing.T, queue *client.Queue, request client.Request) client.Result {
	t.Helper()
	if err := queue.Submit(&request); err != nil {
		t.Fatal(err)
	}
	queue.Ring()
	var results [1]client.Result
	testkit.Eventually(t, "the request has a result",
		func() bool { return queue.Poll(results[:]) > 0 })
	return results[0]
}

var allVersions = []dialects.Version{dialects.DOCA2_10, dialects.DOCA3_0, dialects.DOCA3_1,
	dialects.DOCA3_2}

func TestAConversationWithARelayOfTheApplications(t *testing.T) {
	for _, v := range allVersions {
		t.Run(v.String(), func(t *testing.T) {
			const memoryOffset = theirQueues * testDepth * testBlock / 2
			injector, _ := faulttest.New(t, "comch:any:trace")
			config := startTheirRelay(t, v, func(r *theirRelay) {
				r.start()
				message := r.request(1)
				address := binary.BigEndian.Uint64(message[24:])
				storage := binary.BigEndian.Uint64(message[32:])
				want := map[dialects.Version][2]uint64{
					dialects.DOCA2_10: {r.base + memoryOffset, 0},
					dialects.DOCA3_0:  {r.base + memoryOffset, 0},
					dialects.DOCA3_1:  {memoryOffset, memoryOffset},
					dialects.DOCA3_2:  {memoryOffset, memoryOffset},
				}[v]
				if got := [2]uint64{address, storage}; got != want {
					r.Errorf("the client sends the places %#x, want %#x", got, want)
				}
				iomsg.TurnIntoResult(message, status.IOFailed)
				r.respond(1, message)
				r.finish()
			})
			config.Provider = hook.Wrap(config.Provider, hook.Config{Injector: injector})
			disk, err := client.Open(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			if size := disk.Info().Size; size != 1<<20 && v != dialects.DOCA2_10 ||
				v == dialects.DOCA2_10 && size != theirQueues*testDepth*testBlock {
				t.Errorf("the volume has %d bytes", size)
			}
			result := carryOut(t, disk.Queue(1), client.Request{Type: client.Write,
				Length: testBlock, Offset: memoryOffset, Memory: memoryOffset, Tag: 9})
			if result.Code != status.IOFailed || result.Tag != 9 {
				t.Errorf("the result is %+v", result)
			}
			if err := disk.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// anyFailure stands for the end of a connection, which the client notices in one of several ways.
const anyFailure status.Code = 0

func TestARelayOfTheApplicationsThatBreaksTheProtocolIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		versions []dialects.Version
		script   func(r *theirRelay)
		want     status.Code
	}{
		"an error": {allVersions, func(r *theirRelay) {
			request, _ := r.first()
			r.answer(request, &dialects.Response{Result: status.NoMemory, Text: "why"})
		}, status.NoMemory},
		"a reply to something else": {allVersions, func(r *theirRelay) {
			request, _ := r.first()
			e := r.expect(request)
			e.Message = &dialects.CreateConnectionReply{}
			r.send(e)
		}, status.Unexpected},
		"a reply to another request": {allVersions, func(r *theirRelay) {
			request, reply := r.first()
			e := r.expect(request)
			r.send(&dialects.Envelope{ID: e.ID + 7, Correlation: e.Correlation + 7,
				Message: reply})
		}, status.Unexpected},
		"a storage without blocks": {allVersions[1:], func(r *theirRelay) {
			r.answer(&dialects.QueryStorage{}, &dialects.QueryStorageReply{TotalSize: 1 << 20})
		}, status.InvalidValue},
		"nonsense": {allVersions, func(r *theirRelay) {
			request, _ := r.first()
			r.expect(request)
			_ = r.connection.Send(r.ctx, make([]byte, 64))
		}, status.ConnectionReset},
		"the end": {allVersions, func(r *theirRelay) {
			request, _ := r.first()
			r.expect(request)
			r.leaves = true
		}, status.ConnectionReset},
		"the end before the consumers": {allVersions, func(r *theirRelay) {
			r.begin()
			r.leaves = true
		}, anyFailure},
		"a consumer less": {allVersions, func(r *theirRelay) {
			r.begin()
			r.connect(theirQueues - 1)
			r.leaves = true
		}, anyFailure},
	} {
		for _, v := range c.versions {
			t.Run(fmt.Sprintf("%s/%v", name, v), func(t *testing.T) {
				disk, err := client.Open(t.Context(), startTheirRelay(t, v, c.script))
				if err == nil {
					disk.Abort()
				}
				if err == nil || c.want != anyFailure && status.CodeOf(err) != c.want {
					t.Errorf("open returns %v, want %v", err, c.want)
				}
			})
		}
	}
}

// All clients wait at the same time.
func TestASilentRelayOfTheApplicationsIsLeft(t *testing.T) {
	var opening sync.WaitGroup
	for name, script := range map[string]func(r *theirRelay){
		"at once":           func(*theirRelay) {},
		"without consumers": func(r *theirRelay) { r.begin() },
		"at the start": func(r *theirRelay) {
			r.begin()
			r.connect(theirQueues)
		},
	} {
		for _, v := range allVersions {
			config := startTheirRelay(t, v, script)
			config.ControlTimeout = 5 * time.Second // for each step, which must not be slow
			opening.Go(func() {
				_, err := client.Open(t.Context(), config)
				if !errors.Is(err, status.TimeOut) {
					t.Errorf("silent %s, %v: open returns %v", name, v, err)
				}
			})
		}
	}
	opening.Wait()
}

func TestAResponseThatNobodyAskedForEndsTheSessionWithTheApplications(t *testing.T) {
	config := startTheirRelay(t, dialects.DOCA3_2, func(r *theirRelay) {
		r.start()
		message := r.request(0)
		iomsg.TurnIntoResult(message, status.Success)
		message[8] ^= 1 // of the transaction
		r.respond(0, message)
	})
	disk, err := client.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	result := carryOut(t, disk.Queue(0), client.Request{Type: client.Read, Length: testBlock})
	if result.Err() == nil || !errors.Is(disk.Err(), status.Unexpected) {
		t.Errorf("the result is %+v, and the volume fails with %v", result, disk.Err())
	}
	disk.Abort()
}

func TestWhatTheApplicationsLackIsRefused(t *testing.T) {
	for name, change := range map[string]func(*client.Config){
		"exclusive": func(c *client.Config) { c.Exclusive = true },
		"read-only": func(c *client.Config) { c.ReadOnly = true },
		"reconnect": func(c *client.Config) { c.Reconnect = &retry.Policy{} },
		"trace":     func(c *client.Config) { c.Tracer, c.TraceEvery = &trace.Tracer{}, 1 },
		"blocking methods in 2.10": func(c *client.Config) {
			c.Protocol, c.SyncDepth = dialects.DOCA2_10, 1
		},
	} {
		config := client.Config{Provider: emulated.New(emulated.Options{}),
			Protocol: dialects.DOCA3_2, Queues: 1, SyncDepth: -1}
		change(&config)
		if _, err := client.Open(t.Context(), config); !errors.Is(err, status.NotSupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := client.Open(t.Context(), client.Config{Provider: emulated.New(emulated.Options{}),
		Protocol: dialects.DOCA2_10, Queues: 1, SyncDepth: -1, MemorySize: 4096})
	if !errors.Is(err, status.InvalidValue) {
		t.Errorf("other memory than the buffers in 2.10: %v", err)
	}
	_, err = client.Describe(t.Context(), client.Config{
		Provider: emulated.New(emulated.Options{}), Protocol: dialects.DOCA3_2})
	if !errors.Is(err, status.NotSupported) {
		t.Errorf("describe: %v", err)
	}
	config := startTheirRelay(t, dialects.DOCA3_2, func(r *theirRelay) {
		r.answer(&dialects.QueryStorage{},
			&dialects.QueryStorageReply{TotalSize: 1 << 20, BlockSize: testBlock})
	})
	config.Provider = withoutExports{config.Provider}
	if _, err := client.Open(t.Context(), config); !errors.Is(err, status.NotSupported) {
		t.Errorf("a Comch provider without exports for programs written for DOCA: %v", err)
	}
}
