// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// provider implements rdma.Provider.
type provider struct {
	options Options
	system  system
}

// New returns the provider. It validates options and loads libibverbs and librdmacm, but only Open
// looks for a device. It fails with status.NotSupported, and names the packages to install, if a
// library is missing.
func New(options Options) (rdma.Provider, error) {
	options = options.withDefaults()
	err := options.validate()
	if err == nil {
		err = ibv.Load()
	}
	if err != nil {
		return nil, fmt.Errorf("rdma provider verbs: %w", err)
	}
	return &provider{options: options, system: localSystem{}}, nil
}

// Name returns ProviderName.
func (p *provider) Name() string { return ProviderName }

// Open implements rdma.Provider. If address is unspecified, Open uses an address of Options.Device,
// the one that Options.GIDIndex names if it is set. If Options.Device is empty as well, the machine
// must have exactly one RDMA device.
func (p *provider) Open(address netip.Addr) (rdma.Device, error) {
	d, err := p.open(address)
	if err != nil {
		return nil, fmt.Errorf("open verbs device at %v: %w", address, err)
	}
	return d, nil
}

func (p *provider) open(address netip.Addr) (*device, error) {
	if !address.IsValid() {
		return nil, status.Errorf(status.InvalidValue, "no address given")
	}
	name, err := resolveDevice(p.system, p.options.Device)
	if err != nil {
		return nil, err
	}
	channel, err := ibv.NewChannel()
	if err != nil {
		return nil, err
	}
	place, err := p.locate(channel, name, address.Unmap())
	if err != nil {
		channel.Close()
		return nil, err
	}
	context, err := ibv.Open(place.device)
	if err != nil {
		channel.Close()
		return nil, err
	}
	d, err := newDevice(place, p.options, context, channel)
	if err != nil {
		channel.Close()
		return nil, errors.Join(err, context.Close())
	}
	return d, nil
}

// device implements rdma.Device for one port of an RDMA device, at one address. Any goroutine may
// use it.
type device struct {
	location
	options Options
	log     *zap.Logger
	context *ibv.Context
	channel *ibv.Channel
	limits  ibv.Limits
	names   memory.Device
	monitor *monitor
	// uses counts the open protection domains, completion queues, and listeners, and the calls of
	// Connect in progress. It is negative once the device is closed.
	uses       atomic.Int64
	nextHandle atomic.Uint64 // of the next endpoint
	// sentinel is bound to the device, so that the connection manager tells of its removal even if
	// nobody uses it. Drivers of software devices tell of nothing.
	sentinel *endpoint
	lost     chan struct{}
	lose     sync.Once // closes lost

	mu          sync.Mutex
	endpoints   map[uint64]*endpoint   // by handle
	connections map[uint32]*connection // by queue pair number
	lingering   []*endpoint            // disconnected; the monitor destroys them
}

// newDevice checks the limits of an open device and starts its monitor. On success the device owns
// context and channel.
func newDevice(
	place location, options Options, context *ibv.Context, channel *ibv.Channel,
) (*device, error) {
	limits, err := context.Limits(place.port)
	if err != nil {
		return nil, err
	}
	if !limits.PortActive {
		return nil, status.Errorf(status.NotConnected,
			"port %d of RDMA device %s is not active: check `rdma link`", place.port, place.device)
	}
	if options.PathMTU > limits.PathMTU && limits.Transport != ibv.IWARP {
		return nil, status.Errorf(status.TooBig,
			"path MTU %d exceeds the current %d of port %d of RDMA device %s",
			options.PathMTU, limits.PathMTU, place.port, place.device)
	}
	d := &device{
		location:    place,
		options:     options,
		log:         options.Logger.With(zap.String("device", place.device)),
		context:     context,
		channel:     channel,
		limits:      limits,
		names:       namesOf(place.device),
		endpoints:   map[uint64]*endpoint{},
		connections: map[uint32]*connection{},
		lost:        make(chan struct{}),
	}
	if d.sentinel, err = d.newEndpoint(nil); err != nil {
		return nil, err
	}
	if err := d.sentinel.id.Bind(netip.AddrPortFrom(place.address, 0)); err != nil {
		d.sentinel.destroy()
		return nil, err
	}
	if d.monitor, err = startMonitor(d); err != nil {
		d.sentinel.destroy()
		return nil, err
	}
	return d, nil
}

// Lost implements rdma.LosableDevice.
func (d *device) Lost() <-chan struct{} { return d.lost }

// noteLoss notes that the device is being removed, or has failed.
func (d *device) noteLoss() { d.lose.Do(func() { close(d.lost) }) }

// namesOf returns the names of an RDMA device. A software device has no PCI address.
func namesOf(name string) memory.Device {
	names := memory.Device{RDMA: name}
	if tree, err := rdmadevice.Open(rdmadevice.SystemRoot); err == nil {
		function, _ := tree.Location(name)
		names.PCI = pci.Normalize(function)
	}
	return names
}

