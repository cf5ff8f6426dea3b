// SPDX-License-Identifier: Apache-2.0

// Package target is the program on the storage node. It serves volumes, accepts control connections
// of relays over TCP, and hands their queues to data-path workers, which move the data by one-sided
// RDMA.
package target

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/epoch"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// Defaults of Config.
const (
	DefaultControlTimeout = 10 * time.Second
	DefaultDrainTimeout   = 5 * time.Second
	DefaultMaxSessions    = 1024
	DefaultSessionRate    = 500
	DefaultStagingLimit   = 8 << 30
)

// maxClientInstances bounds the client instances whose epochs are remembered.
const maxClientInstances = 4096

// defaultReleaseTimeout bounds the release of a session. Volume IO may take long on a failing disk,
// and its memory must not be freed before it ends.
const defaultReleaseTimeout = time.Minute

const shuttingDown = "the target is shutting down (drain)"

var errShuttingDown = status.Errorf(status.Shutdown, shuttingDown)

// Config configures a target. RDMA, Listen, RDMAListen and CPUs are required.
type Config struct {
	RDMA rdma.Provider
	// Listen is the address for control connections, RDMAListen the address for RDMA connections.
	// Port 0 selects a free port.
	Listen     netip.AddrPort
	RDMAListen netip.AddrPort
	// Volumes holds what to offer, by name. The target does not close the volumes.
	Volumes map[string]Offer
	// CPUs has an element per worker: the core to pin it to, or datapath.NoCPU.
	CPUs   []int
	Policy progress.Policy
	// Network accepts control connections; nil means network.Kernel{}.
	Network network.Network
	// ControlTimeout bounds each step of a handshake; 0 means the default. DrainTimeout is how long
	// to wait for requests in flight at shutdown; unset means DefaultDrainTimeout.
	ControlTimeout time.Duration
	DrainTimeout   retry.Bound
	// KeepAlive configures the control connections; zero means the defaults.
	KeepAlive controlmsg.KeepAliveConfig
	// Lease is how long the answer of a relay lets it change volumes, at most controlmsg.MaxLease;
	// 0 means lease.Length. Clock measures it; nil means lease.Boottime.
	Lease time.Duration
	Clock lease.Clock
	// TLS secures the control connections. A relay's certificate must have one of TLSAllowedNames,
	// unless that is empty. If TLS is nil, the connections are in plain text.
	TLS             *mutualtls.Credentials
	TLSAllowedNames []mutualtls.Name
	// DataSecurity is what the target wants for the RDMA connections of sessions; unless it is off,
	// TLS must be set. Fabric declares what protects a network that RDMA uses without TLS: "ipsec",
	// "macsec" or "trusted", "" for nothing.
	DataSecurity controlmsg.DataSecurity
	Fabric       string
	// Protocol is what the relays speak: dialects.None means our own protocol. In those of the DOCA
	// storage applications the target must offer one volume, without TLS, and RDMA must be a
	// provider that connects by details: see rdma.DetailsDevice. DetectProtocol lets the first
	// message of each relay decide instead, as far as TLS and RDMA allow other protocols than ours.
	Protocol       dialects.Version
	DetectProtocol bool
	// HookTransport wraps the transport of each control connection; nil means that it stays as it
	// is.
	HookTransport func(controlmsg.Transport) controlmsg.Transport
	// Tracer records traced IOs; nil means that none are.
	Tracer *trace.Tracer
	// MaxSessions bounds sessions, and pending control connections to twice as many. StagingLimit
	// bounds the memory of all sessions together: staging, messages, and the queues for both, in
	// bytes. 0 means the defaults.
	MaxSessions  int
	StagingLimit uint64
	// SessionRate is how many sessions per second the target admits, after a burst of a fifth as
	// many; 0 means the default. Relays beyond it are told when to try again.
	SessionRate int
	// CountedClients bounds the clients whose IOs are counted by name, over all volumes; a client
	// of several volumes counts once for each. 0 counts none.
	CountedClients int
	// Software is the name and version that relays see.
	Software string
	Logger   *zap.Logger
}

