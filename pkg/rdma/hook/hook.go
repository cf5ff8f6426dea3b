// SPDX-License-Identifier: Apache-2.0

// Package hook wraps any provider of package rdma. The wrapper forwards everything, and traces,
// delays, fails, drops, corrupts, or freezes the operations that fault rules name.
//
// The operations of the seam "rdma" are
//
//   - open, listen, connect, and accept (of a connection request), register and deregister. A
//     deregistration that fails by a rule has taken place. A connection request whose acceptance
//     fails is rejected.
//   - post_send, once for each call of PostSend. A delayed or frozen batch is posted later, and
//     with it everything that is posted to the connection meanwhile. If a batch is dropped, the
//     connection is aborted, and the batch and everything behind it complete as flushed.
//   - post_receive, once for each call of PostReceive.
//   - poll, once for each completion. A delayed or frozen completion delays those behind it on its
//     completion queue.
//   - receive, once for each message that has been received. A message is corrupted before its
//     completion is polled, in memory that this process has mapped.
//
// The connection of a prepared end counts as connect. Imports of memory have no hooks.
//
// The promises of package rdma hold for hooked providers, with three exceptions while a connection
// holds back batches: they are posted when the completion queue is polled, the connection takes up
// to twice its send requests, and a request that PostSend would reject ends the connection.
package hook

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// Config configures the hooks.
type Config struct {
	// Injector holds the rules; nil means none.
	Injector *fault.Injector
}

// Wrap returns inner with hooks, or inner itself if there are no rules for the seam.
func Wrap(inner rdma.Provider, config Config) rdma.Provider {
	if !config.Injector.Has(fault.RDMA) {
		return inner
	}
	point := func(operation string) *fault.Point {
		return config.Injector.Point(fault.RDMA, operation)
	}
	return &provider{Provider: inner, points: points{
		injector: config.Injector,
		open:     point("open"), listen: point("listen"), connect: point("connect"),
		accept: point("accept"), register: point("register"), deregister: point("deregister"),
		postSend: point("post_send"), postReceive: point("post_receive"), poll: point("poll"),
		receive: point("receive"),
	}}
}

// points holds the rules of every operation.
type points struct {
	injector                      *fault.Injector
	open, listen, connect, accept *fault.Point
	register, deregister          *fault.Point
	postSend, postReceive, poll   *fault.Point
	receive                       *fault.Point
}

// hooksDataPath reports whether queues and connections have rules.
func (p *points) hooksDataPath() bool {
	return p.postSend != nil || p.postReceive != nil || p.poll != nil || p.receive != nil
}

type provider struct {
	rdma.Provider
	points points
}

// Open opens a device.
func (p *provider) Open(address netip.Addr) (rdma.Device, error) {
	if _, err := p.points.open.Enter(context.Background(), nil, 0); err != nil {
		return nil, fmt.Errorf("open the RDMA device of %v: %w", address, err)
	}
	inner, err := p.Provider.Open(address)
	if err != nil {
		return nil, err
	}
	d := &device{Device: inner, points: &p.points}
	foreign, hasForeign := inner.(rdma.ForeignDevice)
	details, hasDetails := inner.(rdma.DetailsDevice)
	switch {
	case hasForeign && hasDetails:
		return struct {
			*device
			foreignDomains
			ends
		}{d, foreignDomains{foreign, d.points}, ends{details, d.points}}, nil
	case hasForeign:
		return struct {
			*device
			foreignDomains
		}{d, foreignDomains{foreign, d.points}}, nil
	case hasDetails:
		return struct {
			*device
			ends
		}{d, ends{details, d.points}}, nil
	}
	return d, nil
}

// foreignDomains adds the protection domains of other libraries to a device.
type foreignDomains struct {
	foreign rdma.ForeignDevice
	points  *points
}

// NewForeignDomain returns the protection domain that foreign belongs to.
func (f foreignDomains) NewForeignDomain(foreign memory.Handle) (rdma.ProtectionDomain, error) {
	inner, err := f.foreign.NewForeignDomain(foreign)
	if err != nil {
		return nil, err
	}
	return newDomain(inner, f.points), nil
}

// ends adds the connections without listeners to a device.
type ends struct {
	details rdma.DetailsDevice
	points  *points
}

// Prepare makes this side's end of a connection.
func (e ends) Prepare(config rdma.ConnectionConfig) (rdma.PreparedConnection, error) {
	config, c := adapt(config)
	inner, err := e.details.Prepare(config)
	if err != nil {
		c.freeSlot(config.Context)
		return nil, err
	}
	return &end{PreparedConnection: inner, points: e.points, hooked: c, slot: config.Context}, nil
}

