// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// monitor is the goroutine of a device that handles events from the device and the connection
// manager. It also destroys the endpoints of ended connections, once their peers have confirmed the
// disconnect.
type monitor struct {
	device  *device
	wake    eventFD       // signaled when endpoints linger, or to stop
	stopNow chan struct{} // closed to stop
	ended   chan struct{} // closed when run returns
}

func startMonitor(d *device) (*monitor, error) {
	wake, err := newEventFD()
	if err != nil {
		return nil, err
	}
	m := &monitor{device: d, wake: wake, ended: make(chan struct{}), stopNow: make(chan struct{})}
	go m.run()
	return m, nil
}

// stop waits until the monitor has destroyed all lingering endpoints, and ends it.
func (m *monitor) stop() {
	close(m.stopNow)
	m.wake.signal()
	<-m.ended
	m.wake.close()
}

func (m *monitor) run() {
	defer close(m.ended)
	descriptors := []unix.PollFd{
		{Fd: int32(m.device.channel.Descriptor()), Events: unix.POLLIN},
		{Fd: int32(m.device.context.AsyncDescriptor()), Events: unix.POLLIN},
		{Fd: int32(m.wake), Events: unix.POLLIN},
	}
	for {
		left, wait := m.device.destroyLingering(time.Now())
		select {
		case <-m.stopNow:
			if left == 0 {
				return
			}
		default:
		}
		_, err := unix.Poll(descriptors, milliseconds(wait))
		if err != nil && !errors.Is(err, unix.EINTR) {
			m.device.log.Error("cannot wait for device events", zap.Error(err))
			return
		}
		m.wake.clear()
		if !m.pollConnectionEvents() {
			descriptors[0].Fd = ignored
		}
		if !m.pollDeviceEvents() {
			descriptors[1].Fd = ignored
		}
	}
}

// ignored makes poll skip a descriptor. The descriptor of a removed device is always readable.
const ignored = -1

// milliseconds converts a timeout for poll. It rounds up, so that a deadline has passed when poll
// returns. A negative timeout never expires.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int((d + time.Millisecond - 1) / time.Millisecond)
}

// maxEventsPerTurn bounds the events of one kind that are handled in a row, so that a flood of
// connection requests cannot delay device events.
const maxEventsPerTurn = 64

// pollConnectionEvents handles events of the connection manager. It returns false if there will be
// no more.
func (m *monitor) pollConnectionEvents() bool {
	for range maxEventsPerTurn {
		event, ok, err := m.device.channel.NextEvent()
		if err != nil {
			m.device.log.Error("connection manager events have stopped", zap.Error(err))
			return false
		}
		if !ok {
			break
		}
		m.device.handleConnectionEvent(&event)
	}
	return true
}

// handleConnectionEvent passes an event to the listener, the connection, and the handshake in
// progress of its endpoint. Only the monitor calls it, so a new identifier has its handle before
// its next event.
func (d *device) handleConnectionEvent(event *ibv.CMEvent) {
	d.mu.Lock()
	e := d.endpoints[event.Handle]
	d.mu.Unlock()
	if event.Type == ibv.EventConnectRequest {
		handle := d.nextHandle.Add(1)
		event.Request.SetHandle(handle)
		requester := d.addEndpoint(event.Request, handle)
		if e == nil || e.listener == nil || !e.listener.enqueue(requester, event) {
			requester.destroy()
		}
		return
	}
	if event.Type == ibv.EventDeviceRemoval {
		d.noteLoss()
	}
	if e == nil {
		return
	}
	c := e.connection.Load()
	switch event.Type {
	case ibv.EventDisconnected, ibv.EventTimeWaitExit:
		e.disconnected.Store(true)
		if c != nil {
			c.interrupt(errPeerDisconnected)
		}
	case ibv.EventDeviceRemoval, ibv.EventAddressChange:
		cause := status.Errorf(status.ConnectionReset, "RDMA device %s: %v",
			d.location.device, event.Type)
		if c != nil {
			c.interrupt(cause)
		}
		if e.listener != nil {
			e.listener.fail(cause)
		}
	}
	select {
	case e.events <- *event:
	default: // no handshake is in progress
	}
}

// pollDeviceEvents handles events of the device. It returns false if there will be no more.
func (m *monitor) pollDeviceEvents() bool {
	for range maxEventsPerTurn {
		event, ok, err := m.device.context.NextAsyncEvent()
		if err != nil {
			m.device.log.Error("RDMA device events have stopped", zap.Error(err))
			return false
		}
		if !ok {
			break
		}
		if event.Type == ibv.EventEstablished {
			m.device.confirmEstablished(event.QueuePair)
		} else {
			m.device.handleDeviceEvent(event)
		}
	}
	return true
}

