package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Instance identifies a client across sessions. The target may still carry out a write whose
// session ended before the response. With the same Instance, a new session starts only after all IO
// of the earlier sessions has finished, so no such write can take effect later. Volumes that are
// open at the same time need different Instances.
type Instance struct {
	id    [16]byte
	epoch atomic.Uint64
}

// NewInstance returns an Instance with a random id.
func NewInstance() *Instance {
	i := &Instance{}
	_, _ = rand.Read(i.id[:]) // never fails
	return i
}

// next starts a new epoch.
func (i *Instance) next() (id [16]byte, epoch uint64) { return i.id, i.epoch.Add(1) }

// Owner is a program as others see it whom a volume is refused because that program has it open
// exclusively.
type Owner struct {
	id   [16]byte
	name string
}

// NewOwner returns an Owner with a random id. The name is for people, and at most
// controlmsg.MaxClientLength bytes of it are used; "" means the name of the program and the host,
// and the process id.
func NewOwner(name string) *Owner {
	if name == "" {
		host, _ := os.Hostname() // "" if it is unknown
		name = fmt.Sprintf("%s on %s (process %d)", filepath.Base(os.Args[0]), host, os.Getpid())
	}
	o := &Owner{name: printable.Line(name, controlmsg.MaxClientLength)}
	_, _ = rand.Read(o.id[:]) // never fails
	return o
}

// session is one connection of a volume to the relay, from the greeting until its end. It is one
// epoch of the client instance. A volume has one session after another.
type session struct {
	volume     *Volume
	number     uint64 // counts the volume's sessions, from 1
	connection comch.Connection
	requester  conversation
	info       Info // Size is that at the beginning of the session
	// leases is how long the relay may change volumes after this side has ended the session.
	leases   time.Duration
	memory   *dataMemory
	loan     *memory.Loan               // of the memory, to the relay
	evidence atomic.Uint32              // that memory is safe to use after the session has ended
	pairs    []*comchPair               // one for each queue
	foreign  *dialects.TargetTranslator // of IO messages for a relay of the DOCA applications

	mu             sync.Mutex  // guards the fields below
	failure        error       // why this side ended the session
	protocolBroken bool        // the relay violated the protocol
	preempted      bool        // a response has said so
	deadline       *time.Timer // set by expectEnd
}

// openSession takes ownership of a connection and performs the handshake on it. The time that it
// takes to allocate memory extends the deadline.
func (v *Volume) openSession(
	ctx context.Context, deadline time.Time, connection comch.Connection, number uint64,
) (*session, error) {
	s := newSession(v, connection, number)
	if err := s.handshake(ctx, deadline); err != nil {
		s.close(err)
		for _, pair := range s.pairs {
			if failure := pair.close(); failure != nil {
				v.config.Logger.Sugar().
					Warnf("close a queue of a session that could not be opened: %v", failure)
			}
		}
		return nil, err
	}
	return s, nil
}

// newSession takes ownership of a connection.
func newSession(v *Volume, connection comch.Connection, number uint64) *session {
	s := &session{volume: v, number: number, connection: connection}
	if v.config.Protocol != dialects.None {
		s.requester = newDialectRelay(s)
		return s
	}
	s.requester = controlmsg.NewRequester(controlmsg.NewComchTransport(connection),
		controlmsg.EndpointConfig{
			Codec: controlmsg.NewProtobufCodec(), Role: controlmsg.RoleInitiator,
			Timeout: v.config.ControlTimeout, OnKeepAlive: v.keptAlive, Software: v.config.Software,
			Logger: v.config.Logger,
		})
	return s
}

// handshake performs all steps from the greeting to the start of storage.
func (s *session) handshake(ctx context.Context, deadline time.Time) error {
	if err := s.openVolume(ctx, deadline); err != nil {
		return err
	}
	started := time.Now()
	if err := s.volume.ensureMemory(); err != nil {
		return err
	}
	s.memory = s.volume.memory.Load()
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(time.Since(started)))
	defer cancel()
	if err := s.configure(ctx); err != nil {
		return err
	}
	if err := s.connectQueues(ctx); err != nil {
		return err
	}
	_, err := s.requester.Call(ctx, &controlmsg.StartStorage{})
	return err
}