// end is a prepared end of a connection.
type end struct {
	rdma.PreparedConnection
	points *points
	hooked *connection // nil if its queue has no hooks
	slot   uint64      // of the queue
}

// Connect connects to the peer's end.
func (e *end) Connect(details []byte) (rdma.Connection, error) {
	if _, err := e.points.connect.Enter(context.Background(), nil, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("connect by details: %w", err), e.Discard())
	}
	inner, err := e.PreparedConnection.Connect(details)
	return e.hooked.establish(e.slot, inner, err)
}

// Discard releases the end.
func (e *end) Discard() error {
	err := e.PreparedConnection.Discard()
	e.hooked.freeSlot(e.slot)
	return err
}

type device struct {
	rdma.Device
	points *points
}

// TransportTo returns the transport that a connection to a listener would use.
func (d *device) TransportTo(ctx context.Context, remote netip.AddrPort) string {
	return rdma.TransportTo(ctx, d.Device, remote)
}

// Lost returns a channel that is closed when the device is lost, or nil.
func (d *device) Lost() <-chan struct{} { return rdma.Lost(d.Device) }

// NewProtectionDomain creates a protection domain.
func (d *device) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	inner, err := d.Device.NewProtectionDomain()
	if err != nil {
		return nil, err
	}
	return newDomain(inner, d.points), nil
}

// NewCompletionQueue creates a completion queue.
func (d *device) NewCompletionQueue(capacity int) (rdma.CompletionQueue, error) {
	inner, err := d.Device.NewCompletionQueue(capacity)
	if err != nil || !d.points.hooksDataPath() {
		return inner, err
	}
	return newQueue(inner, d.points, capacity)
}

// Listen accepts connection requests.
func (d *device) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	if _, err := d.points.listen.Enter(ctx, nil, 0); err != nil {
		return nil, fmt.Errorf("listen on %v: %w", address, err)
	}
	inner, err := d.Device.Listen(ctx, address)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: inner, points: d.points}, nil
}

// Protects reports whether the inner device protects connections.
func (d *device) Protects() bool {
	_, protects := rdma.Secure(d.Device)
	return protects
}

// ListenTLS accepts connection requests with TLS.
func (d *device) ListenTLS(
	ctx context.Context, address netip.AddrPort, config rdma.ServerTLS,
) (rdma.Listener, error) {
	if _, err := d.points.listen.Enter(ctx, nil, 0); err != nil {
		return nil, fmt.Errorf("listen on %v: %w", address, err)
	}
	inner, err := d.Device.(rdma.SecureDevice).ListenTLS(ctx, address, config)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: inner, points: d.points}, nil
}

// Connect connects to a listener.
func (d *device) Connect(ctx context.Context, remote netip.AddrPort,
	config rdma.ConnectionConfig) (rdma.Connection, error) {
	if _, err := d.points.connect.Enter(ctx, nil, 0); err != nil {
		return nil, fmt.Errorf("connect to %v: %w", remote, err)
	}
	return establish(config, func(config rdma.ConnectionConfig) (rdma.Connection, error) {
		return d.Device.Connect(ctx, remote, config)
	})
}

type listener struct {
	rdma.Listener
	points *points
}

// Accept waits for the next connection request.
func (l *listener) Accept(ctx context.Context) (rdma.Request, error) {
	inner, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &request{ProtectedRequest: rdma.Protected(inner), points: l.points}, nil
}

type request struct {
	rdma.ProtectedRequest
	points *points
}

// Accept accepts the request.
func (r *request) Accept(ctx context.Context, config rdma.ConnectionConfig) (rdma.Connection,
	error) {
	if _, err := r.points.accept.Enter(ctx, nil, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("accept connection from %v: %w", r.Remote(), err),
			r.Reject(nil))
	}
	return establish(config, func(config rdma.ConnectionConfig) (rdma.Connection, error) {
		return r.ProtectedRequest.Accept(ctx, config)
	})
}

// establish connects with the inner domain and queue.
func establish(config rdma.ConnectionConfig,
	connect func(rdma.ConnectionConfig) (rdma.Connection, error)) (rdma.Connection, error) {
	config, c := adapt(config)
	inner, err := connect(config)
	return c.establish(config.Context, inner, err)
}