// handleDeviceEvent interrupts the connections that an asynchronous event affects.
func (d *device) handleDeviceEvent(event ibv.AsyncEvent) {
	var affected []*connection
	d.mu.Lock()
	switch event.Type {
	case ibv.EventQPFatal, ibv.EventQPRequestError, ibv.EventQPAccessError:
		if c := d.connections[event.QueuePair]; c != nil {
			affected = []*connection{c}
		}
	case ibv.EventPortError:
		if uint8(event.Port) == d.port {
			affected = slices.Collect(maps.Values(d.connections))
		}
	case ibv.EventDeviceFatal, ibv.EventCQError:
		affected = slices.Collect(maps.Values(d.connections))
	}
	if event.Type == ibv.EventDeviceFatal {
		d.noteLoss()
	}
	d.mu.Unlock()
	reason, known := eventReasons[event.Type]
	if !known {
		return
	}
	d.log.Warn("RDMA device event",
		zap.Stringer("event", event.Type), zap.Int("connections", len(affected)))
	for _, c := range affected {
		c.interrupt(status.Errorf(status.ConnectionReset, "RDMA device %s: %v: %s",
			d.location.device, event.Type, reason))
	}
}

// eventReasons explains the events that end connections.
var eventReasons = map[ibv.AsyncEventType]string{
	ibv.EventPortError:      "the link is down (check `rdma link`)",
	ibv.EventDeviceFatal:    "the device has failed or is being removed (check the kernel log)",
	ibv.EventCQError:        "a completion queue has overrun",
	ibv.EventQPAccessError:  "the peer accessed memory without permission",
	ibv.EventQPRequestError: "a request from the peer was rejected",
	ibv.EventQPFatal:        "the queue pair has failed",
}

// confirmEstablished completes a handshake whose last packet was lost: a message from the peer
// implies that packet. Holding mu keeps the identifier from being destroyed.
func (d *device) confirmEstablished(number uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.connections[number]
	if c == nil || d.endpoints[c.endpoint.handle] != c.endpoint {
		return
	}
	if err := c.endpoint.id.NotifyEstablished(); err != nil {
		d.log.Debug("cannot confirm connection", zap.Error(err))
	}
}

// lingerTimeout bounds the wait for a peer to confirm a disconnect. The connection manager resends
// a lost disconnect request only while its identifier exists.
const lingerTimeout = time.Second

// disconnect notifies the peer, unless it has disconnected already, and leaves the endpoint to the
// monitor.
func (e *endpoint) disconnect() {
	if !e.disconnected.Load() {
		if err := e.id.Disconnect(); err != nil {
			e.disconnected.Store(true) // there is no connection left to end
		}
	}
	d := e.device
	d.mu.Lock()
	e.lingerDeadline = time.Now().Add(lingerTimeout)
	d.lingering = append(d.lingering, e)
	d.mu.Unlock()
	d.monitor.wake.signal()
}

// destroyLingering destroys the lingering endpoints whose peers have disconnected or whose deadline
// has passed. It returns how many are left, and how long to wait before the next call; a negative
// time means forever.
func (d *device) destroyLingering(now time.Time) (left int, wait time.Duration) {
	d.mu.Lock()
	var expired []*endpoint
	wait = -1
	kept := d.lingering[:0]
	for _, e := range d.lingering {
		remaining := e.lingerDeadline.Sub(now)
		if e.disconnected.Load() || remaining <= 0 {
			expired = append(expired, e)
			continue
		}
		kept = append(kept, e)
		if wait < 0 || remaining < wait {
			wait = remaining
		}
	}
	clear(d.lingering[len(kept):])
	d.lingering = kept
	left = len(kept)
	d.mu.Unlock()
	for _, e := range expired {
		e.destroy()
	}
	return left, wait
}

// eventFD is an eventfd by which one thread wakes another.
type eventFD int

func newEventFD() (eventFD, error) {
	descriptor, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, status.Errorf(status.OperatingSystem, "create event descriptor: %w", err)
	}
	return eventFD(descriptor), nil
}

// signal wakes the thread. The write fails only if the counter is full, when a signal is pending
// anyway.
func (e eventFD) signal() { _, _ = unix.Write(int(e), []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// clear consumes all signals.
func (e eventFD) clear() {
	var counter [8]byte
	_, _ = unix.Read(int(e), counter[:])
}

func (e eventFD) close() { _ = unix.Close(int(e)) }
