// SPDX-License-Identifier: Apache-2.0

// Package socketstest provides the sockets of the emulated Comch provider in memory, for tests and
// simulations that run servers and clients in one process. Everything else of the provider stays
// real: rings, doorbells, and exported memory, whose descriptors the sockets duplicate.
//
// Goroutines that wait for a socket wait on channels and timers only, so a network works in a
// testing/synctest bubble if it is created there. The package starts no goroutines.
package socketstest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Options configures a network. The zero value is usable.
type Options struct {
	// InFlight, if set, is called for each packet sent and each end closed. The receiver sees it
	// once the delivery, and all earlier ones to the same socket, have been delivered. The sender's
	// goroutine calls InFlight, which may call Deliver. nil delivers at once.
	InFlight func(*Delivery)
	// Pass, if set, returns the descriptor that the process to gets for one that the process from
	// sends. nil duplicates it.
	Pass func(descriptor int, from, to comch.Peer) (int, error)
	// QueueLength is how many packets one end of a connection holds, delivered or in flight, before
	// writers have to wait. 0 means 64.
	QueueLength int
	// Backlog is how many clients of a listener can wait to be accepted. 0 means 128.
	Backlog int
}

// Network connects processes. Any goroutine may call its methods and those of its processes.
type Network struct {
	options Options

	mu       sync.Mutex
	services map[comch.Service]*listener
}

// NewNetwork returns a network without processes.
func NewNetwork(options Options) *Network {
	options.QueueLength = cmp.Or(options.QueueLength, 64)
	options.Backlog = cmp.Or(options.Backlog, 128)
	if options.Pass == nil {
		options.Pass = func(descriptor int, _, _ comch.Peer) (int, error) {
			return Duplicate(descriptor)
		}
	}
	return &Network{options: options, services: make(map[comch.Service]*listener)}
}

// Process is a simulated process. It implements emulated.Sockets. Users and the arguments of
// Listen do not restrict who can connect: servers judge the identity of their peers themselves.
type Process struct {
	network  *Network
	identity comch.Peer

	// Guarded by network.mu.
	killed    bool
	sockets   []*socket // open ones, oldest first
	listeners []*listener
}

// NewProcess adds a process, which its peers see as identity.
func (n *Network) NewProcess(identity comch.Peer) *Process {
	identity.Known = true
	return &Process{network: n, identity: identity}
}

// Kill closes all sockets and listeners of the process, as the kernel does when a process dies. Its
// goroutines keep running: their reads fail with net.ErrClosed, their writes succeed without
// effect, and new sockets and listeners fail with status.NotConnected.
func (p *Process) Kill() {
	p.network.mu.Lock()
	p.killed = true
	sockets, listeners := p.sockets, p.listeners
	p.sockets, p.listeners = nil, nil
	p.network.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close() // fails only if it is closed already
	}
	for _, s := range sockets {
		s.close(true)
	}
}

// Pair implements emulated.Sockets.
func (p *Process) Pair() (first, second emulated.Socket, err error) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	if err := p.checkAliveLocked(); err != nil {
		return nil, nil, err
	}
	one, other := newPairLocked(p, p)
	return one, other, nil
}

// Connect implements emulated.Sockets.
func (p *Process) Connect(ctx context.Context, hostDevice, name string) (emulated.Socket, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	if err := p.checkAliveLocked(); err != nil {
		return nil, err
	}
	var found []*listener
	for service, l := range p.network.services {
		if service.Representor == hostDevice && service.Name == name {
			found = append(found, l)
		}
	}
	switch {
	case len(found) == 0:
		return nil, status.Errorf(status.NotFound, "no server named %q for device %s",
			name, hostDevice)
	case len(found) > 1:
		return nil, status.Errorf(status.InvalidValue, "two servers have this name, %s and %s",
			found[0].Address(), found[1].Address())
	case len(found[0].backlog) >= p.network.options.Backlog:
		return nil, status.Errorf(status.Full, "server %s has too many clients waiting",
			found[0].Address())
	}
	own, accepted := newPairLocked(p, found[0].process)
	found[0].backlog = append(found[0].backlog, accepted)
	found[0].signalLocked()
	return own, nil
}

// Services implements emulated.Sockets. It returns the services of the whole network, sorted.
func (p *Process) Services() ([]comch.Service, error) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	var services []comch.Service
	for service := range p.network.services {
		services = append(services, service)
	}
	slices.SortFunc(services, func(a, b comch.Service) int {
		return cmp.Or(strings.Compare(a.Representor, b.Representor),
			strings.Compare(a.Device, b.Device), strings.Compare(a.Name, b.Name))
	})
	return services, nil
}

func (p *Process) checkAliveLocked() error {
	if p.killed {
		return status.Errorf(status.NotConnected, "process %d has been killed", p.identity.PID)
	}
	return nil
}

// removeSocket forgets a closed socket.
func (p *Process) removeSocket(s *socket) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.sockets = without(p.sockets, s)
}

func without[T comparable](list []T, value T) []T {
	if i := slices.Index(list, value); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// listener implements emulated.SocketListener. The lock of the network guards it.
type listener struct {
	process *Process
	service comch.Service
	backlog []*socket     // clients that nobody has accepted, oldest first
	changed chan struct{} // closed at the next change
	closed  bool
}

// Listen implements emulated.Sockets.
func (p *Process) Listen(_ context.Context, service comch.Service, _ bool,
) (emulated.SocketListener, error) {
	n := p.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := p.checkAliveLocked(); err != nil {
		return nil, err
	}
	if n.services[service] != nil {
		return nil, status.Errorf(status.AlreadyExist, "server %s is already running",
			n.services[service].Address())
	}
	l := &listener{process: p, service: service, changed: make(chan struct{})}
	n.services[service] = l
	p.listeners = append(p.listeners, l)
	return l, nil
}

func (l *listener) signalLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *listener) Accept() (emulated.Socket, error) {
	for {
		accepted, changed, err := l.tryAccept()
		if err != nil {
			return nil, err
		}
		if accepted != nil {
			return accepted, nil
		}
		<-changed
	}
}

// tryAccept returns nil and a channel to wait for if there is no client.
func (l *listener) tryAccept() (*socket, <-chan struct{}, error) {
	l.process.network.mu.Lock()
	defer l.process.network.mu.Unlock()
	if l.closed {
		return nil, nil, net.ErrClosed
	}
	if len(l.backlog) == 0 {
		return nil, l.changed, nil
	}
	accepted := l.backlog[0]
	l.backlog = slices.Delete(l.backlog, 0, 1)
	return accepted, nil, nil
}

func (l *listener) OpenToEveryUser() error { return nil }

func (l *listener) Address() string {
	return fmt.Sprintf("memory:%s/%s/%s", l.service.Representor, l.service.Device, l.service.Name)
}

func (l *listener) Close() error {
	n := l.process.network
	n.mu.Lock()
	if l.closed {
		n.mu.Unlock()
		return net.ErrClosed
	}
	l.closed = true
	delete(n.services, l.service)
	l.process.listeners = without(l.process.listeners, l)
	backlog := l.backlog
	l.backlog = nil
	l.signalLocked()
	n.mu.Unlock()
	for _, s := range backlog {
		s.reject()
	}
	return nil
}
