// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Responder is the side of a conversation that answers requests: a relay to its initiator, a target
// to its relay. Its methods may be called concurrently.
//
// It ends as a Requester does, and also when the peer sends no request for EndpointConfig.Timeout
// although it must: before and after hello, between configuring the data path and starting the
// storage, after a request that leads to PhaseFailed, and when closing is all that is left.
type Responder struct {
	link     *link
	requests chan Request // has room for one

	mu          sync.Mutex // guards what follows
	machine     machine
	correlation uint64    // of the outstanding request, 0 if there is none
	request     Kind      // of the latest request
	rejected    rejection // the latest request, if it has failed
}

// Request is a request that must be answered once, by Reply or Fail.
type Request struct {
	Correlation uint64
	Message     Message
	// AnswerBy is when to answer so that the requester gets it before it gives up; zero if it does
	// not say how long it waits.
	AnswerBy time.Time
}

// NewResponder starts a conversation over t, which it owns from now on. It panics unless
// config.Role is RoleRelay or RoleTarget.
func NewResponder(t Transport, config EndpointConfig) *Responder {
	c := conversationOfResponder[config.Role]
	if c == nil {
		panic(fmt.Sprintf("controlmsg: a responder cannot have the role %v", config.Role))
	}
	s := &Responder{
		link: newLink(t, config), requests: make(chan Request, 1), machine: newMachine(c),
	}
	s.link.start(s)
	return s
}

// Handler carries out the requests that Serve receives. Serve calls its methods one at a time, in
// the order that the conversation allows, with valid messages and a context. An error that a method
// returns is the answer to the request. The context ends before the requester gives up, so that it
// gets that answer.
type Handler interface {
	OpenVolume(context.Context, *OpenVolume) (*OpenVolumeReply, error)
	ConfigureDataPath(context.Context, *ConfigureDataPath) (*ConfigureDataPathReply, error)
	StartDataPathConnections(
		context.Context, *StartDataPathConnections,
	) (*StartDataPathConnectionsReply, error)
	StartStorage(context.Context) error
	Stop(context.Context) error
	// DestroyObjects reports in done whether Serve returns after the answer. If it does not, the
	// peer may repeat a DestroyObjects that has failed.
	DestroyObjects(context.Context) (done bool, err error)
}

// TargetHandler is the Handler of a target.
type TargetHandler interface {
	Handler
	CreateRDMAConnection(context.Context, *CreateRDMAConnection) (*CreateRDMAConnectionReply, error)
}

// Server is the Endpoint that carries out requests.
type Server interface {
	Endpoint
	// Serve passes requests to handler until the conversation or ctx ends: see Responder.Serve.
	Serve(ctx context.Context, handler Handler) error
	// Leave ends the conversation and sends the reason to the peer unless it is nil. It does not
	// wait for the peer: Close does.
	Leave(reason error)
}

// Serve passes each request to handler and answers it. It returns nil when DestroyObjects is done.
// Otherwise it returns the cause of ctx if ctx has ended, or the reason why the conversation has.
// If ctx ends during a request, its cause is the answer to that request.
func (s *Responder) Serve(ctx context.Context, handler Handler) error {
	// The peer must learn why its session ends, so answers do not depend on ctx. Config.Timeout
	// bounds them.
	answering := context.WithoutCancel(ctx)
	for {
		request, err := s.Next(ctx)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			return err
		}
		reply, done, err := s.handle(ctx, handler, &request)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		s.logOutcome(request.Message, err)
		if err != nil {
			err = s.Fail(answering, request.Correlation, err)
		} else {
			err = s.Reply(answering, request.Correlation, reply)
		}
		if err != nil {
			return fmt.Errorf("answer %v: %w", request.Message.Kind(), err)
		}
		if done {
			return nil
		}
	}
}

