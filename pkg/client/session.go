package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Instance identifies a client across sessions. A write whose session ended
// before it was answered may still be carried out by the target. A volume
// that is opened again with the same Instance is served only when all IO of
// the sessions before it has ended, so that no such write can strike later.
// Volumes that are open at the same time need instances of their own.
type Instance struct {
	id    [16]byte
	epoch atomic.Uint64
}

// NewInstance makes an instance that nobody else has.
func NewInstance() *Instance {
	i := &Instance{}
	_, _ = rand.Read(i.id[:]) // never fails
	return i
}

// next begins an epoch.
func (i *Instance) next() (id [16]byte, epoch uint64) { return i.id, i.epoch.Add(1) }

// session is one connection of a volume to the relay, from the greeting to its
// end: one epoch of the instance. A volume has one after the other.
type session struct {
	volume     *Volume
	number     uint64 // from 1
	connection comch.Connection
	requester  *controlmsg.Requester
	info       Info
	pairs      []*comchPair // one for each queue

	mu             sync.Mutex // guards what follows
	failure        error      // found by this side
	protocolBroken bool       // the relay cannot be worked with
	deadline       *time.Timer
}

// openSession goes through the handshake on a connection, which it owns from
// now on.
func (v *Volume) openSession(ctx context.Context, connection comch.Connection, number uint64) (*session, error) {
	s := &session{volume: v, number: number, connection: connection}
	s.requester = controlmsg.NewRequester(controlmsg.NewComchTransport(connection), controlmsg.EndpointConfig{
		Codec: controlmsg.NewProtobufCodec(), Role: controlmsg.RoleInitiator,
		Timeout: v.config.ControlTimeout, Software: v.config.Software, Logger: v.config.Logger,
	})
	if err := s.handshake(ctx); err != nil {
		s.close(err)
		for _, pair := range s.pairs {
			if failure := pair.close(); failure != nil {
				v.config.Logger.Sugar().Warnf("release a session that was not opened: %v", failure)
			}
		}
		return nil, err
	}
	return s, nil
}

// handshake goes through the handshake.
func (s *session) handshake(ctx context.Context) error {
	hello, err := s.requester.Greet(ctx)
	if err != nil {
		return err
	}
	reply, err := controlmsg.Call[*controlmsg.OpenVolumeReply](ctx, s.requester, &controlmsg.OpenVolume{})
	if err != nil {
		return err
	}
	s.info = infoOf(reply)
	s.info.Relay = hello.Software
	if err := s.volume.negotiate(s, reply); err != nil {
		return err
	}
	if err := s.configure(ctx); err != nil {
		return err
	}
	if err := s.connectQueues(ctx); err != nil {
		return err
	}
	_, err = s.requester.Call(ctx, &controlmsg.StartStorage{})
	return err
}

// negotiate settles what the relay offers: the first time what the volume is,
// and from then on whether it is still the same. It allocates the data
// memory.
func (v *Volume) negotiate(s *session, reply *controlmsg.OpenVolumeReply) error {
	if v.region != nil {
		return v.checkSameVolume(s, reply)
	}
	if err := v.checkLimits(reply); err != nil {
		return err
	}
	s.info.Queues, s.info.Depth, s.info.BufferSize = v.config.Queues, v.depth(), v.config.BufferSize
	v.info = s.info
	var err error
	v.region, err = memory.Alloc("zc-relay data", v.memorySize())
	return err
}

// configure gives the relay access to the volume's data memory.
func (s *session) configure(ctx context.Context) error {
	v := s.volume
	access := memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite
	descriptor, err := s.connection.ExportMemory(ctx, v.region, access)
	if err != nil {
		return err
	}
	request := &controlmsg.ConfigureDataPath{
		QueueCount: uint32(v.queueCount()), Depth: uint32(v.info.Depth), BufferSize: v.info.BufferSize,
		Export: controlmsg.Export{Access: access, Length: v.region.Len(), Descriptor: descriptor},
	}
	request.ClientInstance, request.Epoch = v.config.Instance.next()
	_, err = s.requester.Call(ctx, request)
	return err
}