// openVolume opens the volume and checks what the relay offers.
func (s *session) openVolume(ctx context.Context, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	reply, err := s.describe(ctx)
	if err != nil {
		return err
	}
	return s.volume.negotiate(s, reply)
}

// describe greets the relay and has it describe the volume.
func (s *session) describe(ctx context.Context) (*controlmsg.OpenVolumeReply, error) {
	hello, err := s.requester.Greet(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := controlmsg.Call[*controlmsg.OpenVolumeReply](ctx, s.requester,
		&controlmsg.OpenVolume{})
	if err != nil {
		return nil, err
	}
	s.info = infoOf(reply)
	s.info.Relay = hello.Software
	s.leases = time.Duration(hello.LeaseMs) * time.Millisecond
	return reply, nil
}

// negotiate checks what the relay offers. The first session determines the volume; each later
// session must offer the same one.
func (v *Volume) negotiate(s *session, reply *controlmsg.OpenVolumeReply) error {
	if v.memory.Load() != nil {
		return v.checkSameVolume(s, reply)
	}
	if err := v.checkLimits(reply); err != nil {
		return err
	}
	s.info.Queues, s.info.BufferSize = v.config.Queues, v.config.BufferSize
	if s.info.Depth = v.depth(); v.config.SyncDepth > 0 {
		// As many spare slots as slots, if the relay has room for them.
		s.info.Depth = min(max(s.info.Depth, 2*v.config.SyncDepth), int(reply.MaxDepth))
		v.spareSlots = min(v.config.SyncDepth, s.info.Depth-v.config.SyncDepth)
	}
	v.info = s.info
	v.size.Store(s.info.Size) // last: see grow
	return nil
}

// configure gives the relay access to the volume's data memory.
func (s *session) configure(ctx context.Context) error {
	v := s.volume
	access := memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite
	if v.config.ReadOnly {
		access = memory.PCIWrite | memory.RemoteWrite // the data of reads is written to it
	}
	descriptor, err := s.export(ctx, access)
	if err != nil {
		return err
	}
	request := &controlmsg.ConfigureDataPath{
		QueueCount: uint32(v.queueCount()), Depth: uint32(v.info.Depth),
		BufferSize: v.info.BufferSize,
		Export: controlmsg.Export{
			Access: access, Length: s.memory.Len(), Descriptor: descriptor,
		},
		Owner: v.config.Owner.id, Client: v.config.Owner.name,
		Exclusive: v.config.Exclusive, ReadOnly: v.config.ReadOnly,
	}
	if v.config.Preempt != "" && s.number == 1 {
		// Whoever is in the way of a later session has come since.
		request.Preempt, err = controlmsg.ParseHolderID(v.config.Preempt)
		if err != nil {
			return err
		}
	}
	request.ClientInstance, request.Epoch = v.config.Instance.next()
	reply, err := controlmsg.Call(ctx, s.requester, request)
	if err != nil {
		return err
	}
	if v.config.Exclusive && !reply.Exclusive || v.config.ReadOnly && !reply.ReadOnly {
		return status.Errorf(status.NotSupported,
			"the target cannot open volumes exclusively or for reading: upgrade it")
	}
	if v.config.Preempt != "" && reply.HolderID == 0 {
		return status.Errorf(status.NotSupported,
			"the relay or the target cannot preempt (Preempt): upgrade it")
	}
	s.info.Exclusive, s.info.ReadOnly = reply.Exclusive, reply.ReadOnly || s.info.ReadOnly
	s.info.OwnHolderID = reply.HolderID.String()
	return nil
}

// connectQueues creates a consumer for each queue, exchanges consumer ids with the relay, and
// creates the producers to the relay's consumers.
func (s *session) connectQueues(ctx context.Context) error {
	request := &controlmsg.StartDataPathConnections{}
	for range s.volume.queueCount() {
		pair, err := s.newPair(ctx)
		if err != nil {
			return err
		}
		s.pairs = append(s.pairs, pair)
		request.ConsumerIDs = append(request.ConsumerIDs, uint32(pair.consumer.ID()))
	}
	reply, err := controlmsg.Call[*controlmsg.StartDataPathConnectionsReply](ctx, s.requester,
		request)
	if err != nil {
		return err
	}
	if len(reply.ConsumerIDs) != len(s.pairs) {
		return status.Errorf(status.InvalidValue,
			"relay announced %d consumers for %d queues", len(reply.ConsumerIDs), len(s.pairs))
	}
	for i, id := range reply.ConsumerIDs {
		producer, err := s.connection.NewProducer(ctx, comch.ConsumerID(id))
		if err != nil {
			return err
		}
		s.pairs[i].setProducer(producer)
	}
	return nil
}

// comchPair is the Comch consumer and producer that a queue uses in one session. producer is nil
// until connectQueues has created it.
type comchPair struct {
	session  *session
	consumer comch.Consumer
	producer comch.Producer
	// lateProducer and lateConsumer are the same objects if their device finds errors late, and
	// isLate reports whether either does.
	lateProducer comch.LateProducer
	lateConsumer comch.LateConsumer
	isLate       bool
	// awaitsRoom is set while the engine also sleeps until the producer can send again.
	awaitsRoom bool
}

// setProducer completes the pair.
func (p *comchPair) setProducer(producer comch.Producer) {
	p.producer = producer
	p.lateProducer, _ = producer.(comch.LateProducer)
	p.lateConsumer, _ = p.consumer.(comch.LateConsumer)
	p.isLate = p.lateProducer != nil || p.lateConsumer != nil
}

// pollLate collects the sends that have completed. It fails the session if the device has rejected
// a send or a receive that it had taken.
func (p *comchPair) pollLate() {
	if late := p.lateProducer; late != nil {
		late.Poll()
		if late.State() != progress.Running && late.Err() != nil {
			p.session.fail(fmt.Errorf("send a request to the relay: %w", late.Err()))
		}
	}
	if late := p.lateConsumer; late != nil && late.State() != progress.Running &&
		late.Err() != nil {
		p.session.fail(fmt.Errorf("receive responses of the relay: %w", late.Err()))
	}
}

// attach makes the engine sleep on the pair.
func (p *comchPair) attach(engine *progress.Engine) error {
	if err := engine.AddWaiter(p.consumer); err != nil {
		return err
	}
	if p.lateProducer == nil {
		return nil
	}
	err := engine.AddWaiter(p.lateProducer)
	if err != nil {
		engine.RemoveWaiter(p.consumer)
	}
	return err
}

// awaitRoom makes the engine wake when the producer, which has no room, can send again. An engine
// that cannot be made to does not notice before it wakes for another reason.
func (p *comchPair) awaitRoom(engine *progress.Engine) {
	if p.lateProducer != nil || p.awaitsRoom {
		return // attach has done it, or a former call
	}
	p.awaitsRoom = engine.AddWaiter(p.producer) == nil
}

// hasRoom undoes awaitRoom.
func (p *comchPair) hasRoom(engine *progress.Engine) {
	if p.awaitsRoom {
		engine.RemoveWaiter(p.producer)
		p.awaitsRoom = false
	}
}

// detach undoes attach and awaitRoom, and does nothing the second time.
func (p *comchPair) detach(engine *progress.Engine) {
	p.hasRoom(engine)
	engine.RemoveWaiter(p.consumer)
	if p.lateProducer != nil {
		engine.RemoveWaiter(p.lateProducer)
	}
}

// newPair creates a pair's consumer with all of its receives posted.
func (s *session) newPair(ctx context.Context) (*comchPair, error) {
	receives := s.volume.info.Depth + spareReceives
	consumer, err := s.connection.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: receives, MemorySize: receives * iomsg.Size})
	if err != nil {
		return nil, err
	}
	for i := range uint64(receives) {
		if err := consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i); err != nil {
			return nil, errors.Join(fmt.Errorf("post receive %d on the Comch consumer: %w", i, err),
				consumer.Close())
		}
	}
	consumer.Flush()
	s.memory.users.Add(1)
	return &comchPair{session: s, consumer: consumer}, nil
}

