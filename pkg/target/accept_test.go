// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// quiet keeps control connections alive however slow the machine is.
var quiet = controlmsg.KeepAliveConfig{Interval: time.Second, DeadAfter: testkit.Patience}

// startTarget starts a target with the volume "disk", which runs until the test ends.
func startTarget(t *testing.T, configure func(*target.Config)) *target.Target {
	t.Helper()
	s := newTarget(t, configure)
	serve(t, s)
	return s
}

// newTarget is startTarget without the start.
func newTarget(t *testing.T, configure func(*target.Config)) *target.Target {
	t.Helper()
	v := volumetest.OpenMemory(t, "1MiB")
	config := target.Config{
		RDMA: iwarp.New(iwarp.Options{}), Listen: loopback, RDMAListen: loopback,
		Volumes: map[string]target.Offer{"disk": {Volume: v}}, CPUs: []int{datapath.NoCPU},
		ControlTimeout: testkit.Patience, KeepAlive: quiet, SessionRate: 1e6,
	}
	configure(&config)
	s, err := target.New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// doomedProvider is an RDMA provider whose listeners fail when their device is removed.
type doomedProvider struct {
	rdma.Provider
	removed context.Context
}

type doomedDevice struct {
	rdma.Device
	removed context.Context
}

type doomedListener struct {
	rdma.Listener
	removed context.Context
}

func (p doomedProvider) Open(address netip.Addr) (rdma.Device, error) {
	device, err := p.Provider.Open(address)
	return doomedDevice{device, p.removed}, err
}

func (d doomedDevice) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	listener, err := d.Device.Listen(ctx, address)
	return doomedListener{listener, d.removed}, err
}

func (l doomedListener) Accept(ctx context.Context) (rdma.Request, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.removed, cancel)()
	request, err := l.Listener.Accept(ctx)
	if l.removed.Err() != nil {
		err = status.Errorf(status.Shutdown, "the device has been removed")
	}
	return request, err
}

