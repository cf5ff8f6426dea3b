// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	loopbackBytes = 64
	loopbackPause = 100 * time.Microsecond // between looks at the completion queue
)

// TryLoopback connects a device to itself over an address and sends up to 64 bytes of source, which
// belongs to domain, so the device really reads it. Nothing is written to source. connected reports
// whether there was a connection: if there was none, the error says nothing about the memory. ctx
// bounds everything but the release.
func TryLoopback(ctx context.Context, device Device, address netip.Addr, domain ProtectionDomain,
	source MemoryRegion) (connected bool, err error) {
	l := &loopback{device: device, domain: domain, source: source}
	err = l.connect(ctx, address)
	connected = err == nil
	if connected {
		err = l.send(ctx)
	}
	if err = l.explain(errors.Join(err, l.close())); err != nil {
		return connected, fmt.Errorf("send from the device at %v to itself: %w", address, err)
	}
	return true, nil
}

type loopback struct {
	device   Device
	domain   ProtectionDomain
	source   MemoryRegion
	scratch  *memory.Region
	received MemoryRegion // scratch
	queue    CompletionQueue
	ends     []Connection // the sender, and the receiver
	ended    int          // of these
}

func (l *loopback) connect(ctx context.Context, address netip.Addr) (err error) {
	if l.scratch, err = memory.Alloc("zc-relay loopback", loopbackBytes); err != nil {
		return err
	}
	if l.received, err = l.domain.Register(l.scratch, memory.LocalWrite); err != nil {
		return err
	}
	if l.queue, err = l.device.NewCompletionQueue(8); err != nil {
		return err
	}
	listener, err := l.device.Listen(ctx, netip.AddrPortFrom(address, 0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	accepting, cancel := context.WithCancel(ctx)
	defer cancel()
	accepted := make(chan Connection, 1)
	own := l.config()
	own.PrivateData = make([]byte, 16)
	_, _ = rand.Read(own.PrivateData) // never fails
	go func() {
		defer close(accepted)
		if c := l.accept(accepting, listener, own.PrivateData); c != nil {
			accepted <- c
		}
	}()
	sender, err := l.device.Connect(ctx, listener.Address(), own)
	if err != nil {
		cancel()
	} else {
		l.ends = append(l.ends, sender)
	}
	if receiver := <-accepted; receiver != nil {
		l.ends = append(l.ends, receiver)
	} else if err == nil {
		err = status.Errorf(status.NotConnected, "the device does not accept its own connection")
	}
	return err
}

// accept accepts the request with a token, and rejects those of strangers. It returns nil if that
// does not come: Connect says why.
func (l *loopback) accept(ctx context.Context, listener Listener, token []byte) Connection {
	for {
		request, err := listener.Accept(ctx)
		if err != nil {
			return nil
		}
		if !bytes.HasPrefix(request.PrivateData(), token) { // some transports append zeros
			_ = request.Reject(nil)
			continue
		}
		c, err := request.Accept(ctx, l.config())
		if err != nil {
			return nil
		}
		return c
	}
}

func (l *loopback) config() ConnectionConfig {
	receive := ReceiveRequest{Local: Segment{Key: l.received.LocalKey(), Length: loopbackBytes,
		Address: l.received.Base()}}
	return ConnectionConfig{Domain: l.domain, Queue: l.queue, SendRequests: 1, ReceiveRequests: 1,
		Receives: []ReceiveRequest{receive}}
}

// send returns when the receiver has what the sender has sent.
func (l *loopback) send(ctx context.Context) error {
	err := l.ends[0].PostSend([]SendRequest{{Opcode: OpSend, Local: Segment{
		Key: l.source.LocalKey(), Length: uint32(min(l.source.Len(), loopbackBytes)),
		Address: l.source.Base()}}})
	if err != nil {
		return err
	}
	l.ends[0].Flush()
	for left := 2; ; { // the send, and the receive
		var failed error
		l.poll(func(c Completion) {
			left--
			if failed == nil && (c.Status != StatusSuccess || c.Opcode == OpDisconnected) {
				failed = status.Errorf(c.Status.Code(), "%v: %v", c.Opcode, c.Status)
			}
		})
		if failed != nil || left <= 0 {
			return failed
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(loopbackPause):
		}
	}
}

func (l *loopback) poll(use func(Completion)) {
	var completions [4]Completion
	for _, c := range completions[:l.queue.Poll(completions[:])] {
		if c.Opcode == OpDisconnected {
			l.ended++
		}
		use(c)
	}
}

// close releases what there is. A connection stays attached to its queue until the device has ended
// it, which loopbackEnd bounds.
func (l *loopback) close() error {
	for _, c := range l.ends {
		c.Close()
	}
	var errs []error
	if l.queue != nil {
		errs = append(errs, l.awaitEnd())
	}
	if l.received != nil {
		errs = append(errs, l.received.Deregister())
	}
	err := errors.Join(errs...)
	if err == nil && l.scratch != nil {
		err = l.scratch.Close()
	}
	return err
}

// explain adds why a connection has ended, of which a completion has only the kind.
func (l *loopback) explain(err error) error {
	for _, c := range l.ends {
		if reason := c.Err(); err != nil && reason != nil {
			return fmt.Errorf("%w: %w", err, reason)
		}
	}
	return err
}

const loopbackEnd = 5 * time.Second

// awaitEnd polls until the connections have ended, and closes the queue.
func (l *loopback) awaitEnd() error {
	deadline := time.Now().Add(loopbackEnd)
	for ; l.ended < len(l.ends); time.Sleep(loopbackPause) {
		if time.Now().After(deadline) {
			return status.Errorf(status.TimeOut, "%d connections do not end", len(l.ends)-l.ended)
		}
		l.poll(func(Completion) {})
	}
	return l.queue.Close()
}