// connectQueues makes the consumers, learns of the relay's, and makes the
// producers to them.
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
	reply, err := controlmsg.Call[*controlmsg.StartDataPathConnectionsReply](ctx, s.requester, request)
	if err != nil {
		return err
	}
	if len(reply.ConsumerIDs) != len(s.pairs) {
		return status.Errorf(status.InvalidValue, "relay announced %d consumers for %d queues", len(reply.ConsumerIDs), len(s.pairs))
	}
	for i, id := range reply.ConsumerIDs {
		if s.pairs[i].producer, err = s.connection.NewProducer(ctx, comch.ConsumerID(id)); err != nil {
			return err
		}
	}
	return nil
}

// comchPair is a queue's consumer and producer in one session.
type comchPair struct {
	session  *session
	consumer comch.Consumer
	producer comch.Producer
}

// newPair makes the consumer of a lane, with all of its receives posted.
func (s *session) newPair(ctx context.Context) (*comchPair, error) {
	receives := s.volume.info.Depth + spareReceives
	consumer, err := s.connection.NewConsumer(ctx, comch.ConsumerConfig{Receives: receives, MemorySize: receives * iomsg.Size})
	if err != nil {
		return nil, err
	}
	for i := range uint64(receives) {
		if err := consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i); err != nil {
			return nil, errors.Join(fmt.Errorf("post receive %d on the Comch consumer: %w", i, err), consumer.Close())
		}
	}
	consumer.Flush()
	return &comchPair{session: s, consumer: consumer}, nil
}

func (p *comchPair) close() error {
	err := p.consumer.Close()
	if p.producer != nil {
		err = errors.Join(err, p.producer.Close())
	}
	return err
}

// Err says why the session has ended, nil while it has not.
func (s *session) Err() error {
	s.mu.Lock()
	failure := s.failure
	s.mu.Unlock()
	if failure != nil {
		return failure
	}
	// The relay's own last words say more than the end of the connection.
	if err := s.requester.Err(); err != nil {
		return fmt.Errorf("volume %q: %w", s.info.Name, err)
	}
	if err := s.connection.Err(); err != nil {
		return fmt.Errorf("volume %q: connection to the relay: %w", s.info.Name, err)
	}
	return nil
}

// endError is Err, or a general error if the reason is not known yet.
func (s *session) endError() error {
	if err := s.Err(); err != nil {
		return err
	}
	return status.Errorf(status.ConnectionReset, "volume %q: the connection to the relay has ended", s.info.Name)
}

// fail ends the session because of err.
func (s *session) fail(err error) { s.failWith(err, false) }

// failProtocol ends the session for good: the relay does not keep to the
// protocol, so that another session would be no better.
func (s *session) failProtocol(err error) { s.failWith(err, true) }

func (s *session) failWith(err error, protocolBroken bool) {
	s.mu.Lock()
	if s.failure == nil {
		s.failure, s.protocolBroken = fmt.Errorf("volume %q: %w", s.info.Name, err), protocolBroken
	}
	s.mu.Unlock()
	s.connection.Abort()
}

// brokeProtocol reports whether the relay has broken the protocol.
func (s *session) brokeProtocol() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.protocolBroken
}

// expectEnd is called when an answer tells that the session is ending. If it
// has not ended within ControlTimeout, this side ends it.
func (s *session) expectEnd(code status.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deadline != nil {
		return
	}
	bound := s.volume.config.ControlTimeout
	s.deadline = time.AfterFunc(bound, func() {
		s.fail(status.Errorf(status.ConnectionReset, "the relay answered %v, but did not end the session within %v", code, bound))
	})
}

// closeReasonTimeout is how long the relay's reason for an end and the end of
// the connection may be apart.
const closeReasonTimeout = time.Second

// awaitEnd waits until the session has ended and the relay's last words, if it
// has said any, are known, or until ctx ends.
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

// close ends the session and tells the relay why, if it listens. The lanes
// stay, and see nothing more of the relay.
func (s *session) close(reason error) {
	s.mu.Lock()
	if s.deadline != nil {
		s.deadline.Stop()
	}
	s.mu.Unlock()
	s.requester.Close(reason)
	s.connection.Abort()
}