func (p *comchPair) close() error {
	p.session.memory.users.Add(-1)
	err := p.consumer.Close()
	if p.producer != nil {
		err = errors.Join(err, p.producer.Close())
	}
	return err
}

// Err returns why the session has ended, or nil while it has not.
func (s *session) Err() error {
	s.mu.Lock()
	failure := s.failure
	s.mu.Unlock()
	if failure != nil {
		return failure
	}
	// The reason that the relay sent is more specific than that of the connection.
	if err := s.requester.Err(); err != nil {
		return fmt.Errorf("volume %q: %w", s.info.Name, err)
	}
	if err := s.connection.Err(); err != nil {
		return fmt.Errorf("volume %q: connection to the relay: %w", s.info.Name, err)
	}
	return nil
}

// endError returns Err, or a generic error if the reason is not known yet.
func (s *session) endError() error {
	if err := s.Err(); err != nil {
		return err
	}
	return status.Errorf(status.ConnectionReset,
		"volume %q: the connection to the relay has ended", s.info.Name)
}

// fail ends the session because of err. The volume may be reopened.
func (s *session) fail(err error) { s.failWith(err, false) }

// failProtocol ends the session because the relay violated the protocol. The volume is not
// reopened, because another session would fare no better.
func (s *session) failProtocol(err error) { s.failWith(err, true) }

