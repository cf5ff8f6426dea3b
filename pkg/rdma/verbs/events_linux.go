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
	alarm   int // eventfd: identifiers have been retired, or stop
	stopped chan struct{}
	stopNow chan struct{}
}

func startMonitor(d *device) (*monitor, error) {
	alarm, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "create event descriptor: %w", err)
	}
	m := &monitor{device: d, alarm: alarm, stopped: make(chan struct{}), stopNow: make(chan struct{})}
	go m.run()
	return m, nil
}

// ring makes the monitor look at what was retired. A full counter means that
// it has been rung already.
func (m *monitor) ring() { _, _ = unix.Write(m.alarm, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// stop ends the monitor when it has destroyed all retired identifiers.
func (m *monitor) stop() {
	close(m.stopNow)
	m.ring()
	<-m.stopped
	_ = unix.Close(m.alarm)
}

func (m *monitor) run() {
	defer close(m.stopped)
	descriptors := []unix.PollFd{
		{Fd: int32(m.device.channel.Descriptor()), Events: unix.POLLIN},
		{Fd: int32(m.device.context.AsyncDescriptor()), Events: unix.POLLIN},
		{Fd: int32(m.alarm), Events: unix.POLLIN},
	}
	for {
		waiting, next := m.device.destroyRetired(time.Now())
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
		m.silence()
		if !m.takeConnectionEvents() {
			descriptors[0].Fd = unwatched
		}
		if !m.takeDeviceEvents() {
			descriptors[1].Fd = unwatched
		}
	}
}

// unwatched makes poll skip a descriptor: that of a device that is gone would
// be ready for ever.
const unwatched = -1

// milliseconds rounds up, so that a deadline has passed when poll returns; a
// negative duration means to wait without end.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int((d + time.Millisecond - 1) / time.Millisecond)
}

func (m *monitor) silence() {
	var counter [8]byte
	_, _ = unix.Read(m.alarm, counter[:])
}

// maxEventsPerTurn bounds one turn, so that a flood of connection requests
// cannot keep device events waiting.
const maxEventsPerTurn = 64

// takeConnectionEvents returns false if no more events will come.
func (m *monitor) takeConnectionEvents() bool {
	for range maxEventsPerTurn {
		event, ok, err := m.device.channel.Next()
		if err != nil {
			m.device.log.Error("no more connection events", zap.Error(err))
			return false
		}
		if !ok {
			break
		}
		m.device.hear(&event)
	}
	return true
}

// hear gives an event to the endpoint that it is about. Only the monitor
// calls it, so a new identifier has its handle before its next event.
func (d *device) hear(event *ibv.CMEvent) {
	d.mu.Lock()
	e := d.endpoints[event.Handle]
	d.mu.Unlock()
	if event.Type == ibv.EventConnectRequest {
		handle := d.nextHandle.Add(1)
		event.Request.SetHandle(handle)
		requester := d.adoptID(event.Request, handle)
		if e == nil || e.listener == nil || !e.listener.offer(requester, event) {
			requester.destroy()
		}
		return
	}
	if e != nil {
		e.hear(event)
	}
}

func (e *endpoint) hear(event *ibv.CMEvent) {
	switch event.Type {
	case ibv.EventDisconnected, ibv.EventTimeWaitExit:
		e.parted.Store(true)
		if c := e.connection.Load(); c != nil {
			c.interrupt(errPeerLeft)
		}
	case ibv.EventDeviceRemoval, ibv.EventAddressChange:
		e.lose(status.Errorf(status.ConnectionReset, "RDMA device %s: %v", e.device.location.device, event.Type))
	}
	select {
	case e.events <- *event:
	default: // nobody is in a handshake
	}
}

// lose ends what depends on the endpoint's device or address.
func (e *endpoint) lose(cause error) {
	if c := e.connection.Load(); c != nil {
		c.interrupt(cause)
	}
	if e.listener != nil {
		e.listener.fail(cause)
	}
}

// takeDeviceEvents returns false if no more events will come.
func (m *monitor) takeDeviceEvents() bool {
	for range maxEventsPerTurn {
		event, ok, err := m.device.context.NextAsyncEvent()
		if err != nil {
			m.device.log.Error("no more events of the RDMA device", zap.Error(err))
			return false
		}
		if !ok {
			break
		}
		m.device.heed(event)
	}
	return true
}

// heed ends the connections that an asynchronous event affects.
func (d *device) heed(event ibv.AsyncEvent) {
	var connections []*connection
	switch event.Type {
	case ibv.EventEstablished:
		d.confirm(event.QueuePair)
		return
	case ibv.EventQPFatal, ibv.EventQPRequestError, ibv.EventQPAccessError:
		connections = d.connectionsOf(event.QueuePair)
	case ibv.EventPortError:
		if uint8(event.Port) == d.port {
			connections = d.allConnections()
		}
	case ibv.EventDeviceFatal, ibv.EventCQError:
		connections = d.allConnections()
	default:
		return
	}
	d.log.Warn("event of the RDMA device", zap.Stringer("event", event.Type), zap.Int("connections", len(connections)))
	for _, c := range connections {
		c.interrupt(status.Errorf(status.ConnectionReset, "RDMA device %s: %v%s", d.location.device, event.Type, eventRemedies[event.Type]))
	}
}

var eventRemedies = map[ibv.AsyncEventType]string{
	ibv.EventPortError:      ": the link is down (see `rdma link`)",
	ibv.EventDeviceFatal:    ": the device has failed or is being removed (see the kernel's log)",
	ibv.EventCQError:        ": a completion queue has overrun",
	ibv.EventQPAccessError:  ": the peer asked for memory that it may not reach",
	ibv.EventQPRequestError: ": a request of the peer was refused",
	ibv.EventQPFatal:        ": the queue pair has failed",
}

// connectionsOf is the connection of a queue pair, if it still exists.
func (d *device) connectionsOf(number uint32) []*connection {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.connections[number]; c != nil {
		return []*connection{c}
	}
	return nil
}

func (d *device) allConnections() []*connection {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.connections))
}

// confirm completes a handshake whose last packet was lost: a message of the
// peer says the same. The lock keeps the identifier from being destroyed.
func (d *device) confirm(number uint32) {
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
func (e *endpoint) retire() {
	if !e.parted.Load() {
		if err := e.id.Disconnect(); err != nil {
			e.parted.Store(true) // there is no connection to be ended any more
		}
	}
	d := e.device
	d.mu.Lock()
	e.expires = time.Now().Add(lingerTimeout)
	d.retired = append(d.retired, e)
	d.mu.Unlock()
	d.monitor.ring()
}

// destroyRetired destroys the identifiers whose peers have parted or whose
// time is over. It returns how many are left, and in what time to look again,
// negative if there is none.
func (d *device) destroyRetired(now time.Time) (left int, next time.Duration) {
	d.mu.Lock()
	var over []*endpoint
	next = -1
	kept := d.retired[:0]
	for _, e := range d.retired {
		remaining := e.expires.Sub(now)
		if e.parted.Load() || remaining <= 0 {
			over = append(over, e)
			continue
		}
		kept = append(kept, e)
		if next < 0 || remaining < next {
			next = remaining
		}
	}
	clear(d.retired[len(kept):])
	d.retired = kept
	left = len(kept)
	d.mu.Unlock()
	for _, e := range over {
		e.destroy()
	}
	return left, next
}
