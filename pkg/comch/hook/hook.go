// SPDX-License-Identifier: Apache-2.0

// Package hook wraps any provider of package comch. The wrapper forwards everything, and traces,
// delays, fails, drops, duplicates, corrupts, or freezes the operations that fault rules name.
//
// The operations of the seam "comch" are
//
//   - listen, connect, accept (each call of Server.Accept), new_consumer, new_producer, export, and
//     import;
//   - send and receive of control messages. If one is dropped, the connection is aborted. A receive
//     that fails by a rule loses no message.
//   - producer.send. While a message is delayed or frozen, Send fails with status.Again, as if the
//     consumer had no receive posted. Each attempt that is not held back counts.
//   - producer.complete, once for each message that Send has taken, when it would complete on
//     hardware. An error ends the producer, which is a comch.LateProducer, at its next Poll: the
//     message and those after it are lost.
//   - consumer.poll, once for each message. A delayed or frozen message delays those behind it.
//   - consumer.post, once for each receive that PostReceive has taken. An error ends the consumer,
//     which is a comch.LateConsumer, at its next Poll.
//
// Message queues to a DPA, and everything on them, have no hooks.
package hook

import (
	"context"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Config configures the hooks.
type Config struct {
	// Injector holds the rules; nil means none.
	Injector *fault.Injector
}

// Wrap returns inner with hooks, or inner itself if there are no rules for the seam. The result is
// a comch.MsgQProvider, comch.ServiceLister, or comch.DeviceLister if inner is.
func Wrap(inner comch.Provider, config Config) comch.Provider {
	if !config.Injector.Has(fault.Comch) {
		return inner
	}
	point := func(operation string) *fault.Point {
		return config.Injector.Point(fault.Comch, operation)
	}
	p := &provider{inner: inner, points: points{
		injector: config.Injector,
		listen:   point("listen"), connect: point("connect"), accept: point("accept"),
		send: point("send"), receive: point("receive"),
		newConsumer: point("new_consumer"), newProducer: point("new_producer"),
		export: point("export"), imports: point("import"),
		producerSend: point("producer.send"), producerComplete: point("producer.complete"),
		consumerPoll: point("consumer.poll"), consumerPost: point("consumer.post"),
	}}
	queues, hasQueues := inner.(comch.MsgQProvider)
	list := listers{inner: inner}
	list.services, _ = inner.(comch.ServiceLister)
	list.devices, _ = inner.(comch.DeviceLister)
	hasLists := list.services != nil || list.devices != nil
	switch {
	case hasQueues && hasLists:
		return struct {
			*provider
			msgQs
			listers
		}{p, msgQs{queues}, list}
	case hasQueues:
		return struct {
			*provider
			msgQs
		}{p, msgQs{queues}}
	case hasLists:
		return struct {
			*provider
			listers
		}{p, list}
	}
	return p
}

// listers adds the lists of a provider that has at least one of them.
type listers struct {
	inner    comch.Provider
	services comch.ServiceLister // may be nil, like devices
	devices  comch.DeviceLister
}

// Services lists the services of the inner provider.
func (l listers) Services() ([]comch.Service, error) {
	if l.services == nil {
		return nil, status.Errorf(status.NotSupported, "comch provider %s cannot list services",
			l.inner.Name())
	}
	return l.services.Services()
}

// Devices lists the devices of the inner provider.
func (l listers) Devices() ([]comch.Device, error) {
	if l.devices == nil {
		return nil, status.Errorf(status.NotSupported, "comch provider %s cannot list devices",
			l.inner.Name())
	}
	return l.devices.Devices()
}

// points holds the rules of every operation.
type points struct {
	injector                   *fault.Injector
	listen, connect, accept    *fault.Point
	send, receive              *fault.Point
	newConsumer, newProducer   *fault.Point
	export, imports            *fault.Point
	producerSend, consumerPoll *fault.Point
	producerComplete           *fault.Point
	consumerPost               *fault.Point
}

// msgQs adds the methods of a comch.MsgQProvider that other providers do not have.
type msgQs struct{ inner comch.MsgQProvider }

// NewDPA creates a DPA thread.
func (m msgQs) NewDPA(config comch.DPAConfig) (comch.DPA, error) { return m.inner.NewDPA(config) }

// NewMsgQ creates a message queue.
func (m msgQs) NewMsgQ(config comch.MsgQConfig) (comch.MsgQ, error) {
	return m.inner.NewMsgQ(config)
}

type provider struct {
	inner  comch.Provider
	points points
}

// Name returns the name of the inner provider.
func (p *provider) Name() string { return p.inner.Name() }

// Capabilities returns what device can do.
func (p *provider) Capabilities(device string) (comch.Capabilities, error) {
	return p.inner.Capabilities(device)
}

// Listen starts a server.
func (p *provider) Listen(ctx context.Context, config comch.ServerConfig) (comch.Server, error) {
	if _, err := p.points.listen.Enter(ctx, nil, 0); err != nil {
		return nil, fmt.Errorf("listen as %q: %w", config.Name, err)
	}
	inner, err := p.inner.Listen(ctx, config)
	if err != nil {
		return nil, err
	}
	return &server{Server: inner, points: &p.points, closed: make(chan struct{})}, nil
}

// Connect connects to a server.
func (p *provider) Connect(ctx context.Context, config comch.ClientConfig) (comch.Connection,
	error) {
	if _, err := p.points.connect.Enter(ctx, nil, 0); err != nil {
		return nil, fmt.Errorf("connect to %q: %w", config.Name, err)
	}
	inner, err := p.inner.Connect(ctx, config)
	if err != nil {
		return nil, err
	}
	return newConnection(inner, &p.points), nil
}

type server struct {
	comch.Server
	points  *points
	closing sync.Once
	closed  chan struct{} // closed by Close, which ends a frozen Accept
}

// Accept waits for the next client.
func (s *server) Accept(ctx context.Context) (comch.Connection, error) {
	if _, err := s.points.accept.Enter(ctx, s.closed, 0); err != nil {
		return nil, fmt.Errorf("accept client at %s: %w", s.Address(), err)
	}
	inner, err := s.Server.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return newConnection(inner, s.points), nil
}

// Close stops listening.
func (s *server) Close() error {
	defer s.closing.Do(func() { close(s.closed) })
	return s.Server.Close()
}
