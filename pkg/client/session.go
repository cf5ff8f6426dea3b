// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// session is one connection of a volume to the relay, from the greeting until its end. It is one
// epoch of the client instance. A volume has one session after another.
type session struct {
	terms      *terms
	id         sessionID
	connection comch.Connection
	requester  requester
	info       Info // Size is that at the beginning of the session
	memory     lending
	pairs      []*comchPair               // one for each queue
	foreign    *dialects.TargetTranslator // of IO messages for a relay of the DOCA applications

	mu             sync.Mutex  // guards the fields below
	failure        error       // why this side ended the session
	protocolBroken bool        // the relay violated the protocol
	preempted      bool        // a response has said so
	deadline       *time.Timer // set by expectEnd
}

// openSession takes ownership of a connection and performs the handshake on it. The time that it
// takes to allocate memory extends the deadline.
func openSession(ctx context.Context, deadline time.Time, t *terms, m *memories,
	connection comch.Connection, number uint64) (*session, error) {
	s := newSession(t, connection, number)
	if err := s.handshake(ctx, deadline, m); err != nil {
		s.close(err)
		for _, pair := range s.pairs {
			if failure := pair.close(); failure != nil {
				t.config.Logger.Sugar().
					Warnf("close a queue of a session that could not be opened: %v", failure)
			}
		}
		return nil, err
	}
	return s, nil
}

// newSession takes ownership of a connection.
func newSession(t *terms, connection comch.Connection, number uint64) *session {
	s := &session{terms: t, id: sessionID{number: number}, connection: connection}
	if t.config.Protocol != dialects.None {
		s.requester = newDialectRelay(&t.config, connection)
		return s
	}
	s.requester = controlmsg.NewRequester(controlmsg.NewComchTransport(connection),
		controlmsg.EndpointConfig{
			Role:    controlmsg.RoleInitiator,
			Timeout: t.config.ControlTimeout, Software: t.config.Software,
			Logger: t.config.Logger,
			OnKeepAlive: func(m *controlmsg.KeepAlive) error {
				t.grow(m.VolumeSize)
				return nil
			},
		})
	return s
}

// handshake performs all steps from the greeting to the start of storage.
func (s *session) handshake(ctx context.Context, deadline time.Time, m *memories) error {
	if err := s.openVolume(ctx, deadline); err != nil {
		return err
	}
	started := time.Now()
	var err error
	if s.memory.dataMemory, err = m.ensure(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(time.Since(started)))
	defer cancel()
	if err := s.configure(ctx, m); err != nil {
		return err
	}
	if err := s.connectQueues(ctx); err != nil {
		return err
	}
	_, err = s.requester.Call(ctx, &controlmsg.StartStorage{})
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
	return s.terms.negotiate(s.id.number, &s.info, reply)
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
	s.id.writeVerifier = s.info.WriteVerifier
	s.memory.leases = time.Duration(hello.LeaseMs) * time.Millisecond
	return reply, nil
}

// configure gives the relay access to the volume's data memory.
func (s *session) configure(ctx context.Context, m *memories) error {
	config, info := &s.terms.config, &s.terms.info
	access := memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite
	if config.ReadOnly {
		access = memory.PCIWrite | memory.RemoteWrite // the data of reads is written to it
	}
	descriptor, err := s.export(ctx, m, access)
	if err != nil {
		return err
	}
	request := &controlmsg.ConfigureDataPath{
		QueueCount: uint32(config.queueCount()), Depth: uint32(info.Depth),
		BufferSize: info.BufferSize,
		Export: controlmsg.Export{
			Access: access, Length: s.memory.Len(), Descriptor: descriptor,
		},
		Owner: config.Owner.id, Client: config.Owner.name,
		Exclusive: config.Exclusive, ReadOnly: config.ReadOnly,
	}
	if config.Preempt != "" && s.id.number == 1 {
		// Whoever is in the way of a later session has come since.
		request.Preempt, err = controlmsg.ParseHolderID(config.Preempt)
		if err != nil {
			return err
		}
	}
	request.ClientInstance, request.Epoch = config.Instance.next()
	reply, err := controlmsg.Call(ctx, s.requester, request)
	if err != nil {
		return err
	}
	if config.Exclusive && !reply.Exclusive || config.ReadOnly && !reply.ReadOnly {
		return status.Errorf(status.NotSupported,
			"the target cannot open volumes exclusively or for reading: upgrade it")
	}
	if config.Preempt != "" && reply.HolderID == 0 {
		return status.Errorf(status.NotSupported,
			"the relay or the target cannot preempt (Preempt): upgrade it")
	}
	s.info.Exclusive = reply.Exclusive
	if reply.ReadOnly {
		s.info.ReadOnly = true
		s.info.CanTrim, s.info.CanWriteZeroes, s.info.CanFUA = false, false, false
	}
	s.info.OwnHolderID, s.info.HolderAbsent = reply.HolderID.String(), reply.HolderAbsent
	return nil
}

// export lends the session's memory to the relay, and returns its descriptor.
func (s *session) export(
	ctx context.Context, m *memories, access memory.Access,
) ([]byte, error) {
	var err error
	if s.memory.loan, err = m.lend(s.memory.dataMemory); err != nil {
		return nil, err
	}
	export := s.connection.ExportMemory
	if protocol := s.terms.config.Protocol; protocol != dialects.None {
		exporter, ok := s.connection.(comch.PlainExporter)
		if !ok {
			return nil, errors.Join(status.Errorf(status.NotSupported,
				"protocol %v needs a Comch provider that exports memory as libdoca does: doca, or "+
					"emulated for a relay on the emulated libdoca", protocol),
				s.memory.loan.Region().Close())
		}
		s.foreign = dialects.NewTargetTranslator(protocol, s.memory.loan.Region().Base())
		export = exporter.ExportPlain
	}
	descriptor, err := export(ctx, s.memory.loan.Region(), access)
	if errors.Is(err, status.TooBig) {
		err = fmt.Errorf("%w (limits.export of the relay's channel)", err)
	}
	return descriptor, errors.Join(err, s.memory.loan.Region().Close())
}

// spareReceives is the number of receives posted beyond the queue's depth: room for the response to
// a stop message.
const spareReceives = 4

// connectQueues creates a consumer for each queue, exchanges consumer ids with the relay, and
// creates the producers to the relay's consumers.
func (s *session) connectQueues(ctx context.Context) error {
	request := &controlmsg.StartDataPathConnections{}
	receives := s.terms.info.Depth + spareReceives
	for range s.terms.config.queueCount() {
		pair, err := newPair(ctx, s.connection, receives, s.memory.dataMemory, s.fail)
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
	bound := s.terms.config.ControlTimeout
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
