// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// proxy forwards the control connections between a relay and its target, and shows the test every
// message.
type proxy struct {
	t        *testing.T
	listener net.Listener
	target   netip.AddrPort
	running  sync.WaitGroup

	mu sync.Mutex
	// request sees the relay's messages, and reply the target's. They return the message to
	// forward, nil to cut the connection.
	request, reply func(*controlmsg.Envelope) *controlmsg.Envelope
}

func startProxy(t *testing.T, target netip.AddrPort) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", loopback.String())
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, listener: listener, target: target}
	p.running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target.String())
			if err != nil {
				_ = near.Close()
				continue
			}
			p.running.Go(func() {
				p.forward(near, far,
					func(e *controlmsg.Envelope) *controlmsg.Envelope { return p.show(e, false) })
			})
			p.running.Go(func() {
				p.forward(far, near,
					func(e *controlmsg.Envelope) *controlmsg.Envelope { return p.show(e, true) })
			})
		}
	})
	return p
}

func (p *proxy) show(e *controlmsg.Envelope, isReply bool) *controlmsg.Envelope {
	p.mu.Lock()
	watch := p.request
	if isReply {
		watch = p.reply
	}
	p.mu.Unlock()
	if watch == nil {
		return e
	}
	return watch(e)
}

// watch sets what sees the messages from now on.
func (p *proxy) watch(request, reply func(*controlmsg.Envelope) *controlmsg.Envelope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.request, p.reply = request, reply
}

