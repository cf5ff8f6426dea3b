//go:build verbs

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

// monitor waits for the events of one device and of the connection manager,
// and destroys identifiers when the peer has answered the farewell.
type monitor struct {
	device  *device
	wake    eventFD // identifiers have been retired, or stop
	stopped chan struct{}
	stopNow chan struct{}
}

func startMonitor(d *device) (*monitor, error) {
	wake, err := newEventFD()
	if err != nil {
		return nil, err
	}
	m := &monitor{device: d, wake: wake, stopped: make(chan struct{}), stopNow: make(chan struct{})}
	go m.run()
	return m, nil
}

// stop ends the monitor when it has destroyed all retired identifiers.
func (m *monitor) stop() {
	close(m.stopNow)
	m.wake.signal()
	<-m.stopped
	m.wake.close()
}

func (m *monitor) run() {
	defer close(m.stopped)
	descriptors := []unix.PollFd{
		{Fd: int32(m.device.channel.Descriptor()), Events: unix.POLLIN},
		{Fd: int32(m.device.context.AsyncDescriptor()), Events: unix.POLLIN},
		{Fd: int32(m.wake), Events: unix.POLLIN},
	}
	for {
		waiting, next := m.device.destroyLingering(time.Now())
		select {
		case <-m.stopNow:
			if waiting == 0 {
				return
			}
		default:
		}
		if _, err := unix.Poll(descriptors, milliseconds(next)); err != nil && !errors.Is(err, unix.EINTR) {
			m.device.log.Error("wait for device events", zap.Error(err))
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

// ignored makes poll skip a descriptor: that of a device that is gone would
// be ready for ever.
const ignored = -1

// milliseconds rounds up, so that a deadline has passed when poll returns; a
// negative duration means to wait without end.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int((d + time.Millisecond - 1) / time.Millisecond)
}

// maxEventsPerTurn bounds one turn, so that a flood of connection requests
// cannot keep device events waiting.
const maxEventsPerTurn = 64

// pollConnectionEvents returns false if no more events will come.
func (m *monitor) pollConnectionEvents() bool {
	for range maxEventsPerTurn {
		event, ok, err := m.device.channel.NextEvent()
		if err != nil {
			m.device.log.Error("no more connection events", zap.Error(err))
			return false
		}
		if !ok {
			break
		}
		m.device.handleConnectionEvent(&event)
	}
	return true
}

// handleConnectionEvent gives an event to the endpoint that it is about. Only
// the monitor calls it, so a new identifier has its handle before its next
// event.
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
		cause := status.Errorf(status.ConnectionReset, "RDMA device %s: %v", d.location.device, event.Type)
		if c != nil {
			c.interrupt(cause)
		}
		if e.listener != nil {
			e.listener.fail(cause)
		}
	}
	select {
	case e.events <- *event:
	default: // nobody is in a handshake
	}
}

// pollDeviceEvents returns false if no more events will come.
func (m *monitor) pollDeviceEvents() bool {
	for range maxEventsPerTurn {
		event, ok, err := m.device.context.NextAsyncEvent()
		if err != nil {
			m.device.log.Error("no more events of the RDMA device", zap.Error(err))
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

// handleDeviceEvent ends the connections that an asynchronous event affects.
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
	d.mu.Unlock()
	reason, known := eventReasons[event.Type]
	if !known {
		return
	}
	d.log.Warn("event of the RDMA device", zap.Stringer("event", event.Type), zap.Int("connections", len(affected)))
	for _, c := range affected {
		c.interrupt(status.Errorf(status.ConnectionReset, "RDMA device %s: %v%s", d.location.device, event.Type, reason))
	}
}

var eventReasons = map[ibv.AsyncEventType]string{
	ibv.EventPortError:      ": the link is down (see `rdma link`)",
	ibv.EventDeviceFatal:    ": the device has failed or is being removed (see the kernel's log)",
	ibv.EventCQError:        ": a completion queue has overrun",
	ibv.EventQPAccessError:  ": the peer asked for memory that it may not reach",
	ibv.EventQPRequestError: ": a request of the peer was refused",
	ibv.EventQPFatal:        ": the queue pair has failed",
}

// confirm completes a handshake whose last packet was lost: a message of the
// peer says the same. The lock keeps the identifier from being destroyed.
func (d *device) confirmEstablished(number uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.connections[number]
	if c == nil || d.endpoints[c.endpoint.handle] != c.endpoint {
		return
	}
	if err := c.endpoint.id.NotifyEstablished(); err != nil {
		d.log.Debug("confirm connection", zap.Error(err))
	}
}

// lingerTimeout bounds the wait for a peer's answer to the farewell. The
// connection manager repeats a lost farewell only as long as its identifier
// exists.
const lingerTimeout = time.Second

// retire takes leave of the peer, unless it has left already, and leaves the
// identifier to the monitor.
func (e *endpoint) disconnect() {
	if !e.disconnected.Load() {
		if err := e.id.Disconnect(); err != nil {
			e.disconnected.Store(true) // there is no connection to be ended any more
		}
	}
	d := e.device
	d.mu.Lock()
	e.lingerDeadline = time.Now().Add(lingerTimeout)
	d.lingering = append(d.lingering, e)
	d.mu.Unlock()
	d.monitor.wake.signal()
}

// destroyLingering destroys the identifiers whose peers have disconnected or whose
// time is over. It returns how many are left, and in what time to look again,
// negative if there is none.
func (d *device) destroyLingering(now time.Time) (left int, next time.Duration) {
	d.mu.Lock()
	var over []*endpoint
	next = -1
	kept := d.lingering[:0]
	for _, e := range d.lingering {
		remaining := e.lingerDeadline.Sub(now)
		if e.disconnected.Load() || remaining <= 0 {
			over = append(over, e)
			continue
		}
		kept = append(kept, e)
		if next < 0 || remaining < next {
			next = remaining
		}
	}
	clear(d.lingering[len(kept):])
	d.lingering = kept
	left = len(kept)
	d.mu.Unlock()
	for _, e := range over {
		e.destroy()
	}
	return left, next
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

// signal wakes the thread. A full counter means that it has been done already.
func (e eventFD) signal() { _, _ = unix.Write(int(e), []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// clear consumes the signals.
func (e eventFD) clear() {
	var counter [8]byte
	_, _ = unix.Read(int(e), counter[:])
}

func (e eventFD) close() { _ = unix.Close(int(e)) }
