// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package dialects tests a target with relays of the DOCA storage applications, whose RDMA is that
// of the provider doca on the emulation of libdoca.
package dialects_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	rdmadoca "github.com/zc-relay/zc-relay/pkg/rdma/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	volumehook "github.com/zc-relay/zc-relay/pkg/volume/hook"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// theirRelay is a relay of the DOCA storage applications that a test plays step by step. Its
// memory stands for that of an initiator.
type theirRelay struct {
	*testing.T
	ctx       context.Context
	version   dialects.Version
	target    *target.Target
	transport controlmsg.Transport
	device    rdma.Device
	queue     rdma.CompletionQueue
	domain    rdma.ProtectionDomain
	memory    *memory.Region
	region    rdma.MemoryRegion
	id        uint32
	// connections holds those of each queue, by role.
	connections [theirQueues][2]rdma.Connection
}

var (
	theirVersions = []dialects.Version{dialects.DOCA2_10, dialects.DOCA3_0, dialects.DOCA3_1,
		dialects.DOCA3_2}
	of2_10 = theirVersions[:1]
	of3    = theirVersions[1:]
)

const (
	theirCount  = 4
	theirBuffer = 4096
	theirQueues = 2
	theirMemory = theirQueues * theirCount * theirBuffer
)

// startForTheirRelay starts a target that detects protocols, and connects a relay to it.
func startForTheirRelay(
	t *testing.T, v dialects.Version, change func(*target.Config),
) *theirRelay {
	t.Helper()
	err := libdoca.Configure(libdoca.Config{Directory: t.TempDir(),
		Report: func(m libdoca.Misuse) { t.Errorf("misuse of %s: %s", m.Function, m.Rule) }})
	if err != nil {
		t.Fatal(err)
	}
	provider := theirProvider()
	s := startTarget(t, func(config *target.Config) {
		config.RDMA, config.DetectProtocol = provider, true
		if change != nil {
			change(config)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	r := &theirRelay{T: t, ctx: ctx, version: v, target: s}
	stream, err := network.Kernel{}.Dial(ctx, netip.Addr{}, s.Address())
	if err != nil {
		t.Fatal(err)
	}
	r.transport = controlmsg.NewTCPTransport(stream, v.TCPConfig())
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.device, err = provider.Open(netip.MustParseAddr("127.0.0.1"))
	must(err)
	r.queue, err = r.device.NewCompletionQueue(64)
	must(err)
	r.domain, err = r.device.NewProtectionDomain()
	must(err)
	r.memory, err = memory.Alloc("initiator", theirMemory)
	must(err)
	r.region, err = r.domain.Register(r.memory, memory.RemoteRead|memory.RemoteWrite|
		memory.LocalWrite)
	must(err)
	t.Cleanup(func() {
		r.transport.Abort()
		for _, release := range []func() error{r.region.Deregister, r.memory.Close,
			r.domain.Close, r.queue.Close, r.device.Close} {
			if err := release(); err != nil {
				t.Error(err)
			}
		}
		cancel()
	})
	return r
}

// theirProvider is an RDMA provider that can connect to programs written for DOCA.
func theirProvider() rdma.Provider {
	return rdmadoca.New(rdmadoca.Options{Loader: doca.Resolved(libdoca.Lookup),
		Device: "03:00.0"})
}

func (r *theirRelay) export() []byte { return r.region.(rdma.ExportedRegion).Export() }

func (r *theirRelay) init() *dialects.InitStorage {
	return &dialects.InitStorage{Count: theirCount, BufferSize: theirBuffer, Cores: theirQueues,
		Export: r.export()}
}

// call sends a request and returns the answer.
func (r *theirRelay) call(m dialects.Message) (dialects.Message, error) {
	r.Helper()
	r.id++
	b, err := dialects.Encode(r.version, &dialects.Envelope{ID: r.id, Correlation: r.id,
		Message: m})
	if err != nil {
		r.Fatal(err)
	}
	if err := r.transport.Send(r.ctx, b); err != nil {
		return nil, err
	}
	if b, err = r.transport.Receive(r.ctx); err != nil {
		return nil, err
	}
	e, err := dialects.Decode(r.version, b)
	if err != nil {
		r.Fatal(err)
	}
	if e.Correlation != r.id || r.version != dialects.DOCA2_10 && e.ID != r.id {
		r.Errorf("request %d is answered as %+v", r.id, e)
	}
	if response, is := e.Message.(*dialects.Response); is && response.Result != status.Success {
		return response, response.Result
	}
	return e.Message, nil
}

func (r *theirRelay) mustCall(m dialects.Message) dialects.Message {
	r.Helper()
	reply, err := r.call(m)
	if err != nil {
		r.Fatalf("%s: %v: %+v", m.Name(), err, reply)
	}
	return reply
}

// connect connects one of a queue's RDMA connections, and leaves it idle.
func (r *theirRelay) connect(queue uint32, role dialects.Role) error {
	config := rdma.ConnectionConfig{Domain: r.domain, Queue: r.queue, SendRequests: 4,
		ReceiveRequests: 4, InboundReads: theirCount}
	if role == dialects.RoleControl {
		config.Receives = []rdma.ReceiveRequest{{Local: r.segment(messageReceived)}}
	}
	end, err := r.device.(rdma.DetailsDevice).Prepare(config)
	if err != nil {
		r.Fatal(err)
	}
	reply, err := r.call(&dialects.CreateConnection{Context: queue, Role: role,
		Details: end.Details()})
	if err != nil {
		return errors.Join(err, end.Discard())
	}
	theirs := reply.(*dialects.CreateConnectionReply)
	if theirs.Role != role || r.version != dialects.DOCA2_10 && theirs.Context != queue {
		r.Errorf("queue %d, role %d is answered as %+v", queue, role, theirs)
	}
	connection, err := end.Connect(theirs.Details)
	if err != nil {
		return err
	}
	r.connections[queue][role] = connection
	r.Cleanup(func() {
		connection.Close()
		completions := make([]rdma.Completion, 16)
		for n := 0; n == 0 || completions[n-1].Opcode != rdma.OpDisconnected; {
			n = r.queue.Poll(completions)
		}
	})
	return nil
}

// Where messages are in the memory.
const (
	messageSent     = 0
	messageReceived = iomsg.Size
)

// segment names a message in the memory.
func (r *theirRelay) segment(offset uint64) rdma.Segment {
	return rdma.Segment{Key: r.region.LocalKey(), Length: iomsg.Size,
		Address: r.region.Base() + offset}
}

// submit sends an IO message on a queue.
func (r *theirRelay) submit(queue int, message []byte) {
	r.Helper()
	copy(r.memory.Bytes()[messageSent:], message)
	connection := r.connections[queue][dialects.RoleControl]
	err := connection.PostSend([]rdma.SendRequest{{Opcode: rdma.OpSend,
		Local: r.segment(messageSent)}})
	if err != nil {
		r.Fatal(err)
	}
	connection.Flush()
}

// exchange sends an IO message on a queue, and returns the target's.
func (r *theirRelay) exchange(queue int, message []byte) []byte {
	r.Helper()
	r.submit(queue, message)
	connection := r.connections[queue][dialects.RoleControl]
	completions := make([]rdma.Completion, 1)
	for r.ctx.Err() == nil {
		if r.queue.Poll(completions) == 0 {
			time.Sleep(20 * time.Microsecond)
			continue
		}
		if completions[0].Status != rdma.StatusSuccess {
			r.Fatalf("completion %+v", completions[0])
		}
		if completions[0].Opcode != rdma.OpReceive {
			continue
		}
		answer := bytes.Clone(r.memory.Bytes()[messageReceived:][:iomsg.Size])
		err := connection.PostReceive([]rdma.ReceiveRequest{{Local: r.segment(messageReceived)}})
		if err != nil {
			r.Fatal(err)
		}
		connection.Flush()
		return answer
	}
	r.Fatal("the target does not answer")
	return nil
}

// Whatever a message says, the answer is the same message with another type and result.
func TestMessagesOfTheApplicationsAreChecked(t *testing.T) {
	r := startForTheirRelay(t, dialects.DOCA3_2, nil)
	r.begin()
	for name, c := range map[string]struct {
		ioType             iomsg.Type
		size               uint32
		requester, storage uint64
		want               status.Code
	}{
		"read":              {iomsg.Read, theirBuffer, theirBuffer, theirBuffer, status.Success},
		"write":             {iomsg.Write, theirBuffer, theirBuffer, 0, status.Success},
		"no such type":      {99, theirBuffer, theirBuffer, 0, status.InvalidValue},
		"stop of 2.10":      {iomsg.Stop, 0, 0, 0, status.InvalidValue},
		"flush of ours":     {iomsg.Flush, 0, 0, 0, status.InvalidValue},
		"nothing":           {iomsg.Read, 0, 0, 0, status.InvalidValue},
		"half a block":      {iomsg.Read, theirBuffer / 2, 0, 0, status.InvalidValue},
		"beyond memory":     {iomsg.Read, theirBuffer, theirMemory, 0, status.InvalidValue},
		"before memory":     {iomsg.Write, theirBuffer, 1<<64 - theirBuffer, 0, status.InvalidValue},
		"beyond the volume": {iomsg.Write, theirBuffer, 0, 1 << 40, status.InvalidValue},
		"too large":         {iomsg.Read, 1 << 30, 0, 0, status.TooBig},
	} {
		message := bytes.Repeat([]byte{0xee}, iomsg.Size) // what is not set is not initialized
		binary.BigEndian.PutUint32(message, uint32(c.ioType))
		binary.BigEndian.PutUint32(message[20:], c.size)
		binary.BigEndian.PutUint64(message[24:], c.requester)
		binary.BigEndian.PutUint64(message[32:], c.storage)
		want := bytes.Clone(message)
		iomsg.TurnIntoResult(want, c.want)
		if got := r.exchange(1, message); !bytes.Equal(got, want) {
			t.Errorf("%s: %x is answered as %x, want %x", name, message, got, want)
		}
	}
	r.mustCall(&dialects.StopStorage{})
	r.mustCall(&dialects.Shutdown{})
}

// A stop may take as long as the target's control timeout, and then fails.
func TestAStopFailsWhileIOIsInFlight(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:read:freeze")
	disk := volumehook.Wrap(volumetest.OpenMemory(t, "1MiB"), volumehook.Config{Injector: injector})
	r := startForTheirRelay(t, dialects.DOCA3_2, func(config *target.Config) {
		config.Volumes = map[string]target.Offer{"disk": {Volume: disk}}
		config.ControlTimeout = 5 * time.Second
	})
	r.begin()
	message := make([]byte, iomsg.Size)
	binary.BigEndian.PutUint32(message, uint32(iomsg.Read))
	binary.BigEndian.PutUint32(message[20:], theirBuffer)
	binary.BigEndian.PutUint64(message[24:], theirBuffer)
	r.submit(0, message)
	for injector.Rules()[0].Matches == 0 {
		time.Sleep(time.Millisecond)
	}
	if reply, err := r.call(&dialects.StopStorage{}); !errors.Is(err, status.TimeOut) {
		t.Errorf("stop with IO in flight: %v, %+v", err, reply)
	}
	injector.Release()
}

func TestAConversationWithARelayOfTheApplications(t *testing.T) {
	for i := range 2 * len(theirVersions) {
		v, detects := theirVersions[i/2], i%2 == 0
		t.Run(fmt.Sprintf("%v, detected: %t", v, detects), func(t *testing.T) {
			r := startForTheirRelay(t, v, func(config *target.Config) {
				injector, _ := faulttest.New(t, "rdma:any:trace")
				config.RDMA = hook.Wrap(config.RDMA, hook.Config{Injector: injector})
				if !detects {
					config.Protocol, config.DetectProtocol = v, false
				}
			})
			if v != dialects.DOCA2_10 {
				reply := r.mustCall(&dialects.QueryStorage{}).(*dialects.QueryStorageReply)
				if reply.TotalSize == 0 || reply.BlockSize != 4096 {
					t.Errorf("the storage is %+v", reply)
				}
			}
			r.begin()
			if v != dialects.DOCA2_10 {
				r.mustCall(&dialects.StopStorage{})
			}
			r.mustCall(&dialects.Shutdown{})
			if _, err := r.transport.Receive(r.ctx); !errors.Is(err, status.NotConnected) {
				t.Errorf("after the end the connection has %v", err)
			}
		})
	}
}

func TestOneTargetServesRelaysOfBothKinds(t *testing.T) {
	for _, v := range theirVersions {
		t.Run(v.String(), func(t *testing.T) {
			r := startForTheirRelay(t, v, nil)
			r.begin()
			ours := ourRelay(t, r.target.Address())
			defer ours.Close(nil)
			if err := openDisk(t, ours); err != nil {
				t.Errorf("our relay beside theirs: %v", err)
			}
			if v != dialects.DOCA2_10 {
				r.mustCall(&dialects.StopStorage{})
			}
			r.mustCall(&dialects.Shutdown{})
		})
	}
}

func TestSilentConnectionsOfNoKnownProtocolLockNoRelayOut(t *testing.T) {
	r := startForTheirRelay(t, dialects.DOCA3_2,
		func(config *target.Config) { config.MaxSessions = 4 })
	for range 40 {
		dial(t, r.target.Address())
	}
	ours := ourRelay(t, r.target.Address())
	defer ours.Close(nil)
	if err := openDisk(t, ours); err != nil {
		t.Errorf("our relay: %v", err)
	}
	r.transport.Abort() // it was silent, too
	r.transport = controlmsg.NewTCPTransport(dial(t, r.target.Address()), r.version.TCPConfig())
	r.mustCall(&dialects.QueryStorage{})
}

func TestSilentConnectionsOfNoKnownProtocolEndWithTheTarget(t *testing.T) {
	err := libdoca.Configure(libdoca.Config{Directory: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s := newTarget(t, func(config *target.Config) {
		config.RDMA, config.DetectProtocol = theirProvider(), true
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	silent, stalled := dial(t, s.Address()), dial(t, s.Address())
	if _, err := stalled.Write([]byte{0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	ourRelay(t, s.Address()).Close(nil) // the others have been accepted before
	cancel()
	if err := errors.Join(<-ended, s.Close()); err != nil {
		t.Error(err)
	}
	for what, stream := range map[string]network.Stream{"silent": silent, "stalled": stalled} {
		if said, _ := io.ReadAll(stream); len(said) > 0 {
			t.Errorf("the target says %x to a %s connection", said, what)
		}
	}
}

// In 3.0 and later releases the same bytes can mean different things.
func TestARequestThatFitsSeveralReleasesIsRejected(t *testing.T) {
	r := startForTheirRelay(t, dialects.DOCA3_0, nil)
	init := r.init()
	init.Cores = uint32(4 + len(init.Export)) // a length of what follows, in 3.2
	if _, err := r.call(init); !errors.Is(err, status.InvalidValue) {
		t.Errorf("the answer is %v", err)
	}
	r.mustCall(r.init())
}

func TestBeginningsOfMessagesEndTheirConnectionAlone(t *testing.T) {
	r := startForTheirRelay(t, dialects.DOCA3_2, nil)
	for _, beginning := range []string{"", "\x00", "\x00\x08\x00\x06", "\x00\x00\x00\x0c\x00",
		"\x00\x00\x00\x00\x00", "\x00\x00\x00\x04\x0a", "\x16\x03\x01\x02\x00"} {
		stream := dial(t, r.target.Address())
		if _, err := stream.Write([]byte(beginning)); err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := stream.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, stream); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection that said %x stays", beginning)
		}
	}
	r.mustCall(&dialects.QueryStorage{})
}

// After a failure other than that of the first steps, the session ends: the applications do not go
// back.
func TestRequestsOfTheApplicationsOutOfOrderAreRejected(t *testing.T) {
	for name, c := range map[string]struct {
		versions []dialects.Version
		before   func(r *theirRelay)
		request  func(r *theirRelay) dialects.Message
		want     status.Code
		ends     bool
	}{
		"start at once": {theirVersions, func(*theirRelay) {}, func(*theirRelay) dialects.Message {
			return &dialects.StartStorage{}
		}, status.Unexpected, false},
		"connect at once": {theirVersions, func(*theirRelay) {}, func(*theirRelay) dialects.Message {
			return &dialects.CreateConnection{Details: []byte("x")}
		}, status.Unexpected, false},
		"a reply": {theirVersions, func(*theirRelay) {}, func(*theirRelay) dialects.Message {
			return &dialects.CreateConnectionReply{Details: []byte("x")}
		}, status.Unexpected, false},
		"no memory": {theirVersions, func(*theirRelay) {}, func(r *theirRelay) dialects.Message {
			init := r.init()
			init.Export = []byte("not an export")
			return init
		}, status.InvalidValue, false},
		"no queues": {of3, func(*theirRelay) {}, func(r *theirRelay) dialects.Message {
			init := r.init()
			init.Cores = 0
			return init
		}, status.InvalidValue, false},
		"too many queues": {of3, func(*theirRelay) {}, func(r *theirRelay) dialects.Message {
			init := r.init()
			init.Cores = math.MaxUint32
			return init
		}, status.TooBig, false},
		"too deep": {of3, func(*theirRelay) {}, func(r *theirRelay) dialects.Message {
			init := r.init()
			init.Count = 1 << 31
			return init
		}, status.TooBig, false},
		"parts of buffers": {of2_10, func(*theirRelay) {},
			func(r *theirRelay) dialects.Message {
				init := r.init()
				init.Count = theirCount - 1
				return init
			}, status.InvalidValue, false},
		"start before connecting": {of2_10, func(r *theirRelay) { r.mustCall(r.init()) },
			func(*theirRelay) dialects.Message { return &dialects.StartStorage{} },
			status.Unexpected, true},
		"connect without connections": {of2_10, func(r *theirRelay) { r.mustCall(r.init()) },
			func(*theirRelay) dialects.Message { return &dialects.StartConnections{} },
			status.BadState, true},
		"start twice": {theirVersions, func(r *theirRelay) { r.begin() },
			func(*theirRelay) dialects.Message { return &dialects.StartStorage{} },
			status.Unexpected, true},
		"query while running": {of3, func(r *theirRelay) { r.begin() },
			func(*theirRelay) dialects.Message { return &dialects.QueryStorage{} },
			status.Unexpected, true},
		"stop at once": {of3, func(*theirRelay) {}, func(*theirRelay) dialects.Message {
			return &dialects.StopStorage{}
		}, status.Unexpected, false},
		"stop twice": {of3, func(r *theirRelay) {
			r.begin()
			r.mustCall(&dialects.StopStorage{})
		}, func(*theirRelay) dialects.Message { return &dialects.StopStorage{} },
			status.Unexpected, true},
		"init twice": {theirVersions, func(r *theirRelay) { r.mustCall(r.init()) },
			func(r *theirRelay) dialects.Message { return r.init() }, status.Unexpected, true},
		"start without connections": {of3, func(r *theirRelay) { r.mustCall(r.init()) },
			func(*theirRelay) dialects.Message { return &dialects.StartStorage{} },
			status.BadState, true},
		"a queue too many": {of3, func(r *theirRelay) { r.mustCall(r.init()) },
			func(*theirRelay) dialects.Message {
				return &dialects.CreateConnection{Context: theirQueues, Details: []byte("x")}
			}, status.InvalidValue, true},
		"a connection twice": {theirVersions, func(r *theirRelay) {
			r.mustCall(r.init())
			if err := r.connect(0, dialects.RoleData); err != nil {
				r.Fatal(err)
			}
		}, func(*theirRelay) dialects.Message {
			return &dialects.CreateConnection{Details: []byte("x")}
		}, status.InvalidValue, true},
		"details of nothing": {theirVersions, func(r *theirRelay) { r.mustCall(r.init()) },
			func(*theirRelay) dialects.Message {
				return &dialects.CreateConnection{Details: []byte("x")}
			}, status.InvalidValue, true},
	} {
		for _, v := range c.versions {
			t.Run(fmt.Sprintf("%s/%v", name, v), func(t *testing.T) {
				r := startForTheirRelay(t, v, nil)
				c.before(r)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				reply, err := r.call(c.request(r))
				if !errors.Is(err, c.want) {
					t.Fatalf("the answer is %+v, %v, want %v", reply, err, c.want)
				}
				runtime.ReadMemStats(&after)
				if size := after.TotalAlloc - before.TotalAlloc; size > 1<<30 {
					t.Errorf("the target has allocated %d bytes for it", size)
				}
				if c.ends {
					_, err := r.transport.Receive(r.ctx)
					if !errors.Is(err, status.NotConnected) {
						t.Errorf("after that the connection has %v", err)
					}
					return
				}
				r.mustCall(r.init())
				r.mustCall(&dialects.Shutdown{})
			})
		}
	}
}

// Relays of the applications are as hostile as any: nonsense ends their connection alone.
func TestNonsenseInsteadOfTheApplicationsIsLeft(t *testing.T) {
	r := startForTheirRelay(t, dialects.DOCA3_2, nil)
	if err := r.transport.Send(r.ctx, make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	if message, err := r.transport.Receive(r.ctx); err == nil {
		t.Errorf("the target answers %x", message)
	}
}

// Relays of the applications connect before they have an initiator.
func TestARelayOfTheApplicationsMayWaitForItsInitiator(t *testing.T) {
	const timeout = 500 * time.Millisecond
	r := startForTheirRelay(t, dialects.DOCA3_2,
		func(config *target.Config) { config.ControlTimeout = timeout })
	time.Sleep(2 * timeout)
	r.mustCall(&dialects.QueryStorage{})
}

// begin takes all steps until the data path runs.
func (r *theirRelay) begin() {
	r.Helper()
	r.mustCall(r.init())
	for queue := range uint32(theirQueues) {
		for _, role := range []dialects.Role{dialects.RoleControl, dialects.RoleData} {
			if err := r.connect(queue, role); err != nil {
				r.Fatalf("queue %d, role %d: %v", queue, role, err)
			}
		}
	}
	if r.version == dialects.DOCA2_10 {
		r.mustCall(&dialects.StartConnections{})
	}
	r.mustCall(&dialects.StartStorage{})
}

// A relay of 2.10 that has stopped the data path by an IO message has to end the session in the
// target's control timeout, which begins then and not before.
func TestTheTimeToEndBeginsWhenARelayOf2_10Stops(t *testing.T) {
	const timeout = 5 * time.Second
	r := startForTheirRelay(t, dialects.DOCA2_10,
		func(config *target.Config) { config.ControlTimeout = timeout })
	r.begin()
	stop := make([]byte, iomsg.Size)
	binary.BigEndian.PutUint32(stop, uint32(iomsg.Stop))
	stopped := time.Now()
	if got := r.exchange(0, stop); !bytes.Equal(got, stop) {
		t.Errorf("stop is answered as %x", got)
	}
	if _, err := r.transport.Receive(r.ctx); !errors.Is(err, status.NotConnected) {
		t.Errorf("the connection has %v", err)
	}
	if took := time.Since(stopped); took < timeout {
		t.Errorf("the session has ended after %v", took)
	}
}