func (c *Config) setDefaults() {
	c.ControlTimeout = cmp.Or(c.ControlTimeout, DefaultControlTimeout)
	c.DrainTimeout = c.DrainTimeout.Or(retry.Within(DefaultDrainTimeout))
	c.MaxSessions = cmp.Or(c.MaxSessions, DefaultMaxSessions)
	c.SessionRate = cmp.Or(c.SessionRate, DefaultSessionRate)
	c.StagingLimit = cmp.Or(c.StagingLimit, DefaultStagingLimit)
	c.Software = cmp.Or(c.Software, "zc-relay target")
	if c.Network == nil {
		c.Network = network.Kernel{}
	}
	if c.HookTransport == nil {
		c.HookTransport = func(t controlmsg.Transport) controlmsg.Transport { return t }
	}
	c.KeepAlive = cmp.Or(c.KeepAlive, controlmsg.DefaultKeepAlive())
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
}

// check returns an error for a configuration that cannot work.
func (c *Config) check() error {
	switch {
	case c.RDMA == nil:
		return status.Errorf(status.InvalidValue, "Config.RDMA is nil: it is how the target moves "+
			"data, for instance iwarp.New(iwarp.Options{})")
	case len(c.CPUs) == 0:
		return status.Errorf(status.InvalidValue, "Config.CPUs is empty: it has an element for "+
			"each worker, for instance datapath.NoCPU for one that any core runs")
	case !c.Listen.IsValid():
		return status.Errorf(status.InvalidValue, "Config.Listen is not set: it is an address and "+
			"a port, for instance 127.0.0.1:0")
	case !c.RDMAListen.IsValid():
		return status.Errorf(status.InvalidValue, "Config.RDMAListen is not set: it is an address "+
			"and a port, for instance 127.0.0.1:0")
	}
	for _, field := range []struct {
		name  string
		value int64
	}{
		{"ControlTimeout", int64(c.ControlTimeout)}, {"MaxSessions", int64(c.MaxSessions)},
		{"SessionRate", int64(c.SessionRate)}, {"CountedClients", int64(c.CountedClients)},
	} {
		if field.value < 0 {
			return status.Errorf(status.InvalidValue, "Config.%s is negative", field.name)
		}
	}
	return nil
}

// Target serves volumes to relays. Its methods may be called concurrently, except Close.
type Target struct {
	config   Config
	log      *zap.Logger
	device   rdma.Device
	pool     *datapath.Pool
	listener network.Listener
	rdma     rdma.Listener
	tokens   *tokenRegistry
	clients  *epoch.Registry
	offers   *offers
	// clientCounters are those of clients, by volume and name.
	clientCounters *datapath.ClientCounters

	lessor *lease.Lessor
	// allowedNames are those that a relay's certificate must have one of.
	allowedNames atomic.Pointer[[]mutualtls.Name]
	peers        *controlmsg.Peers // relays
	memory       atomic.Int64      // bytes used by the lanes of all sessions
	verifier     uint64            // of volumes that have no write verifier of their own
	process      uint64            // tells relays which addresses lead to this process

	// rejections keeps relays that ask for a volume again and again from filling the log.
	rejections controlmsg.Rejections

	sessionID     atomic.Uint64
	sessionsTotal atomic.Uint64

	releaseTimeout time.Duration
	answerTimeout  time.Duration // of a device that keeps a request of a session that has ended
	admission      *admission
	running        sync.WaitGroup // control connections, and late releases of their memory
	drained        chan struct{}  // closed at the end of the drain

	hasRun    atomic.Bool // Run has been called
	closeOnce sync.Once
	closed    atomic.Bool // Close has been called
	closeErr  error       // valid after closeOnce
}

var _ io.Closer = (*Target)(nil)

