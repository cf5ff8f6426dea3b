// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Requester is the side of a conversation that sends requests: an initiator to its relay, a relay
// to its target. Its methods may be called concurrently.
//
// It ends when it is closed, and by itself when the peer disconnects, is silent for too long,
// reports an error that belongs to no request, or violates the protocol. Close must be called in
// any case; when it returns, all resources are released.
type Requester struct {
	link    *link
	turn    chan struct{} // has an element while a request is outstanding
	replies chan Message  // to the outstanding request; has room for one

	mu          sync.Mutex // guards what follows
	machine     machine
	correlation uint64 // of the last request
	outstanding bool   // the last request has not been answered
}

// NewRequester starts a conversation over t, which it owns from now on. It panics unless
// config.Role is RoleInitiator or RoleRelay.
func NewRequester(t Transport, config EndpointConfig) *Requester {
	c := conversationOfRequester[config.Role]
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

// Greet agrees with the peer on a version and limits. It must be the first request.
func (r *Requester) Greet(ctx context.Context) (HelloReply, error) {
	hello := &Hello{
		Role:           r.link.config.Role,
		MinVersion:     minProtocolVersion,
		MaxVersion:     ProtocolVersion,
		MaxMessageSize: r.link.receiveLimit(),
		Software:       r.link.config.Software,
		SilenceLimitMs: r.link.config.KeepAlive.silenceLimitMs(),
		DataSecurity:   r.link.config.DataSecurity,
	}
	reply, err := Call(ctx, r, hello)
	if err != nil {
		return HelloReply{}, err
	}
	return *reply, nil
}

// Caller is the Endpoint that sends requests. Its replies have the type that belongs to their
// request.
type Caller interface {
	Endpoint
	Call(ctx context.Context, request Message) (Message, error)
}

// Call calls c.Call and returns the reply with the type that belongs to the request.
func Call[R Message](ctx context.Context, c Caller, request RequestFor[R]) (R, error) {
	reply, err := c.Call(ctx, request)
	if err != nil {
		var none R
		return none, err
	}
	return reply.(R), nil // a Caller returns no other
}

// Call sends a request and waits for its reply. Calls of several goroutines take turns.
//
// A request that is out of order or not valid is not sent, and nothing changes. A request that the
// peer rejects fails with the peer's *Error; OpenVolume and ConfigureDataPath may then be corrected
// and repeated; after any other request the phase is PhaseFailed. If ctx ends or
// EndpointConfig.Timeout expires while the request is outstanding, the Requester ends too, because
// what the peer has done is unknown.
func (r *Requester) Call(ctx context.Context, request Message) (reply Message, err error) {
	defer func() {
		if err != nil {
			reply, err = nil, requestError(request, err)
		}
	}()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.link.config.Timeout)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, waitError(ctx, "wait for the previous request")
	}
	defer func() { <-r.turn }()

	deadline, _ := ctx.Deadline()
	b, err := r.begin(request, time.Until(deadline))
	if err != nil {
		return nil, err
	}
	if err := r.link.send(ctx, b); err != nil {
		return nil, err
	}
	select {
	case reply := <-r.replies:
		return reply, r.complete(request, reply)
	case <-r.link.done:
	case <-ctx.Done():
		r.link.fail(waitError(ctx, fmt.Sprintf("no reply from %s within %v",
			r.link.transport.RemoteName(), time.Since(begun).Round(time.Millisecond))))
	}
	select {
	case reply := <-r.replies: // arrived just before the end
		return reply, r.complete(request, reply)
	default:
		return nil, r.Err()
	}
}

// requestError adds to err which request has failed, unless err is what the peer reports about it.
func requestError(request Message, err error) error {
	kind := request.Kind()
	if reported, ok := err.(*Error); ok && reported.Phase.String() == kind.String() {
		return err
	}
	return fmt.Errorf("%v: %w", kind, err)
}

// begin checks and encodes a request. timeout tells the peer how long this side waits.
func (r *Requester) begin(request Message, timeout time.Duration) ([]byte, error) {
	if err := r.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := r.link.encode(&Envelope{Correlation: r.correlation + 1,
		Timeout: max(timeout, time.Millisecond), Message: request})
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

// complete ends the outstanding request with its reply.
func (r *Requester) complete(request, reply Message) error {
	r.mu.Lock()
	failure, failed := reply.(*Error)
	if failed {
		r.machine.fail()
		r.mu.Unlock()
		return failure
	}
	err := r.machine.succeed(reply)
	r.mu.Unlock()
	if hello, ok := request.(*Hello); ok && err == nil {
		err = r.applyTerms(hello, reply.(*HelloReply))
	}
	if err != nil {
		r.link.fail(err)
	}
	return err
}

func (r *Requester) applyTerms(hello *Hello, reply *HelloReply) error {
	if reply.Version < hello.MinVersion || reply.Version > hello.MaxVersion {
		return status.Errorf(status.UnsupportedVersion,
			"the peer picked protocol version %d, but %d to %d were offered",
			reply.Version, hello.MinVersion, hello.MaxVersion)
	}
	r.link.setSendLimit(reply.MaxMessageSize)
	r.link.startKeepAlive(reply.SilenceLimitMs)
	return nil
}

// Announce sends a keep-alive with what EndpointConfig.Announce has to say, soon and without
// waiting. Call it only after Greet.
func (r *Requester) Announce() { r.link.announce() }

func (r *Requester) attribute(farewell *Error) error { return farewell }

func (r *Requester) deliver(e *Envelope) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.outstanding || e.Correlation != r.correlation {
		return status.Errorf(status.Unexpected, "unsolicited %v with correlation %d",
			e.Message.Kind(), e.Correlation)
	}
	r.outstanding = false
	r.replies <- e.Message
	return nil
}

// canPeerClose reports whether everything has been destroyed. Before that, only the requester may
// close.
func (r *Requester) canPeerClose() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.completed == PhaseDestroying
}

// Phase returns the current step or, between requests, the last completed one.
func (r *Requester) Phase() Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.phase()
}

// Done returns a channel that is closed when the conversation has ended, for whatever reason.
func (r *Requester) Done() <-chan struct{} { return r.link.done }

// Err returns why the conversation has ended, or nil if it has not: an *Error from the peer, the
// reason given to Close, status.Shutdown if that was nil, status.ConnectionReset if the connection
// was lost, or status.TimeOut if the peer was silent.
func (r *Requester) Err() error { return r.link.endError() }

// Close ends the conversation, sends the reason to the peer unless it is nil, and closes the
// transport gracefully. It takes a bounded time. Later calls wait for the first.
func (r *Requester) Close(reason error) { r.link.close(reason) }
