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
	connection  comch.Connection
	requester   *controlmsg.Requester
	info        Info
	region      *memory.Region
	queues      []*Queue // the application's, then the one behind ReadAt
	synchronous atomic.Pointer[synchronous]

	clock    atomic.Int64 // nanoseconds since Open, advanced every clockTick
	closing  chan struct{}
	clockEnd sync.WaitGroup

	callers  sync.RWMutex // held for reading by synchronous requests
	released atomic.Bool  // by Close or Abort

	mu      sync.Mutex // guards failure
	failure error
}

// Info describes the volume.
func (v *Volume) Info() Info { return v.info }

// Queue returns queue i of Config.Queues.
func (v *Volume) Queue(i int) *Queue { return v.queues[:v.config.Queues][i] }

// Memory is the data memory that the requests of all queues refer to, of
// Config.MemorySize bytes. While a request is outstanding its part of the
// memory belongs to the transport: a write's must not be changed, a read's
// not be looked at.
func (v *Volume) Memory() []byte { return v.region.Bytes()[:v.config.MemorySize] }

// Done is closed when the connection to the relay has ended. All outstanding
// requests then fail.
func (v *Volume) Done() <-chan struct{} { return v.connection.Done() }

// Err says why the volume can no longer be used, nil while it can.
func (v *Volume) Err() error {
	v.mu.Lock()
	failure := v.failure
	v.mu.Unlock()
	if failure != nil {
		return failure
	}
	// The relay's own last words say more than the end of the connection.
	if err := v.requester.Err(); err != nil {
		return fmt.Errorf("volume %q: %w", v.info.Name, err)
	}
	if err := v.connection.Err(); err != nil {
		return fmt.Errorf("volume %q: connection to the relay: %w", v.info.Name, err)
	}
	return nil
}

// endError is Err, or a general error if the reason is not known yet.
func (v *Volume) endError() error {
	if err := v.Err(); err != nil {
		return err
	}
	return status.Errorf(status.ConnectionReset, "volume %q: the connection to the relay has ended", v.info.Name)
}

// violation gives the volume up: the relay does not keep to the protocol.
func (v *Volume) violation(err error) {
	v.mu.Lock()
	if v.failure == nil {
		v.failure = fmt.Errorf("volume %q: %w", v.info.Name, err)
	}
	v.mu.Unlock()
	v.connection.Abort()
}

// connectInterval is how often Open tries again while no relay offers the
// channel.
const connectInterval = 50 * time.Millisecond

// Open connects to a relay and opens its volume. While no relay offers the
// channel it keeps trying, up to ControlTimeout or the end of ctx.
func Open(ctx context.Context, config Config) (*Volume, error) {
	config.setDefaults()
	ctx, cancel := context.WithTimeout(ctx, config.ControlTimeout)
	defer cancel()
	connection, err := connect(ctx, &config)
	if err != nil {
		return nil, fmt.Errorf("connect to channel %q on device %q: %w", config.ChannelName, config.Device, err)
	}
	v := &Volume{config: config, connection: connection, closing: make(chan struct{})}
	v.requester = controlmsg.NewRequester(controlmsg.NewComchTransport(connection), controlmsg.EndpointConfig{
		Codec: controlmsg.NewProtobufCodec(), Role: controlmsg.RoleInitiator,
		Timeout: config.ControlTimeout, Software: config.Software, Logger: config.Logger,
	})
	if err := v.start(ctx); err != nil {
		v.abandon(err)
		return nil, fmt.Errorf("open channel %q on device %q: %w", config.ChannelName, config.Device, err)
	}
	return v, nil
}

func connect(ctx context.Context, config *Config) (comch.Connection, error) {
	for {
		connection, err := config.Provider.Connect(ctx, comch.ClientConfig{Device: config.Device, Name: config.ChannelName})
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

// start goes through the handshake.
func (v *Volume) start(ctx context.Context) error {
	if err := v.open(ctx); err != nil {
		return err
	}
	if err := v.configure(ctx); err != nil {
		return err
	}
	if err := v.connectQueues(ctx); err != nil {
		return err
	}
	if _, err := v.requester.Call(ctx, &controlmsg.StartStorage{}); err != nil {
		return err
	}
	v.clockEnd.Go(v.runClock)
	if v.config.SyncDepth > 0 {
		return v.startSynchronous()
	}
	return nil
}

func (v *Volume) open(ctx context.Context) error {
	hello, err := v.requester.Greet(ctx)
	if err != nil {
		return err
	}
	reply, err := controlmsg.Call[*controlmsg.OpenVolumeReply](ctx, v.requester, &controlmsg.OpenVolume{})
	if err != nil {
		return err
	}
	v.info = infoOf(reply)
	v.info.Relay = hello.Software
	return v.fitLimits(reply)
}

// configure allocates the data memory and gives the relay access to it.
func (v *Volume) configure(ctx context.Context) error {
	region, err := memory.Alloc("zc-relay data", v.memorySize())
	if err != nil {
		return err
	}
	v.region = region
	access := memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite
	descriptor, err := v.connection.ExportMemory(ctx, region, access)
	if err != nil {
		return err
	}
	request := &controlmsg.ConfigureDataPath{
		QueueCount: uint32(v.queueCount()), Depth: uint32(v.info.Depth), BufferSize: v.info.BufferSize,
		Export: controlmsg.Export{Access: access, Length: region.Len(), Descriptor: descriptor},
	}
	request.ClientInstance, request.Epoch = v.config.Instance.next()
	_, err = v.requester.Call(ctx, request)
	return err
}

// connectQueues makes the consumers, learns of the relay's, and makes the
// producers to them.
func (v *Volume) connectQueues(ctx context.Context) error {
	depth := v.info.Depth
	request := &controlmsg.StartDataPathConnections{}
	for range v.queueCount() {
		consumer, err := v.connection.NewConsumer(ctx, consumerConfig(depth))
		if err != nil {
			return err
		}
		queue, err := newQueue(v, consumer, depth)
		if err != nil {
			return errors.Join(err, consumer.Close())
		}
		v.queues = append(v.queues, queue)
		request.ConsumerIDs = append(request.ConsumerIDs, uint32(consumer.ID()))
	}
	reply, err := controlmsg.Call[*controlmsg.StartDataPathConnectionsReply](ctx, v.requester, request)
	if err != nil {
		return err
	}
	if len(reply.ConsumerIDs) != len(v.queues) {
		return status.Errorf(status.InvalidValue, "relay announced %d consumers for %d queues", len(reply.ConsumerIDs), len(v.queues))
	}
	for i, id := range reply.ConsumerIDs {
		producer, err := v.connection.NewProducer(ctx, comch.ConsumerID(id))
		if err != nil {
			return err
		}
		v.queues[i].producer = producer
	}
	return nil
}

func (v *Volume) runClock() {
	start := time.Now()
	ticker := time.NewTicker(clockTick)
	defer ticker.Stop()
	for {
		select {
		case <-v.closing:
			return
		case <-ticker.C:
			v.clock.Store(int64(time.Since(start)))
		}
	}
}