func (s *Responder) handle(
	ctx context.Context, handler Handler, request *Request,
) (reply Message, done bool, err error) {
	if !request.AnswerBy.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, request.AnswerBy, status.Errorf(status.TimeOut,
			"%s does not wait longer for the reply to %v", s.link.transport.RemoteName(),
			request.Message.Kind()))
		defer cancel()
	}
	switch m := request.Message.(type) {
	case *OpenVolume:
		reply, err = handler.OpenVolume(ctx, m)
	case *ConfigureDataPath:
		reply, err = handler.ConfigureDataPath(ctx, m)
	case *CreateRDMAConnection:
		if target, ok := handler.(TargetHandler); ok {
			reply, err = target.CreateRDMAConnection(ctx, m)
			break
		}
		err = status.Errorf(status.Unexpected, "this program does not serve %v", m.Kind())
	case *StartDataPathConnections:
		reply, err = handler.StartDataPathConnections(ctx, m)
	case *StartStorage:
		reply, err = &StartStorageReply{}, handler.StartStorage(ctx)
	case *Stop:
		reply, err = &StopReply{}, handler.Stop(ctx)
	case *DestroyObjects:
		done, err = handler.DestroyObjects(ctx)
		reply = &DestroyObjectsReply{}
	}
	return reply, done, err
}

// mustContinue is the set of phases in which a peer has no reason to take its time: it is setting
// up its session, or has to clean up or to close.
var mustContinue = phases(PhaseConnect, PhaseHello, PhaseConfigureDataPath, PhaseCreateConnections,
	PhaseStartConnections, PhaseDestroying, PhaseFailed)

// Next waits for the next request, which is valid and in order. It answers Hello itself and does
// not return it. A violation of the protocol ends the Responder: the peer gets the reason, and Next
// fails with what Err returns.
//
// If ctx ends, Next fails and nothing else changes. The silence of a peer that must continue counts
// only while a goroutine is in Next.
func (s *Responder) Next(ctx context.Context) (Request, error) {
	for {
		s.mu.Lock()
		bounded := mustContinue.has(s.machine.completed)
		s.mu.Unlock()
		var late <-chan time.Time
		if bounded {
			late = time.After(s.link.config.Timeout)
		}
		select {
		case request := <-s.requests:
			hello, ok := request.Message.(*Hello)
			if !ok {
				return request, nil
			}
			err := s.answerHello(context.WithoutCancel(ctx), request.Correlation, hello)
			if err != nil {
				s.link.fail(err)
				return Request{}, s.Err()
			}
		case <-s.link.done:
			return Request{}, s.Err()
		case <-ctx.Done():
			return Request{}, waitError(ctx, "wait for a request")
		case <-late:
			s.link.fail(status.Errorf(status.TimeOut, "no request within %v in phase %v",
				s.link.config.Timeout, s.Phase()))
			return Request{}, s.Err()
		}
	}
}

func (s *Responder) answerHello(ctx context.Context, correlation uint64, hello *Hello) error {
	version, err := negotiateVersion(minProtocolVersion, ProtocolVersion, hello.MinVersion,
		hello.MaxVersion)
	if err != nil {
		return err
	}
	reply := &HelloReply{
		Version:        version,
		Software:       s.link.config.Software,
		SilenceLimitMs: s.link.config.KeepAlive.silenceLimitMs(),
		Process:        s.link.config.Process,
	}
	if err := s.link.config.OnHello(hello, reply); err != nil {
		return err
	}
	size := min(hello.MaxMessageSize, s.link.receiveLimit())
	s.link.setSendLimit(size)
	reply.MaxMessageSize = size
	if err := s.Reply(ctx, correlation, reply); err != nil {
		return err
	}
	s.link.startKeepAlive(hello.SilenceLimitMs)
	return nil
}

// Reply answers a request with success. If m is not valid, too big for the peer, or not the reply
// to that request, nothing is sent and the request stays outstanding. If sending fails, the
// Responder ends.
func (s *Responder) Reply(ctx context.Context, correlation uint64, m Message) error {
	return s.answer(ctx, correlation, m, true)
}