// Limits of a connection beyond those of the device. They bound its memory, and keep lengths
// positive for drivers that treat them as signed (siw).
const (
	maxRequests  = 1 << 15
	maxReadDepth = 128
	maxMessage   = math.MaxInt32
)

// Capabilities returns the limits of a connection on the device.
func (d *device) Capabilities() rdma.Capabilities {
	requests := min(d.limits.WorkRequests, maxRequests)
	return rdma.Capabilities{
		Transport:          string(d.limits.Transport),
		MaxInboundReads:    min(d.limits.InboundReads, maxReadDepth),
		MaxOutboundReads:   min(d.limits.OutboundReads, maxReadDepth),
		MaxSendRequests:    requests,
		MaxReceiveRequests: requests,
		MaxSegments:        1,
		MaxMessageSize:     min(d.limits.MessageBytes, maxMessage),
		WriteImpliesPlaced: d.limits.Transport != ibv.IWARP,
		// Peers on iWARP may have negotiated CRCs, which cover data in user memory.
		StableSource: d.limits.Transport == ibv.IWARP,
		OpaqueMemory: true,
		Device:       d.names,
	}
}

// NewProtectionDomain allocates a protection domain on the device.
func (d *device) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	if err := d.acquire("allocate protection domain"); err != nil {
		return nil, err
	}
	pd, err := d.context.NewProtectionDomain()
	if err != nil {
		d.release()
		return nil, fmt.Errorf("allocate protection domain on %s: %w", d.location.device, err)
	}
	return &protectionDomain{device: d, pd: pd, context: d.context}, nil
}

// NewForeignDomain implements rdma.ForeignDevice. The other library has opened the device for
// itself: connections in the domain get a completion queue there, and end before the domain closes.
// Device events of their queue pairs go to that library, so only completions and the connection
// manager show the end of such a connection.
func (d *device) NewForeignDomain(handle memory.Handle) (rdma.ProtectionDomain, error) {
	foreign, hasKey := handle.(rdma.ForeignMemory)
	if !hasKey {
		return nil, status.Errorf(status.NotSupported,
			"use a foreign protection domain on %s: memory of device %v has no key for verbs: choose "+
				"--rdma-provider doca", d.location.device, handle.Device())
	}
	address := foreign.ProtectionDomain()
	if address == 0 {
		return nil, status.Errorf(status.InvalidValue,
			"use a foreign protection domain on %s: memory of device %v has none",
			d.location.device, foreign.Device())
	}
	pd := ibv.ForeignProtectionDomain(address)
	context := pd.Context()
	if name := context.DeviceName(); name != d.location.device {
		return nil, status.Errorf(status.NotSupported,
			"use a foreign protection domain on %s: it belongs to RDMA device %s: choose the RDMA "+
				"address of that device", d.location.device, name)
	}
	if err := d.acquire("use a foreign protection domain"); err != nil {
		return nil, err
	}
	return &protectionDomain{device: d, pd: pd, context: context}, nil
}

// NewCompletionQueue implements rdma.Device. The queue's capacity, which is at least minCompletions
// where the device allows it, limits the requests of all its connections together.
func (d *device) NewCompletionQueue(capacity int) (rdma.CompletionQueue, error) {
	if capacity < 0 {
		return nil, status.Errorf(status.InvalidValue,
			"create completion queue: capacity %d is negative", capacity)
	}
	if err := d.acquire("create completion queue"); err != nil {
		return nil, err
	}
	q, err := newCompletionQueue(d, capacity)
	if err != nil {
		d.release()
		return nil, fmt.Errorf("create completion queue on %s: %w", d.location.device, err)
	}
	return q, nil
}

// Close implements rdma.Device. It fails with status.InUse while anything opened on the device is
// still open, and waits up to lingerTimeout for peers to confirm that their connections ended.
func (d *device) Close() error {
	if !d.uses.CompareAndSwap(0, math.MinInt64/2) {
		return status.Errorf(status.InUse,
			"close verbs device %s: it is in use, or closed already", d.location.device)
	}
	d.sentinel.destroy()
	d.monitor.stop()
	d.channel.Close()
	if err := d.context.Close(); err != nil {
		return fmt.Errorf("close verbs device %s: %w", d.location.device, err)
	}
	return nil
}

// acquire takes a reference that keeps the device open, until release. It fails once the device is
// closed.
func (d *device) acquire(operation string) error {
	if d.uses.Add(1) > 0 {
		return nil
	}
	d.release()
	return status.Errorf(status.BadState, "%s: verbs device %s is closed",
		operation, d.location.device)
}

func (d *device) release() { d.uses.Add(-1) }