// New starts the workers and the listeners. Call Run to serve, and Close to release everything.
func New(ctx context.Context, config Config) (*Target, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := config.check(); err != nil {
		return nil, fmt.Errorf("start a target: %w", err)
	}
	config.setDefaults()
	t := &Target{
		config: config, log: config.Logger,
		admission: newAdmission(config.MaxSessions,
			newSessionRate(config.SessionRate, config.Logger)),
		releaseTimeout: defaultReleaseTimeout,
		answerTimeout:  defaultReleaseTimeout + devicecall.Timeout,

		lessor:  lease.NewLessor(config.Lease, config.Clock),
		peers:   controlmsg.NewPeers(),
		tokens:  newTokenRegistry(),
		clients: epoch.NewRegistry(epoch.Config{Remember: maxClientInstances}),
		drained: make(chan struct{}),

		clientCounters: datapath.NewClientCounters(config.CountedClients),
	}
	t.allowedNames.Store(&config.TLSAllowedNames)
	var err error
	if t.offers, err = newOffers(config.Volumes); err == nil {
		err = t.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Target) start(ctx context.Context) error {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return fmt.Errorf("generate the write verifier: %w", err)
	}
	t.verifier = binary.BigEndian.Uint64(random[:8])
	t.process = binary.BigEndian.Uint64(random[8:])
	if t.config.Protocol != dialects.None && t.config.TLS != nil {
		return status.Errorf(status.BadConfig, "protocol %v has no TLS", t.config.Protocol)
	}
	if t.config.DataSecurity != controlmsg.DataSecurityOff && t.config.TLS == nil {
		return status.Errorf(status.BadConfig, "Config.DataSecurity is %v, and Config.TLS is nil",
			t.config.DataSecurity)
	}
	if t.config.Lease < 0 || t.config.Lease > controlmsg.MaxLease {
		return status.Errorf(status.InvalidValue, "lease of %v, must be up to %v", t.config.Lease,
			controlmsg.MaxLease)
	}
	var err error
	t.device, err = devicecall.OpenWithin(ctx,
		func() (rdma.Device, error) { return t.config.RDMA.Open(t.config.RDMAListen.Addr()) })
	if err != nil {
		return fmt.Errorf("open RDMA device at %v (--rdma-address selects another): %w",
			t.config.RDMAListen.Addr(), err)
	}
	_, connects := t.device.(rdma.DetailsDevice)
	if !connects && t.config.Protocol != dialects.None {
		return status.Errorf(status.NotSupported, "protocol %v needs the RDMA provider doca, not %s",
			t.config.Protocol, t.config.RDMA.Name())
	}
	t.config.DetectProtocol = t.config.DetectProtocol && connects && t.config.TLS == nil
	if t.pool, err = datapath.StartPool(t.config.CPUs, t.config.Policy); err != nil {
		return err
	}
	if t.rdma, err = t.listenRDMA(ctx); err != nil {
		return fmt.Errorf("listen for RDMA connections on %v: %w", t.config.RDMAListen, err)
	}
	t.listener, err = t.config.Network.Listen(ctx, t.config.Listen)
	if err != nil {
		return fmt.Errorf("listen for control connections on %v: %w", t.config.Listen, err)
	}
	return nil
}

// listenRDMA listens for RDMA connections, with TLS if it is wanted and the device has it.
func (t *Target) listenRDMA(ctx context.Context) (rdma.Listener, error) {
	wanted := t.config.DataSecurity
	if err := wanted.CheckDevice(t.device, t.config.Fabric); err != nil {
		return nil, err
	}
	device, protects := rdma.Secure(t.device)
	if !protects || wanted == controlmsg.DataSecurityOff {
		return t.device.Listen(ctx, t.config.RDMAListen)
	}
	return device.ListenTLS(ctx, t.config.RDMAListen, rdma.ServerTLS{
		Config:   func() *tls.Config { return t.config.TLS.DataServer(*t.allowedNames.Load()) },
		Required: wanted == controlmsg.DataSecurityRequired,
	})
}

// Address returns where relays connect, with the actual port.
func (t *Target) Address() netip.AddrPort { return t.listener.Address() }