// Fail answers a request with an Error made of err: its status.CodeOf, its text, and the current
// phase, or the other peer's phase if err is an *Error from another peer. OpenVolume and
// ConfigureDataPath may then be repeated; after any other request the peer can only destroy what it
// has.
func (s *Responder) Fail(ctx context.Context, correlation uint64, err error) error {
	return s.answer(ctx, correlation, report(err, s.Phase()), false)
}

func (s *Responder) answer(ctx context.Context, correlation uint64, m Message, success bool) error {
	err := s.Err()
	var b []byte
	if err == nil {
		b, err = s.link.encode(&Envelope{Correlation: correlation, Message: m})
	}
	if err == nil {
		// Complete before sending: the next request may arrive as soon as the peer has the answer.
		err = s.complete(correlation, m, success)
	}
	if err == nil {
		err = s.link.send(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("answer request %d with %v: %w", correlation, m.Kind(), err)
	}
	return nil
}

func (s *Responder) complete(correlation uint64, m Message, success bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if correlation == 0 || correlation != s.correlation {
		return status.Errorf(status.BadState, "no such request is outstanding")
	}
	if !success {
		s.machine.fail()
		reason, _ := m.(*Error)
		s.rejected = rejection{s.request, reason}
	} else if err := s.machine.succeed(m); err != nil {
		return err
	}
	s.correlation = 0
	return nil
}

func (s *Responder) deliver(e *Envelope) error {
	if farewell, ok := e.Message.(*Error); ok {
		s.link.endByPeer(s.attribute(farewell))
		return nil
	}
	if e.Correlation == 0 {
		return status.Errorf(status.InvalidValue, "%v has correlation 0", e.Message.Kind())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.machine.begin(e.Message); err != nil {
		return err
	}
	s.correlation, s.request, s.rejected = e.Correlation, e.Message.Kind(), rejection{}
	request := Request{Correlation: e.Correlation, Message: e.Message}
	if e.Timeout > 0 {
		request.AnswerBy = time.Now().Add(e.Timeout - answerMargin(e.Timeout))
	}
	s.requests <- request
	return nil
}

// answerMargin is how much earlier a request is answered than its requester gives up. What a
// request waits for may be a request to another peer, whose margin is part of the time of this one:
// so each peer of a chain gets the reason of the next.
func answerMargin(timeout time.Duration) time.Duration { return min(timeout/10, time.Second) }

// canPeerClose reports whether the peer would leave nothing behind: between requests, before
// configure_data_path or after destroy_objects.
func (s *Responder) canPeerClose() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.step == nil &&
		phases(PhaseConnect, PhaseHello, PhaseOpenVolume, PhaseDestroying).has(s.machine.completed)
}

// Announce sends a keep-alive with what EndpointConfig.Announce has to say, soon and without
// waiting. Over transports without regular keep-alives, only this tells the peer. Call it only
// after the hello.
func (s *Responder) Announce() { s.link.announce() }

// Phase returns the current step or, between requests, the last completed one.
func (s *Responder) Phase() Phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.phase()
}

// Done returns a channel that is closed when the conversation has ended, for whatever reason, even
// while a request is being handled.
func (s *Responder) Done() <-chan struct{} { return s.link.done }

// Err returns why the conversation has ended, or nil if it has not: as for a Requester, or
// status.NotConnected if the peer closed when nothing could be lost.
func (s *Responder) Err() error { return s.link.endError() }

// Leave ends the conversation and sends the reason to the peer unless it is nil. It does not wait
// for the peer: Close does.
func (s *Responder) Leave(reason error) { s.link.leave(reason) }

// Close ends the conversation, sends the reason to the peer unless it is nil, and closes the
// transport gracefully. It takes a bounded time. Later calls wait for the first.
func (s *Responder) Close(reason error) { s.link.close(reason) }
