package controlmsg

import (
	"context"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Requester is the side of a conversation that asks: an initiator towards its
// relay, a relay towards its target. Its methods may be called concurrently.
//
// It ends when it is closed, and by itself when the peer goes, is silent,
// reports an error that answers no request, or breaks the protocol. Close
// must be called in any case, to learn that nothing of it is left.
type Requester struct {
	link *link
	turn chan struct{} // filled by whoever has a request outstanding

	replies chan Message // to the outstanding request; has room for one

	mu          sync.Mutex // guards what follows
	machine     machine
	correlation uint64 // of the last request
	outstanding bool   // it has not been answered
}

// NewRequester starts a conversation over t, which it owns from now on. It
// panics if config.Role is no role that asks.
func NewRequester(t Transport, config EndpointConfig) *Requester {
	c := conversationAsking(config.Role)
	if c == nil {
		panic(fmt.Sprintf("controlmsg: a requester cannot have the role %v", config.Role))
	}
	r := &Requester{
		link: newLink(t, config), machine: newMachine(c),
		turn: make(chan struct{}, 1), replies: make(chan Message, 1),
	}
	r.link.start(r)
	return r
}

// Greet agrees on a version and on limits with the peer. It is the first
// request of every conversation.
func (r *Requester) Greet(ctx context.Context) (HelloReply, error) {
	reply, err := Call[*HelloReply](ctx, r, &Hello{
		Role:           r.link.config.Role,
		MinVersion:     minProtocolVersion,
		MaxVersion:     ProtocolVersion,
		MaxMessageSize: r.link.receiveLimit(),
		Software:       r.link.config.Software,
		SilenceLimitMs: r.link.config.KeepAlive.silenceLimitMs(),
	})
	if err != nil {
		return HelloReply{}, err
	}
	return *reply, nil
}

// Call sends a request and waits for its reply. Calls of several goroutines
// take turns.
//
// A request that is out of order or not valid is not sent, and nothing
// changes. A request that the peer refuses fails with its *Error; the phase
// then is as before for OpenVolume and ConfigureDataPath, which may be
// corrected and repeated, and PhaseFailed for all others. If ctx or
// EndpointConfig.Timeout ends while the request is outstanding, the Requester
// ends with it, because what the peer has done is unknown.
func (r *Requester) Call(ctx context.Context, request Message) (Message, error) {
	reply, err := r.call(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", request.Kind(), err)
	}
	return reply, nil
}

// Call calls r and returns the reply as what it is known to be, for instance
// Call[*OpenVolumeReply].
func Call[R Message](ctx context.Context, r *Requester, request Message) (R, error) {
	var none R
	reply, err := r.Call(ctx, request)
	if err != nil {
		return none, err
	}
	typed, ok := reply.(R)
	if !ok {
		return none, status.Errorf(status.InvalidValue, "%v is answered by %v, the caller expects %T", request.Kind(), reply.Kind(), none)
	}
	return typed, nil
}

func (r *Requester) call(ctx context.Context, request Message) (Message, error) {
	ctx, cancel := context.WithTimeout(ctx, r.link.config.Timeout)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, waitError(ctx, "wait for the previous request")
	}
	defer func() { <-r.turn }()

	b, err := r.begin(request)
	if err != nil {
		return nil, err
	}
	if err := r.link.sendBytes(ctx, b); err != nil {
		return nil, err
	}
	reply, err := r.wait(ctx)
	if err != nil {
		return nil, err
	}
	return reply, r.finish(request, reply)
}

// begin checks and encodes a request.
func (r *Requester) begin(request Message) ([]byte, error) {
	if err := r.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := r.link.encode(&Envelope{Correlation: r.correlation + 1, Message: request})
	if err != nil {
		return nil, err
	}
	if err := r.machine.begin(request); err != nil {
		return nil, err
	}
	r.correlation++
	r.outstanding = true
	return b, nil
}

func (r *Requester) wait(ctx context.Context) (Message, error) {
	select {
	case reply := <-r.replies:
		return reply, nil
	case <-r.link.done:
	case <-ctx.Done():
		r.link.end(waitError(ctx, "no answer from "+r.link.transport.RemoteName()))
	}
	select {
	case reply := <-r.replies: // the peer answered before it went
		return reply, nil
	default:
		return nil, r.Err()
	}
}

// finish takes the reply into account.
func (r *Requester) finish(request, reply Message) error {
	r.mu.Lock()
	refusal, refused := reply.(*Error)
	if refused {
		r.machine.fail()
		r.mu.Unlock()
		return refusal
	}
	err := r.machine.succeed(reply)
	r.mu.Unlock()
	if hello, ok := request.(*Hello); ok && err == nil {
		err = r.settle(hello, reply.(*HelloReply))
	}
	if err != nil {
		r.link.end(err)
	}
	return err
}

// settle applies the terms of the greeting.
func (r *Requester) settle(hello *Hello, reply *HelloReply) error {
	if reply.Version < hello.MinVersion || reply.Version > hello.MaxVersion {
		return status.Errorf(status.UnsupportedVersion, "the peer picked protocol version %d, offered were %d to %d",
			reply.Version, hello.MinVersion, hello.MaxVersion)
	}
	r.link.agree(reply.MaxMessageSize)
	r.link.watch(reply.SilenceLimitMs)
	return nil
}

func (r *Requester) deliver(e *Envelope) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.outstanding || e.Correlation != r.correlation {
		return status.Errorf(status.Unexpected, "%v with correlation %d answers no request", e.Message.Kind(), e.Correlation)
	}
	r.outstanding = false
	r.replies <- e.Message
	return nil
}

// mayEnd: whoever asks is the one to close.
func (r *Requester) mayEnd() bool { return r.reached() == PhaseDestroying }

// reached is the phase that was completed last.
func (r *Requester) reached() Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.reached
}

// Phase is the step under way or, between requests, the one completed last.
func (r *Requester) Phase() Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.phase()
}

// Done is closed when the conversation has ended, for whatever reason.
func (r *Requester) Done() <-chan struct{} { return r.link.done }

// Err says why the conversation has ended, nil before: an *Error of the peer,
// the reason given to Close, status.Shutdown if that was nil,
// status.ConnectionReset if the peer is gone, status.TimeOut if it is silent.
func (r *Requester) Err() error { return r.link.endError() }

// Close ends the conversation, tells the peer the reason unless it is nil,
// and closes the transport in order. It takes a bounded time. Second and
// later calls wait for the first.
func (r *Requester) Close(reason error) { r.link.close(reason) }