func (p *proxy) forward(from, to net.Conn, watch func(*controlmsg.Envelope) *controlmsg.Envelope) {
	defer from.Close()
	defer to.Close()
	for {
		var length [4]byte
		if _, err := io.ReadFull(from, length[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(length[:]))
		if _, err := io.ReadFull(from, b); err != nil {
			return
		}
		e, err := controlmsg.Decode(b)
		if err != nil {
			p.t.Errorf("proxy: %v", err)
			return
		}
		if e = watch(e); e == nil {
			return
		}
		if b, err = controlmsg.Encode(e); err != nil {
			p.t.Errorf("proxy: %v", err)
			return
		}
		frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

// chain is a client without rules, in front of a relay, a proxy and a target.
type chain struct {
	channel    relay.ChannelConfig
	t          *testing.T
	options    chainOptions
	provider   comch.Provider // of the client
	target     *target.Target
	volume     volume.Volume
	proxy      *proxy
	relay      *relay.Relay
	stopRelay  func()
	connection comch.Connection
	requester  *controlmsg.Requester
	hello      controlmsg.HelloReply // to the client
	// consumer and memory are set by session.
	consumer comch.Consumer
	memory   *memory.Region
}

// startChain returns a chain whose relay is ready, so that only sessions talk to the target from
// now on.
func startChain(t *testing.T) *chain {
	t.Helper()
	c := startChainWith(t, chainOptions{})
	c.awaitReady()
	return c
}

// chainOptions changes parts of a chain. The zero value changes nothing.
type chainOptions struct {
	relayPolicy, targetPolicy progress.Policy
	rdma                      rdma.Provider   // of the relay
	network                   network.Network // the same; nil for that of this machine
	logger                    *zap.Logger     // the same
	ioTimeout, drainTimeout   retry.Bound     // the same
	// comch is the relay's provider, and hostComch the client's; nil for one of both.
	comch, hostComch comch.Provider
	hookTransport    func(controlmsg.Transport) controlmsg.Transport // of the relay
	clock            lease.Clock                                     // of both machines
	lease            time.Duration
	controlTimeout   time.Duration                     // of all; 0 means the defaults
	disk             func(volume.Volume) volume.Volume // what the target serves; nil for the same
	others           []*fakeTarget                     // further targets of the channel
}

func startChainWith(t *testing.T, options chainOptions) *chain {
	t.Helper()
	v := volumetest.OpenMemory(t, "1MiB")
	if options.disk != nil {
		v = options.disk(v)
	}
	storage, err := target.New(t.Context(), target.Config{
		RDMA: iwarp.New(iwarp.Options{}), Listen: loopback, RDMAListen: loopback,
		Volumes: map[string]target.Offer{"disk": {Volume: v}}, CPUs: []int{datapath.NoCPU},
		Policy: options.targetPolicy, Lease: options.lease, Clock: options.clock,
		ControlTimeout: options.controlTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, storage.Run, storage.Close)
	c := &chain{t: t, options: options, target: storage, volume: v,
		proxy: startProxy(t, storage.Address())}
	t.Cleanup(c.proxy.running.Wait)
	t.Cleanup(func() { _ = c.proxy.listener.Close() })
	c.startRelay(relay.ChannelConfig{
		Targets: append([]netip.AddrPort{
			netip.MustParseAddrPort(c.proxy.listener.Addr().String())},
			addressesOf(options.others)...),
		IOTimeout: options.ioTimeout, ControlTimeout: options.controlTimeout, Reconnect: quickly,
	})
	c.connect()
	return c
}

// startRelay starts a relay with one channel, which runs until the test ends.
func (c *chain) startRelay(channel relay.ChannelConfig) {
	c.t.Helper()
	own := c.options.comch
	if c.provider = c.options.hostComch; own == nil {
		own = emulated.New(emulated.Options{Directory: filepath.Join(c.t.TempDir(), "comch")})
		c.provider = own
	}
	channel.ChannelID = relay.ChannelID{
		Device: emulated.DefaultDevice, Representor: emulated.DefaultRepresentor,
		Name: client.DefaultChannelName,
	}
	channel.Volume = "disk"
	c.channel = channel
	provider := c.options.rdma
	if provider == nil {
		provider = iwarp.New(iwarp.Options{})
	}
	var err error
	c.relay, err = relay.New(c.t.Context(), relay.Config{
		Comch: own, RDMA: provider, CPUs: []int{datapath.NoCPU},
		Policy: c.options.relayPolicy, Network: c.options.network, Logger: c.options.logger,
		HookTransport: c.options.hookTransport, Clock: c.options.clock,
		Settings: relay.Settings{Channels: []relay.ChannelConfig{channel},
			DrainTimeout: c.options.drainTimeout},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.stopRelay = run(c.t, c.relay.Run, c.relay.Close)
}

// connect connects a client to the relay, in place of the former one if there is one.
func (c *chain) connect() {
	c.t.Helper()
	var err error
	c.connection, err = c.provider.Connect(c.t.Context(),
		comch.ClientConfig{Device: emulated.DefaultHostDevice, Name: client.DefaultChannelName})
	if err != nil {
		c.t.Fatal(err)
	}
	requester := controlmsg.NewRequester(controlmsg.NewComchTransport(c.connection),
		controlmsg.EndpointConfig{Role: controlmsg.RoleInitiator,
			Timeout: c.options.controlTimeout})
	c.requester = requester
	c.t.Cleanup(func() { requester.Close(nil) })
	if c.hello, err = c.requester.Greet(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// run runs a service until the test ends or stop is called, and closes it.
func run(
	t *testing.T, service func(context.Context) error, closeService func() error,
) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := service(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := closeService(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// clientMemory is how many bytes the client exports.
const clientMemory = 1 << 20

// session returns the client's requests of one session, after hello.
func (c *chain) session() []controlmsg.Message {
	c.t.Helper()
	region, err := memory.Alloc("client", clientMemory)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = region.Close() })
	c.memory = region
	access := memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite
	descriptor, err := c.connection.ExportMemory(c.t.Context(), region, access)
	if err != nil {
		c.t.Fatal(err)
	}
	consumer, err := c.connection.NewConsumer(c.t.Context(), comch.ConsumerConfig{Receives: 8,
		MemorySize: 512})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = consumer.Close() })
	c.consumer = consumer
	return []controlmsg.Message{
		&controlmsg.OpenVolume{},
		&controlmsg.ConfigureDataPath{
			QueueCount: 1, Depth: 4, BufferSize: 4096, ClientInstance: [16]byte{7}, Epoch: 1,
			Export: controlmsg.Export{Access: access, Length: region.Len(), Descriptor: descriptor},
		},
		&controlmsg.StartDataPathConnections{ConsumerIDs: []uint32{uint32(consumer.ID())}},
		&controlmsg.StartStorage{},
		&controlmsg.DestroyObjects{},
	}
}

func (c *chain) call(m controlmsg.Message) error {
	_, err := c.requester.Call(c.t.Context(), m)
	return err
}

// behalf lists the requests to the target, and the client's requests during which the relay may
// send them. It may send others at any time.
var behalf = map[controlmsg.Kind]controlmsg.Kind{
	controlmsg.KindConfigureDataPath:        controlmsg.KindConfigureDataPath,
	controlmsg.KindCreateRDMAConnection:     controlmsg.KindStartDataPathConnections,
	controlmsg.KindStartDataPathConnections: controlmsg.KindStartDataPathConnections,
	controlmsg.KindStartStorage:             controlmsg.KindStartStorage,
}

func TestARelayActsOnlyForItsClientAndPromisesOnlyWhatTheTargetHas(t *testing.T) {
	c := startChain(t)
	for i, request := range c.session() {
		held, release := make(chan struct{}), make(chan struct{})
		hold := sync.OnceFunc(func() {
			close(held)
			<-release
		})
		c.proxy.watch(func(e *controlmsg.Envelope) *controlmsg.Envelope {
			if want, bound := behalf[e.Message.Kind()]; bound && want != request.Kind() {
				t.Errorf("the target was sent %v during the client's %v", e.Message.Kind(),
					request.Kind())
			}
			return e
		}, func(e *controlmsg.Envelope) *controlmsg.Envelope {
			if e.Message.Kind() == request.Kind()+1 {
				hold()
			}
			return e
		})
		answered := make(chan error, 1)
		go func() { answered <- c.call(request) }()
		<-held
		select {
		case err := <-answered:
			t.Errorf("%v was answered before the target's reply (%v)", request.Kind(), err)
		case <-time.After(20 * time.Millisecond):
		}
		close(release)
		if err := <-answered; err != nil {
			t.Fatalf("request %d, %v: %v", i, request.Kind(), err)
		}
	}
}

func TestTheTargetsFailureIsTheClients(t *testing.T) {
	for failing := range 4 { // after destroy_objects the target closes, and has nothing left
		c := startChain(t)
		requests := c.session()
		for _, request := range requests[:failing] {
			if err := c.call(request); err != nil {
				t.Fatal(err)
			}
		}
		request := requests[failing]
		c.proxy.watch(nil, func(e *controlmsg.Envelope) *controlmsg.Envelope {
			if e.Message.Kind() == request.Kind()+1 {
				e.Message = &controlmsg.Error{Code: status.IOFailed, Phase: controlmsg.PhaseFailed,
					Text: "made up"}
			}
			return e
		})
		if err := c.call(request); !errors.Is(err, status.IOFailed) {
			t.Errorf("%v, failed by the target: %v", request.Kind(), err)
		}
	}
}

func TestTheTargetIsAskedForNothingBeforeTheClientAsks(t *testing.T) {
	c := startChain(t)
	if err := c.call(&controlmsg.OpenVolume{}); err != nil {
		t.Fatal(err)
	}
	c.proxy.watch(func(e *controlmsg.Envelope) *controlmsg.Envelope {
		switch kind := e.Message.Kind(); kind {
		case controlmsg.KindKeepAlive, controlmsg.KindDestroyObjects, controlmsg.KindError:
		default:
			t.Errorf("the target was sent %v", kind)
		}
		return e
	}, nil)
	time.Sleep(50 * time.Millisecond)
	if err := c.call(&controlmsg.DestroyObjects{}); err != nil {
		t.Errorf("destroy_objects at any time: %v", err)
	}
}

func TestAnExportNeedsTheRightsOfTheRelayForThoseOfTheTarget(t *testing.T) {
	for access, accepted := range map[memory.Access]bool{
		memory.RemoteWrite | memory.PCIWrite:                                        true,
		memory.RemoteRead | memory.PCIRead:                                          true,
		memory.PCIRead | memory.PCIWrite:                                            true,
		memory.RemoteWrite | memory.PCIRead:                                         false,
		memory.RemoteRead | memory.PCIWrite:                                         false,
		memory.RemoteRead | memory.RemoteWrite | memory.PCIRead:                     false,
		memory.RemoteRead | memory.RemoteWrite | memory.PCIRead | memory.LocalWrite: false,
	} {
		c := startChain(t)
		requests := c.session()
		configure := requests[1].(*controlmsg.ConfigureDataPath)
		granted := configure.Export.Access
		configure.Export.Access = access
		if err := c.call(requests[0]); err != nil {
			t.Fatal(err)
		}
		err := c.call(configure)
		if accepted && err != nil || !accepted && !errors.Is(err, status.InvalidValue) {
			t.Errorf("an export with access %#x: %v", access, err)
		}
		if accepted {
			continue
		}
		configure.Export.Access = granted
		if err := c.call(configure); err != nil {
			t.Errorf("with other rights after access %#x: %v", access, err)
		}
	}
}

func TestAnExportShorterThanAnnouncedIsRejected(t *testing.T) {
	c := startChain(t)
	requests := c.session()
	configure := requests[1].(*controlmsg.ConfigureDataPath)
	if err := c.call(requests[0]); err != nil {
		t.Fatal(err)
	}
	length := configure.Export.Length
	configure.Export.Length += 4096
	if err := c.call(configure); !errors.Is(err, status.InvalidValue) {
		t.Errorf("an export of %d bytes, announced as %d: %v", length, configure.Export.Length, err)
	}
	configure.Export.Length = length
	if err := c.call(configure); err != nil {
		t.Errorf("with the right length: %v", err)
	}
}

func TestStagingOfTheWrongSizeIsRejected(t *testing.T) {
	for _, change := range []uint64{1, ^uint64(0)} {
		c := startChain(t)
		requests := c.session()
		c.proxy.watch(nil, func(e *controlmsg.Envelope) *controlmsg.Envelope {
			if reply, ok := e.Message.(*controlmsg.CreateRDMAConnectionReply); ok &&
				reply.Staging != nil {
				reply.Staging.Length += change
			}
			return e
		})
		for _, request := range requests[:2] {
			if err := c.call(request); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.call(requests[2]); !errors.Is(err, status.Unexpected) {
			t.Errorf("staging of %+d bytes: %v", int64(change), err)
		}
	}
}

func TestATargetThatIsLostHasNothingLeftToDestroy(t *testing.T) {
	for _, last := range []controlmsg.Kind{controlmsg.KindStop, controlmsg.KindDestroyObjects} {
		c := startChain(t)
		requests := c.session()
		for _, request := range requests[:len(requests)-1] {
			if err := c.call(request); err != nil {
				t.Fatal(err)
			}
		}
		c.proxy.watch(func(e *controlmsg.Envelope) *controlmsg.Envelope {
			if e.Message.Kind() == last {
				return nil
			}
			return e
		}, nil)
		if err := c.call(&controlmsg.DestroyObjects{}); err != nil {
			t.Errorf("destroy_objects while %v loses the target: %v", last, err)
		}
	}
}

func TestAReconfigurationBeforeRunWaitsForIt(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx  context.Context
		runs bool
		want error
	}{
		"the relay runs later": {t.Context(), true, nil},
		"the relay never runs": {ended, false, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := relay.New(t.Context(), relay.Config{
				Comch: emulated.New(emulated.Options{
					Directory: filepath.Join(t.TempDir(), "comch")}),
				RDMA: iwarp.New(iwarp.Options{}), CPUs: []int{datapath.NoCPU},
			})
			if err != nil {
				t.Fatal(err)
			}
			reconfigured := make(chan error, 1)
			go func() { reconfigured <- r.Reconfigure(c.ctx, relay.Settings{}) }()
			if c.runs {
				run(t, r.Run, r.Close)
			} else {
				t.Cleanup(func() {
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			if err := <-reconfigured; !errors.Is(err, c.want) {
				t.Errorf("the reconfiguration ended with %v, want %v", err, c.want)
			}
		})
	}
}

func TestASilentClientIsToldWhyItsConnectionEnds(t *testing.T) {
	c := &chain{t: t}
	c.startRelay(relay.ChannelConfig{ControlTimeout: 10 * time.Millisecond,
		Targets: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}})
	for range 50 {
		connection, err := c.provider.Connect(t.Context(),
			comch.ClientConfig{Device: emulated.DefaultHostDevice, Name: client.DefaultChannelName})
		if err != nil {
			t.Fatal(err)
		}
		silent := controlmsg.NewRequester(controlmsg.NewComchTransport(connection),
			controlmsg.EndpointConfig{Role: controlmsg.RoleInitiator})
		<-silent.Done()
		if err := silent.Err(); err == nil || !strings.Contains(err.Error(), "no request within") {
			t.Errorf("the client is told %v", err)
		}
		silent.Close(nil)
	}
}
