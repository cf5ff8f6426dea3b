// Package relay is the daemon on the DPU: it accepts clients over Comch, goes
// through the control handshake with them and with a target over TCP, and
// gives the queues that result to data-path workers.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Defaults of Config.
const (
	DefaultControlTimeout = 10 * time.Second
	DefaultIOTimeout      = 30 * time.Second
	DefaultDrainTimeout   = 10 * time.Second
	DefaultMaxClients     = 256
	DefaultMaxExport      = 64 << 30
)

// Limits of one session, told to the client when it opens the volume.
const (
	maxQueues     = 64
	maxDepth      = 4096
	maxBufferSize = 64 << 20
	// maxOutstanding bounds queues times depth, and with it the rings.
	maxOutstanding = 64 << 10
)

// Config says what a relay serves. Comch, RDMA, Device, Representor, Name,
// Target and CPUs are required.
type Config struct {
	Comch comch.Provider
	RDMA  rdma.Provider
	// RDMAAddress is the local address of RDMA connections. The zero Addr
	// means that from which the target is reached.
	RDMAAddress netip.Addr
	// Device and Representor are where the Comch server listens, under Name.
	Device      string
	Representor string
	Name        string
	// AllowAnyUser lets clients of every user connect.
	AllowAnyUser bool
	// Target is the control address of the storage server, Volume the name of
	// its volume.
	Target netip.AddrPort
	Volume string
	// CPUs has an element for each worker: the core to pin it to, or
	// datapath.NoCPU.
	CPUs   []int
	Policy progress.Policy
	// ControlTimeout bounds each step of the handshake, IOTimeout how long
	// the target may take for an IO, DrainTimeout how long IOs in flight are
	// waited for at shutdown. 0 means the defaults; a negative IOTimeout no
	// bound, a negative DrainTimeout no wait.
	ControlTimeout time.Duration
	IOTimeout      time.Duration
	DrainTimeout   time.Duration
	// KeepAlive of the control connections to the target; zero means the
	// defaults.
	KeepAlive controlmsg.KeepAliveConfig
	// TLS secures the control connections to the target, which must have a
	// certificate for TLSServerName or, if that is empty, for the address of
	// Target. They are in plain text if TLS is nil.
	TLS           *mutualtls.Credentials
	TLSServerName string
	// MaxClients bounds concurrent sessions, MaxExport the bytes of client
	// memory that all of them may have exported. 0 means the defaults.
	MaxClients int
	MaxExport  uint64
	// Software names the program to clients and targets.
	Software string
	Logger   *zap.Logger
	// OnReady is told whether new sessions can be served, and if not why. It
	// may be nil.
	OnReady func(err error)
}

func (c *Config) setDefaults() {
	c.ControlTimeout = cmp.Or(c.ControlTimeout, DefaultControlTimeout)
	c.IOTimeout = cmp.Or(c.IOTimeout, DefaultIOTimeout)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, DefaultDrainTimeout)
	c.MaxClients = cmp.Or(c.MaxClients, DefaultMaxClients)
	c.MaxExport = cmp.Or(c.MaxExport, DefaultMaxExport)
	c.Software = cmp.Or(c.Software, "zc-relay")
	c.KeepAlive = cmp.Or(c.KeepAlive, controlmsg.DefaultKeepAlive())
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.OnReady == nil {
		c.OnReady = func(error) {}
	}
}

var errShuttingDown = status.Errorf(status.Shutdown, "the relay is shutting down")

// Relay serves one channel.
type Relay struct {
	config Config
	log    *zap.Logger
	device rdma.Device
	pool   *datapath.Pool
	server comch.Server

	sessionID     atomic.Uint64
	exported      atomic.Int64 // bytes of client memory
	sessionsTotal atomic.Uint64
	counters      datapath.CounterSet

	mu       sync.Mutex // guards sessions
	sessions map[*session]struct{}
	running  sync.WaitGroup
}

