package controlmsg

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Responder is the side of a conversation that answers: a relay towards its
// initiator, a target towards its relay. Its methods may be called
// concurrently.
//
// It ends as a Requester does, and also when the peer sends no request for
// EndpointConfig.Timeout while it has to: before its greeting, between
// configuring the data path and starting the storage, after a request that
// failed for good, and when all that is left is to close.
type Responder struct {
	link     *link
	requests chan Request // has room for one

	mu          sync.Mutex // guards what follows
	machine     machine
	correlation uint64 // of the outstanding request, 0 if there is none
}

// Request is a request that has to be answered once, by Reply or Fail.
type Request struct {
	Correlation uint64
	Message     Message
}

// NewResponder starts a conversation over t, which it owns from now on. It
// panics if config.Role is no role that answers.
func NewResponder(t Transport, config EndpointConfig) *Responder {
	c := conversationAnswering(config.Role)
	if c == nil {
		panic(fmt.Sprintf("controlmsg: a responder cannot have the role %v", config.Role))
	}
	s := &Responder{link: newLink(t, config), requests: make(chan Request, 1), machine: newMachine(c)}
	s.link.start(s)
	return s
}

// Next waits for the next request, which is valid and in order. The greeting
// is answered here and does not come up. What breaks the protocol ends the
// Responder: the peer is told, and Next fails with what Err says.
//
// If ctx ends, Next fails and nothing else changes. The silence of a peer
// that has to go on counts while someone waits in Next.
func (s *Responder) Next(ctx context.Context) (Request, error) {
	for {
		request, err := s.wait(ctx)
		if err != nil {
			return Request{}, err
		}
		hello, ok := request.Message.(*Hello)
		if !ok {
			return request, nil
		}
		if err := s.welcome(context.WithoutCancel(ctx), request.Correlation, hello); err != nil {
			return Request{}, err
		}
	}
}

func (s *Responder) wait(ctx context.Context) (Request, error) {
	var late <-chan time.Time
	if s.mustGoOn() {
		timer := time.NewTimer(s.link.config.Timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case request := <-s.requests:
		return request, nil
	case <-s.link.done:
		return Request{}, s.Err()
	case <-ctx.Done():
		return Request{}, waitError(ctx, "wait for a request")
	case <-late:
		s.link.end(status.Errorf(status.TimeOut, "no request within %v in phase %v", s.link.config.Timeout, s.Phase()))
		return Request{}, s.Err()
	}
}

// hasty are the phases in which a peer has no reason to take its time: it is
// setting up its session, or has to clean up or to close.
var hasty = phases(PhaseConnect, PhaseHello, PhaseConfigureDataPath, PhaseCreateConnections, PhaseStartConnections,
	PhaseDestroying, PhaseFailed)

func (s *Responder) mustGoOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return hasty.has(s.machine.reached)
}

// welcome answers the greeting.
func (s *Responder) welcome(ctx context.Context, correlation uint64, hello *Hello) error {
	version, err := negotiateVersion(minProtocolVersion, ProtocolVersion, hello.MinVersion, hello.MaxVersion)
	if err != nil {
		s.link.end(err)
		return s.Err()
	}
	size := min(hello.MaxMessageSize, s.link.receiveLimit())
	s.link.agree(size)
	err = s.Reply(ctx, correlation, &HelloReply{
		Version:        version,
		MaxMessageSize: size,
		Software:       s.link.config.Software,
		SilenceLimitMs: s.link.config.KeepAlive.silenceLimitMs(),
	})
	if err != nil {
		s.link.end(err)
		return s.Err()
	}
	s.link.watch(hello.SilenceLimitMs)
	return nil
}

// Reply answers a request with success. If m is not valid, too big for the
// peer, or not the reply to that request, nothing is sent and the request is
// still to be answered. If sending fails, the Responder ends.
func (s *Responder) Reply(ctx context.Context, correlation uint64, m Message) error {
	return s.answer(ctx, correlation, m, func() error { return s.machine.succeed(m) })
}

// Fail answers a request with an Error made of err: its status.CodeOf, its
// text and the current phase, or if err is an *Error of another peer, what
// that says. OpenVolume and ConfigureDataPath may then be repeated; after any
// other the peer can only destroy what it has.
func (s *Responder) Fail(ctx context.Context, correlation uint64, err error) error {
	return s.answer(ctx, correlation, report(err, s.Phase()), func() error {
		s.machine.fail()
		return nil
	})
}

func (s *Responder) answer(ctx context.Context, correlation uint64, m Message, conclude func() error) error {
	b, err := s.conclude(correlation, m, conclude)
	if err == nil {
		err = s.link.sendBytes(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("answer request %d with %v: %w", correlation, m.Kind(), err)
	}
	return nil
}

// conclude encodes the answer and then marks the request as answered: the
// next one may come as soon as this answer is out.
func (s *Responder) conclude(correlation uint64, m Message, conclude func() error) ([]byte, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	b, err := s.link.encode(&Envelope{Correlation: correlation, Message: m})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if correlation == 0 || correlation != s.correlation {
		return nil, status.Errorf(status.BadState, "no such request is outstanding")
	}
	if err := conclude(); err != nil {
		return nil, err
	}
	s.correlation = 0
	return b, nil
}

func (s *Responder) deliver(e *Envelope) error {
	if failure, ok := e.Message.(*Error); ok {
		s.link.endWith(failure, nil)
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
	s.correlation = e.Correlation
	s.requests <- Request(*e)
	return nil
}

// idle are the phases in which a peer that goes leaves nothing behind.
var idle = phases(PhaseConnect, PhaseHello, PhaseOpenVolume, PhaseDestroying)

func (s *Responder) mayEnd() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.pending == nil && idle.has(s.machine.reached)
}

// pendingKind is the kind of the outstanding request, 0 if there is none.
func (s *Responder) pendingKind() Kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machine.pending == nil {
		return 0
	}
	return s.machine.pending.request
}

// Phase is the step under way or, between requests, the one completed last.
func (s *Responder) Phase() Phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.phase()
}

// Done is closed when the conversation has ended, for whatever reason, even
// while a request is being handled.
func (s *Responder) Done() <-chan struct{} { return s.link.done }

// Err says why the conversation has ended, nil before: as for a Requester,
// and status.NotConnected if the peer has closed in order.
func (s *Responder) Err() error { return s.link.endError() }

// Close ends the conversation, tells the peer the reason unless it is nil,
// and closes the transport in order. It takes a bounded time. Second and
// later calls wait for the first.
func (s *Responder) Close(reason error) { s.link.close(reason) }