func (s *session) failWith(err error, protocolBroken bool) {
	s.mu.Lock()
	if s.failure == nil {
		s.failure, s.protocolBroken = fmt.Errorf("volume %q: %w", s.info.Name, err), protocolBroken
	}
	s.mu.Unlock()
	s.connection.Abort()
}

// farewell returns why the relay has ended the session, nil if it has not said so. It does when it
// has completed all that was in flight.
func (s *session) farewell() *controlmsg.Error {
	farewell, _ := errors.AsType[*controlmsg.Error](s.requester.Err())
	return farewell
}

// isProtocolBroken reports whether the relay has violated the protocol.
func (s *session) isProtocolBroken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.protocolBroken
}

// isPreempted reports whether another owner has taken the volume: the relay has ended the session,
// or a request, with status.InUse.
func (s *session) isPreempted() bool {
	farewell := s.farewell()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.preempted || farewell != nil && farewell.Code == status.InUse
}

// expectEnd is called when a response shows that the session is about to end. If the relay has not
// ended it within ControlTimeout, expectEnd fails it.
func (s *session) expectEnd(code status.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.preempted = s.preempted || code == status.InUse
	if s.deadline != nil {
		return
	}
	bound := s.volume.config.ControlTimeout
	s.deadline = time.AfterFunc(bound, func() {
		s.fail(status.Errorf(status.ConnectionReset,
			"the relay completed an IO with %v but did not end the session within %v", code, bound))
	})
}

// closeReasonTimeout bounds the time between the end of the connection and the arrival of the
// relay's reason, in either order.
const closeReasonTimeout = time.Second

// awaitEnd waits until the session has ended and the relay's reason, if it sent one, has arrived,
// or until ctx ends.
func (s *session) awaitEnd(ctx context.Context) {
	select {
	case <-s.connection.Done():
	case <-s.requester.Done():
	case <-ctx.Done():
		return
	}
	bound := time.After(closeReasonTimeout)
	for _, end := range []<-chan struct{}{s.connection.Done(), s.requester.Done()} {
		select {
		case <-end:
		case <-bound:
			return
		case <-ctx.Done():
			return
		}
	}
}

// close ends the session and sends the relay the reason if the connection still works. The Comch
// pairs stay open but receive nothing more.
func (s *session) close(reason error) {
	s.mu.Lock()
	if s.failure == nil {
		s.failure = reason
	}
	if s.deadline != nil {
		s.deadline.Stop()
	}
	s.mu.Unlock()
	s.requester.Close(reason)
	s.connection.Abort()
}