// New starts the workers and the Comch server. Run serves; Close releases.
func New(ctx context.Context, config Config) (*Relay, error) {
	config.setDefaults()
	r := &Relay{config: config, log: config.Logger, sessions: make(map[*session]struct{})}
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Relay) start(ctx context.Context) error {
	if err := r.openDevice(); err != nil {
		return err
	}
	var err error
	if r.pool, err = datapath.StartPool(r.config.CPUs, r.config.Policy, r.device); err != nil {
		return err
	}
	r.server, err = r.config.Comch.Listen(ctx, comch.ServerConfig{
		Device: r.config.Device, Representor: r.config.Representor, Name: r.config.Name,
		MaxClients: r.config.MaxClients, AllowAnyUser: r.config.AllowAnyUser, MaxExportBytes: r.config.MaxExport,
	})
	if err != nil {
		return fmt.Errorf("device %q, representor %q: %w", r.config.Device, r.config.Representor, err)
	}
	return nil
}

// openDevice opens the RDMA device that the address belongs to.
func (r *Relay) openDevice() error {
	address, err := r.config.RDMAAddress, error(nil)
	switch {
	case !address.IsValid():
		if address, err = sourceAddress(r.config.Target); err != nil {
			return err
		}
	case address.IsUnspecified():
		return status.Errorf(status.InvalidValue, "the target has to be told one address from which RDMA connections come, not %v", address)
	}
	if r.device, err = r.config.RDMA.Open(address); err != nil && !r.config.RDMAAddress.IsValid() {
		return fmt.Errorf("open RDMA device at %v, from which target %v is reached (--rdma-address chooses another): %w",
			address, r.config.Target, err)
	}
	if err != nil {
		return fmt.Errorf("open RDMA device at %v: %w", address, err)
	}
	return nil
}

// sourceAddress is the local address from which the target is reached.
func sourceAddress(target netip.AddrPort) (netip.Addr, error) {
	// A UDP socket is routed when it is connected; nothing is sent.
	connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(target))
	if err != nil {
		return netip.Addr{}, status.Errorf(status.NotConnected, "find the route to target %v: %w", target, err)
	}
	defer connection.Close()
	return connection.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// Address says where clients connect.
func (r *Relay) Address() string { return r.server.Address() }

// Run serves clients until ctx ends, then lets IOs in flight run out, ends
// all sessions with a reason, and returns.
func (r *Relay) Run(ctx context.Context) error {
	standing, stopStanding := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { r.watchTarget(standing) })
	err := r.acceptClients(ctx)
	r.config.OnReady(errShuttingDown)
	stopStanding()
	background.Wait()
	err = errors.Join(err, r.server.Close())
	r.endSessions()
	r.running.Wait()
	return err
}

func (r *Relay) acceptClients(ctx context.Context) error {
	for {
		connection, err := r.server.Accept(ctx)
		if ctx.Err() != nil {
			if connection != nil {
				connection.Abort()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept Comch clients as %q: %w", r.config.Name, err)
		}
		r.startSession(connection)
	}
}

func (r *Relay) startSession(connection comch.Connection) {
	s := newSession(r, connection)
	r.mu.Lock()
	r.sessions[s] = struct{}{}
	r.mu.Unlock()
	r.sessionsTotal.Add(1)
	r.running.Go(func() {
		s.run()
		r.mu.Lock()
		delete(r.sessions, s)
		r.mu.Unlock()
	})
}

// endSessions drains all sessions at the same time and tells them to end.
func (r *Relay) endSessions() {
	ctx, cancel := context.WithTimeout(context.Background(), r.config.DrainTimeout)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sessions {
		r.running.Go(func() {
			s.drain(ctx)
			s.cancel(errShuttingDown)
		})
	}
}

// Close releases what New made. Run must have returned.
func (r *Relay) Close() error {
	var errs []error
	if r.server != nil {
		errs = append(errs, r.server.Close())
	}
	if r.pool != nil {
		errs = append(errs, r.pool.Stop())
	}
	if r.device != nil {
		errs = append(errs, r.device.Close())
	}
	return errors.Join(errs...)
}

// Workers returns the data-path workers, for whoever collects metrics.
func (r *Relay) Workers() []*datapath.Worker { return r.pool.Workers() }

// Counters are those of the channel's queues, for whoever collects metrics.
func (r *Relay) Counters() *datapath.CounterSet { return &r.counters }

// Sessions is how many clients are connected now.
func (r *Relay) Sessions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sessions)
}

// SessionsTotal is how many clients have connected so far.
func (r *Relay) SessionsTotal() uint64 { return r.sessionsTotal.Load() }