// adapt returns the configuration of the inner connection. The connection with hooks is nil if the
// queue has none.
func adapt(config rdma.ConnectionConfig) (rdma.ConnectionConfig, *connection) {
	var d *domain
	if hooked, ok := config.Domain.(interface{ hooked() *domain }); ok {
		d = hooked.hooked()
		config.Domain = d.ProtectionDomain
	}
	config.Lent = slices.Clone(config.Lent)
	for i := range config.Lent {
		if m, ok := config.Lent[i].Region.(interface{ hooked() *memoryRegion }); ok {
			config.Lent[i].Region = m.hooked().MemoryRegion
		}
	}
	q, ok := config.Queue.(*queue)
	if !ok {
		return config, nil
	}
	c := &connection{queue: q, domain: d, context: config.Context,
		sendRequests: config.SendRequests}
	c.remember(config.Receives)
	config.Queue = q.inner
	config.Context = q.attach(c)
	return config, c
}

// establish completes c, in a slot of its queue, with the outcome of connecting the inner one. It
// returns the inner connection if c is nil.
func (c *connection) establish(slot uint64, inner rdma.Connection, err error) (rdma.Connection,
	error) {
	if err != nil {
		c.freeSlot(slot)
		return nil, err
	}
	if c == nil {
		return inner, nil
	}
	c.Connection = inner
	return c, nil
}

// freeSlot frees the slot of a connection that is not established. It does nothing if c is nil.
func (c *connection) freeSlot(slot uint64) {
	if c != nil {
		c.queue.detach(slot)
	}
}

type domain struct {
	rdma.ProtectionDomain
	points *points

	mu      sync.Mutex               // guards regions
	regions map[uint32]*memoryRegion // by local key; nil without rules for received messages
}

func newDomain(inner rdma.ProtectionDomain, p *points) rdma.ProtectionDomain {
	d := &domain{ProtectionDomain: inner, points: p}
	if p.receive != nil {
		d.regions = make(map[uint32]*memoryRegion)
	}
	if importing, can := inner.(rdma.ImportingDomain); can {
		return &importingDomain{domain: d, inner: importing}
	}
	return d
}

func (d *domain) hooked() *domain { return d }

// importingDomain is a domain that can reach memory which a peer has exported.
type importingDomain struct {
	*domain
	inner rdma.ImportingDomain
}

// Import makes exported memory usable.
func (d *importingDomain) Import(export []byte) (rdma.ImportedRegion, error) {
	return d.inner.Import(export)
}

// Register makes a region usable by the domain's connections.
func (d *domain) Register(region *memory.Region, access memory.Access) (rdma.MemoryRegion, error) {
	if _, err := d.points.register.Enter(context.Background(), nil, region.Len()); err != nil {
		return nil, fmt.Errorf("register %d bytes of memory: %w", region.Len(), err)
	}
	inner, err := d.ProtectionDomain.Register(region, access)
	if err != nil || d.points.deregister == nil && d.regions == nil {
		return inner, err
	}
	m := &memoryRegion{MemoryRegion: inner, domain: d, bytes: region.Bytes()}
	if d.regions != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.regions[inner.LocalKey()] = m
	}
	if exported, is := inner.(rdma.ExportedRegion); is {
		return &exportedRegion{memoryRegion: m, inner: exported}, nil
	}
	return m, nil
}

// bytesOf returns the memory of a segment, or nil if it is not registered or not mapped.
func (d *domain) bytesOf(s rdma.Segment) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.regions[s.Key]
	if m == nil || s.Address < m.Base() {
		return nil
	}
	offset, size := s.Address-m.Base(), uint64(len(m.bytes))
	if offset > size || uint64(s.Length) > size-offset {
		return nil
	}
	return m.bytes[offset : offset+uint64(s.Length)]
}

type memoryRegion struct {
	rdma.MemoryRegion
	domain *domain
	bytes  []byte // nil if the region is not mapped
}

func (m *memoryRegion) hooked() *memoryRegion { return m }

// exportedRegion is a region that a peer can reach by its description.
type exportedRegion struct {
	*memoryRegion
	inner rdma.ExportedRegion
}

// Export describes the memory to the peer.
func (r *exportedRegion) Export() []byte { return r.inner.Export() }

// Deregister revokes the keys, in any case.
func (m *memoryRegion) Deregister() error {
	_, err := m.domain.points.deregister.Enter(context.Background(), nil, m.Len())
	if err != nil {
		err = fmt.Errorf("deregister %d bytes of memory: %w", m.Len(), err)
	}
	m.domain.mu.Lock()
	delete(m.domain.regions, m.LocalKey())
	m.domain.mu.Unlock()
	return errors.Join(err, m.MemoryRegion.Deregister())
}