// A target that no relay can reach any more ends, so that it is started again with the device.
func TestATargetEndsWithItsRDMADevice(t *testing.T) {
	removed, remove := context.WithCancel(t.Context())
	s := newTarget(t, func(config *target.Config) {
		config.RDMA = doomedProvider{config.RDMA, removed}
	})
	ended := make(chan error)
	go func() { ended <- s.Run(t.Context()) }()
	remove()
	if err := testkit.Receive(t, "the end", ended); !errors.Is(err, status.Shutdown) ||
		status.CodeOf(err) != status.NotConnected {
		t.Errorf("the target ends with %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// serve runs a target until the test ends, and closes it.
func serve(t *testing.T, s *target.Target) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// dial connects to address. The end of the test closes the connection.
func dial(t *testing.T, address netip.AddrPort) network.Stream {
	t.Helper()
	stream, err := network.Kernel{}.Dial(t.Context(), netip.Addr{}, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	return stream
}

// relayTo returns a relay's control connection, after hello and open_volume. secure may be nil.
func relayTo(t *testing.T, address netip.AddrPort, secure *tls.Config) (
	*controlmsg.Requester, error) {
	t.Helper()
	r, err := relayWithoutVolume(t, address, secure)
	if err != nil {
		return r, err
	}
	return r, openVolume(t, r, "disk")
}

// relayWithoutVolume returns a relay's control connection after hello. secure may be nil.
func relayWithoutVolume(t *testing.T, address netip.AddrPort, secure *tls.Config) (
	*controlmsg.Requester, error) {
	t.Helper()
	stream := dial(t, address)
	transport := controlmsg.NewTCPTransport(stream, controlmsg.TCPConfig{})
	if secure != nil {
		var err error
		transport, err = controlmsg.NewTLSClient(t.Context(), stream, secure,
			controlmsg.TCPConfig{})
		if err != nil {
			return nil, err
		}
	}
	var conn atomic.Pointer[lease.Connection]
	var r *controlmsg.Requester
	r = controlmsg.NewRequester(transport, controlmsg.EndpointConfig{Role: controlmsg.RoleRelay,
		Timeout: testkit.Patience, KeepAlive: quiet,
		Announce: func(m *controlmsg.KeepAlive) { m.Answer = conn.Load().AnswerNow() },
		OnKeepAlive: func(m *controlmsg.KeepAlive) error {
			conn.Load().Hear(&m.Question)
			r.Announce()
			return nil
		}})
	t.Cleanup(func() { r.Close(nil) })
	hello, err := r.Greet(t.Context())
	conn.Store(lease.NewLessee(nil, func() {}).Connect(hello.Process, nil,
		time.Duration(hello.LeaseMs)*time.Millisecond, hello.Question, func() {}))
	answering.Store(r, conn.Load())
	return r, err
}

// answering has a *lease.Connection for the requesters of relayWithoutVolume.
var answering sync.Map

// takePart makes a session depend on the answers that its relay gives.
func takePart(r *controlmsg.Requester, m *controlmsg.ConfigureDataPath) {
	value, _ := answering.Load(r)
	conn := value.(*lease.Connection)
	m.Session = conn.Begin(lease.Place{}).Number()
	m.Answer = conn.AnswerNow()
}

func openVolume(t *testing.T, r *controlmsg.Requester, name string) error {
	_, err := r.Call(t.Context(), &controlmsg.OpenVolume{Volume: name})
	return err
}

// isAborted waits until the peer has reset or closed a connection, or until it has been quiet for
// the given time.
func isAborted(t *testing.T, stream network.Stream, wait time.Duration) bool {
	t.Helper()
	if err := stream.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	_, err := stream.Read(make([]byte, 1))
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}

func TestSilentConnectionsLockNoRelayOut(t *testing.T) {
	const maxSessions, silent = 16, 300
	authority := mutualtlstest.NewAuthority(t)
	load := func(names ...string) *mutualtls.Credentials {
		c, err := mutualtls.Load(authority.Write(t.TempDir(), names), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, c := range map[string]struct {
		credentials *mutualtls.Credentials
		relay       *tls.Config
	}{
		"in plain text": {},
		"with TLS": {load("target.test", "127.0.0.1"),
			load("relay.test").Client("127.0.0.1")},
	} {
		t.Run(name, func(t *testing.T) {
			s := startTarget(t, func(config *target.Config) {
				config.MaxSessions, config.TLS = maxSessions, c.credentials
			})
			established, err := relayTo(t, s.Address(), c.relay)
			if err != nil {
				t.Fatal(err)
			}
			var attackers []network.Stream
			for range silent {
				attackers = append(attackers, dial(t, s.Address()))
			}
			for i := range maxSessions - 1 {
				if _, err := relayTo(t, s.Address(), c.relay); err != nil {
					t.Fatalf("relay %d: %v", i, err)
				}
			}
			if _, err := relayTo(t, s.Address(), c.relay); !errors.Is(err, status.Full) {
				t.Errorf("a session beyond the limit: %v", err)
			}
			if err := openVolume(t, established, "disk"); err != nil {
				t.Errorf("the session that was there before: %v", err)
			}
			if got := s.Sessions(); got != maxSessions {
				t.Errorf("%d sessions, want %d", got, maxSessions)
			}
			if !isAborted(t, attackers[0], testkit.Patience) {
				t.Error("the oldest silent connection stays")
			}
			if isAborted(t, attackers[silent-1], time.Millisecond) {
				t.Error("the latest silent connection was aborted")
			}
		})
	}
}

// greet returns a control connection after hello. It tries again until it is fast enough for the
// target's timeout.
func greet(t *testing.T, address netip.AddrPort) *controlmsg.Requester {
	t.Helper()
	for begun := time.Now(); ; {
		r := controlmsg.NewRequester(
			controlmsg.NewTCPTransport(dial(t, address), controlmsg.TCPConfig{}),
			controlmsg.EndpointConfig{Role: controlmsg.RoleRelay, Timeout: testkit.Patience})
		_, err := r.Greet(t.Context())
		if err == nil {
			return r
		}
		r.Close(nil)
		if !errors.Is(err, status.TimeOut) || time.Since(begun) > testkit.Patience {
			t.Fatal(err)
		}
	}
}

func TestARelayThatOpensNoVolumeIsEnded(t *testing.T) {
	s := startTarget(t, func(config *target.Config) {
		config.ControlTimeout = 200 * time.Millisecond
	})
	r := greet(t, s.Address())
	defer func() { r.Close(nil) }()
	for begun := time.Now(); errors.Is(openVolume(t, r, "none"), status.NotFound); {
		if time.Since(begun) > testkit.Patience {
			t.Fatal("a session that opens no volume goes on")
		}
	}
	<-r.Done()
	if err := r.Err(); !errors.Is(err, status.TimeOut) ||
		!strings.Contains(err.Error(), "has not opened a volume") {
		t.Errorf("the session ended with %v", err)
	}
}

func TestBareHellosLockNoRelayOut(t *testing.T) {
	const maxSessions = 4
	s := startTarget(t, func(config *target.Config) { config.MaxSessions = maxSessions })
	established, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var attackers []*controlmsg.Requester
	for range 4 * maxSessions {
		r := greet(t, s.Address())
		defer r.Close(nil)
		attackers = append(attackers, r)
	}
	for i := range maxSessions - 1 {
		if _, err := relayTo(t, s.Address(), nil); err != nil {
			t.Fatalf("relay %d: %v", i, err)
		}
	}
	if _, err := relayTo(t, s.Address(), nil); !errors.Is(err, status.Full) {
		t.Errorf("a session beyond the limit: %v", err)
	}
	if err := openVolume(t, established, "disk"); err != nil {
		t.Errorf("the session that was there before: %v", err)
	}
	for _, r := range attackers {
		<-r.Done()
	}
	if got := s.Sessions(); got != maxSessions {
		t.Errorf("%d sessions, want %d", got, maxSessions)
	}
}

// scarce is a network whose listener has as many descriptors as the test allows.
type scarce struct {
	network.Kernel
	free chan struct{}
}

type scarceListener struct {
	network.Listener
	free chan struct{}
}

type scarceStream struct {
	network.Stream
	release func()
}

func (s scarce) Listen(ctx context.Context, address netip.AddrPort) (network.Listener, error) {
	listener, err := s.Kernel.Listen(ctx, address)
	return scarceListener{listener, s.free}, err
}

func (l scarceListener) Accept() (network.Stream, error) {
	select {
	case <-l.free:
	default:
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	stream, err := l.Listener.Accept()
	if err != nil {
		l.free <- struct{}{}
		return nil, err
	}
	release := sync.OnceFunc(func() { l.free <- struct{}{} })
	return scarceStream{stream, release}, nil
}

func (s scarceStream) Close() error {
	defer s.release()
	return s.Stream.Close()
}

func TestSilentConnectionsGiveUpTheirDescriptors(t *testing.T) {
	const descriptors = 40
	free := make(chan struct{}, descriptors)
	for range descriptors {
		free <- struct{}{}
	}
	s := startTarget(t, func(config *target.Config) { config.Network = scarce{free: free} })
	for range 2 * descriptors {
		dial(t, s.Address())
	}
	for range 3 {
		if _, err := relayTo(t, s.Address(), nil); err != nil {
			t.Fatal(err)
		}
	}
}