// RDMAAddress returns where relays connect by RDMA, with the actual port.
func (t *Target) RDMAAddress() netip.AddrPort { return t.rdma.Address() }

// Run serves relays until ctx ends, or until the RDMA device is lost: then it fails, and another
// target has to open the device. It drains all sessions, ends them with a reason, and returns when
// they are released. Volume IO in flight delays that, without a bound. Run may be called once: then
// it fails with status.BadState, and after Close with status.ErrClosed.
func (t *Target) Run(ctx context.Context) error {
	if t.closed.Load() {
		return fmt.Errorf("run the target: %w", status.ErrClosed)
	}
	if t.hasRun.Swap(true) {
		return status.Errorf(status.BadState, "run the target: Run has been called before")
	}
	var accepting sync.WaitGroup
	ctx, end := context.WithCancel(ctx)
	defer end()
	rdmaContext, stopRDMA := context.WithCancel(context.Background())
	var lost error
	accepting.Go(func() { lost = t.serveRDMA(rdmaContext, end) })
	accepting.Go(func() { t.watchVolumes(ctx) })
	stop := context.AfterFunc(ctx, func() { _ = t.listener.Close() })
	defer stop()
	err := t.acceptControl(ctx)
	draining, cancel := t.config.DrainTimeout.Context(context.Background())
	endSessions(draining, t.admission.close(), shuttingDown)
	cancel()
	close(t.drained)
	t.running.Wait()
	stopRDMA()
	err = errors.Join(err, t.rdma.Close())
	accepting.Wait()
	return errors.Join(lost, err)
}

// serveRDMA is acceptRDMA, and calls end if that fails.
func (t *Target) serveRDMA(ctx context.Context, end func()) error {
	t.log.Debug("accepting RDMA connections")
	defer t.log.Debug("no longer accepting RDMA connections")
	err := t.acceptRDMA(ctx)
	if err != nil {
		t.log.Error("the target ends: it has to be started again", zap.Error(err))
		end()
	}
	return err
}

// endSessions drains sessions until ctx ends, all at the same time, and ends them with
// status.Shutdown.
func endSessions(ctx context.Context, sessions []*session, reason string) {
	var ending sync.WaitGroup
	for _, s := range sessions {
		ending.Go(func() { s.drainAndEnd(ctx, reason) })
	}
	ending.Wait()
}

// DrainTimeout returns how long Run waits for requests in flight after its context has ended.
func (t *Target) DrainTimeout() retry.Bound { return t.config.DrainTimeout }

// Drained returns a channel that is closed when Run has stopped waiting for requests in flight.
func (t *Target) Drained() <-chan struct{} { return t.drained }

// Close releases everything that New created. Run must have returned. It may be called again: it
// waits for the first call, and returns its result. Run and Offer then fail with status.ErrClosed.
func (t *Target) Close() error {
	t.closed.Store(true)
	t.closeOnce.Do(func() { t.closeErr = t.close() })
	return t.closeErr
}

func (t *Target) close() error {
	var errs []error
	if t.listener != nil {
		if err := t.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if t.rdma != nil {
		errs = append(errs, t.rdma.Close())
	}
	if t.pool != nil {
		errs = append(errs, t.pool.Stop())
	}
	if t.device != nil {
		errs = append(errs, t.device.Close())
	}
	return errors.Join(errs...)
}

// Workers returns the data-path workers, for metrics.
func (t *Target) Workers() []*datapath.Worker { return t.pool.Workers() }

// Sessions returns the number of sessions: control connections whose relay has authenticated itself
// or sent its hello.
func (t *Target) Sessions() int { return t.admission.count() }

// SessionsTotal returns the number of sessions since the start.
func (t *Target) SessionsTotal() uint64 { return t.sessionsTotal.Load() }

// SessionsPostponed returns how often a session was opened faster than Config.SessionRate allows.
func (t *Target) SessionsPostponed() uint64 { return t.admission.rate.postponed.Load() }
