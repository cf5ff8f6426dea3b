package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// clockTick is the resolution of the coarse clock that deadlines use.
const clockTick = 100 * time.Millisecond

// Volume is an opened remote volume.
type Volume struct {
	config      Config
	info        Info // as agreed when the volume was opened
	region      *memory.Region
	queues      []*Queue // the application's, then the one behind ReadAt
	session     atomic.Pointer[session]
	synchronous atomic.Pointer[synchronous]
	writes      acknowledgedWrites

	clock atomic.Int64 // nanoseconds since Open, advanced every clockTick

	ctx        context.Context // ends when the volume is closed
	cancel     context.CancelFunc
	background sync.WaitGroup
	done       chan struct{} // closed when there is no session any more

	callers  sync.RWMutex // held for reading by synchronous requests
	released atomic.Bool  // by Close or Abort

	mu      sync.Mutex    // guards what follows
	failure error         // why there is no session any more
	changed chan struct{} // closed, and replaced, when session or failure changes
	history history
}

// Info describes the volume, by its current session.
func (v *Volume) Info() Info { return v.session.Load().info }

// Queue returns queue i of Config.Queues.
func (v *Volume) Queue(i int) *Queue { return v.queues[:v.config.Queues][i] }

// Memory is the data memory that the requests of all queues refer to, of
// Config.MemorySize bytes. While a request is outstanding its part of the
// memory belongs to the transport: a write's must not be changed, a read's
// not be looked at.
func (v *Volume) Memory() []byte { return v.region.Bytes()[:v.config.MemorySize] }

// Done is closed when the volume cannot be used any more: when the connection
// to the relay has ended and Config.Reconnect does not bring it back. All
// outstanding requests then fail.
func (v *Volume) Done() <-chan struct{} { return v.done }

// Err says why the volume can no longer be used, nil while it can, or is
// being reopened.
func (v *Volume) Err() error {
	v.mu.Lock()
	failure := v.failure
	v.mu.Unlock()
	if failure != nil || v.reopens() {
		return failure
	}
	return v.session.Load().Err()
}

// reopens reports whether the volume comes back after the loss of a session.
func (v *Volume) reopens() bool { return v.config.Reconnect != nil }

// connectInterval is how often Open tries again while no relay offers the
// channel.
const connectInterval = 50 * time.Millisecond

// Open connects to a relay and opens its volume. While no relay offers the
// channel it keeps trying, up to ControlTimeout or the end of ctx.
func Open(ctx context.Context, config Config) (*Volume, error) {
	config.setDefaults()
	opening, cancel := context.WithTimeout(ctx, config.ControlTimeout)
	defer cancel()
	connection, err := connectPatiently(opening, &config)
	if err != nil {
		return nil, fmt.Errorf("connect to channel %q on device %q: %w", config.ChannelName, config.Device, err)
	}
	v := &Volume{config: config, done: make(chan struct{}), changed: make(chan struct{})}
	v.ctx, v.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := v.open(opening, connection); err != nil {
		return nil, errors.Join(fmt.Errorf("open channel %q on device %q: %w", config.ChannelName, config.Device, err), v.release())
	}
	return v, nil
}

func (v *Volume) open(ctx context.Context, connection comch.Connection) error {
	first, err := v.openSession(ctx, connection, 1)
	if err != nil {
		return err
	}
	v.session.Store(first)
	for i, l := range first.lanes {
		v.queues = append(v.queues, newQueue(v, i, l))
	}
	v.writes.durable = make([]uint64, len(v.queues))
	v.background.Go(v.runClock)
	v.background.Go(v.keepOpen)
	if v.config.SyncDepth > 0 {
		if err := v.startSynchronous(); err != nil {
			v.Abort()
			return err
		}
	}
	return nil
}

// accept settles what the relay offers: the first time what the volume is,
// and from then on whether it is still the same. It allocates the data
// memory.
func (v *Volume) accept(s *session, reply *controlmsg.OpenVolumeReply) error {
	if v.region != nil {
		return v.recognize(s, reply)
	}
	v.info = s.info
	if err := v.fitLimits(reply); err != nil {
		return err
	}
	s.info = v.info
	var err error
	v.region, err = memory.Alloc("zc-relay data", v.memorySize())
	return err
}

// connectPatiently connects, and waits for a relay that offers the channel.
func connectPatiently(ctx context.Context, config *Config) (comch.Connection, error) {
	for {
		connection, err := connect(ctx, config)
		if err == nil || !errors.Is(err, status.NotFound) {
			return connection, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(connectInterval):
		}
	}
}

func connect(ctx context.Context, config *Config) (comch.Connection, error) {
	return config.Provider.Connect(ctx, comch.ClientConfig{Device: config.Device, Name: config.ChannelName})
}

func (v *Volume) runClock() {
	start := time.Now()
	ticker := time.NewTicker(clockTick)
	defer ticker.Stop()
	for {
		select {
		case <-v.ctx.Done():
			return
		case <-ticker.C:
			v.clock.Store(int64(time.Since(start)))
		}
	}
}
