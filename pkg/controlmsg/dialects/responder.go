// SPDX-License-Identifier: Apache-2.0

package dialects

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Handler carries out the requests of the applications. A Responder calls its methods one at a time
// and in the order of the protocol.
type Handler interface {
	QueryStorage(ctx context.Context) (*QueryStorageReply, error)
	// InitStorage may be repeated after it has failed.
	InitStorage(ctx context.Context, request *InitStorage) error
	// CreateConnection connects an RDMA connection, and returns the details of this side's end. In
	// 2.10 the queues follow each other. Only targets are asked.
	CreateConnection(ctx context.Context, request *CreateConnection) (details []byte, err error)
	// StartConnections connects what the peer has not asked to connect one by one.
	StartConnections(ctx context.Context) error
	StartStorage(ctx context.Context) error
	// StopStorage completes what is in flight. In 2.10 an IO message takes its place.
	StopStorage(ctx context.Context) error
	// Stopped returns a channel that is closed when that IO message has been returned, or nil if
	// none can come.
	Stopped() <-chan struct{}
	// Shutdown releases everything. The peer may ask at any time. done means that the peer needs
	// nothing more.
	Shutdown(ctx context.Context) (done bool, err error)
}

// ResponderConfig configures a Responder.
type ResponderConfig struct {
	Handler Handler
	Version Version
	// IsGuessed: the version is known only to be one of 3.x until init_storage comes.
	IsGuessed bool
	// Setting completes the advice "set …" if init_storage fits more than one release, for instance
	// "listen.protocol to the relay's".
	Setting string
	// IsTarget: the peer is a relay, and connects RDMA before it starts the storage. Otherwise it
	// is an initiator, which in 3.x never asks to connect: the Responder does it after init_storage
	// has been answered.
	IsTarget bool
	// Timeout bounds each wait for the peer, except while the data path runs, and that of a target
	// for the first request: relays connect before they have an initiator.
	Timeout time.Duration
	// OnFailure is called with each request that has failed, for the log.
	OnFailure func(request string, err error)
}

// Responder answers one peer of the applications.
type Responder struct {
	config    ResponderConfig
	transport controlmsg.Transport
	phase     phase
	begun     bool  // a request has come
	failed    error // why the data path of a 3.x initiator could not be connected
}

// phase is the last step that a conversation has completed.
type phase uint8

const (
	phaseBegun phase = iota
	phaseConfigured
	phaseConnected
	phaseRunning
	phaseStopped
)

// expected names the requests that may follow each phase, in errors.
var expected = [...]string{
	phaseBegun:      "query_storage_request or init_storage_request",
	phaseConfigured: "start_data_path_connections",
	phaseConnected:  "start_storage_request",
	phaseRunning:    "stop_storage_request",
	phaseStopped:    "shutdown_request",
}

// NewResponder begins a conversation on a transport, which stays the caller's.
func NewResponder(transport controlmsg.Transport, config ResponderConfig) *Responder {
	config.IsGuessed = config.IsGuessed && config.Version != DOCA2_10
	return &Responder{config: config, transport: transport}
}

// Version returns the version as far as it is known. It is certain when the Handler is asked for
// InitStorage: see ResponderConfig.IsGuessed.
func (r *Responder) Version() Version { return r.config.Version }

// Serve carries out the peer's requests until it shuts down, which returns nil, or something fails.
func (r *Responder) Serve(ctx context.Context) error {
	answering := context.WithoutCancel(ctx)
	for {
		request, err := r.next(ctx)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			return err
		}
		reply, done, err := r.handle(ctx, request.Message)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if err != nil {
			r.config.OnFailure(request.Message.Name(), err)
			reply = &Response{Result: status.CodeOf(err),
				Text: printable.Line(err.Error(), maxText)}
		}
		if answerErr := r.answer(answering, request, reply); answerErr != nil {
			return fmt.Errorf("answer %s: %w", request.Message.Name(), answerErr)
		}
		if err != nil && r.phase != phaseBegun {
			return err // the applications do not go back a step
		}
		if done {
			return nil
		}
		if r.phase == phaseConfigured && r.connectsUnasked() {
			r.failed = r.config.Handler.StartConnections(ctx)
			r.phase = phaseConnected
		}
	}
}

// connectsUnasked reports whether the peer does not ask to connect the data path.
func (r *Responder) connectsUnasked() bool {
	return r.config.Version != DOCA2_10 && !r.config.IsTarget
}

// next waits for the next request.
func (r *Responder) next(ctx context.Context) (*Envelope, error) {
	phase := r.phase
	switch {
	case phase == phaseRunning && r.config.Version == DOCA2_10:
		phase = phaseStopped // which the IO message for it will make true
		var end func()
		ctx, end = r.limitAfterStop(ctx)
		defer end()
	case phase != phaseRunning && (r.begun || !r.config.IsTarget):
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.config.Timeout)
		defer cancel()
	}
	b, err := r.transport.Receive(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", expected[phase], err)
	}
	r.begun = true
	if r.config.IsGuessed {
		if v := DetectInit(b); v != None {
			r.config.Version, r.config.IsGuessed = v, false
		}
	}
	return Decode(r.config.Version, b)
}

// limitAfterStop returns a context for the wait for the next request, which is bounded from the
// moment at which the data path has stopped. end releases it.
func (r *Responder) limitAfterStop(ctx context.Context) (limited context.Context, end func()) {
	limited, cancel := context.WithCancelCause(ctx)
	stopped := r.config.Handler.Stopped()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-stopped:
		case <-limited.Done():
			return
		}
		timer := time.NewTimer(r.config.Timeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(context.DeadlineExceeded)
		case <-limited.Done():
		}
	})
	return limited, func() {
		cancel(nil)
		waiting.Wait()
	}
}

func (r *Responder) answer(ctx context.Context, request *Envelope, reply Message) error {
	ctx, cancel := context.WithTimeout(ctx, r.config.Timeout)
	defer cancel()
	b, err := Encode(r.config.Version, &Envelope{ID: request.ID,
		Correlation: request.Correlation, Message: reply})
	if err != nil {
		return err
	}
	return r.transport.Send(ctx, b)
}

// handle carries out one request.
func (r *Responder) handle(ctx context.Context, request Message) (
	reply Message, done bool, err error) {
	h := r.config.Handler
	switch m := request.(type) {
	case *QueryStorage:
		if r.phase == phaseBegun {
			reply, err = h.QueryStorage(ctx)
			return reply, false, err
		}
	case *InitStorage:
		if r.phase == phaseBegun && r.config.IsGuessed {
			return nil, false, status.Errorf(status.InvalidValue, "the request fits more than one "+
				"release: set %s, for instance doca-3.0", r.config.Setting)
		}
		if r.phase == phaseBegun {
			if err = h.InitStorage(ctx, m); err == nil {
				r.phase = phaseConfigured
			}
			return r.replyOf(&InitStorageReply{}), false, err
		}
	case *CreateConnection:
		if r.phase == phaseConfigured && r.config.IsTarget {
			details, err := h.CreateConnection(ctx, m)
			return &CreateConnectionReply{Context: m.Context, Role: m.Role, Details: details},
				false, err
		}
	case *StartConnections:
		if r.phase == phaseConfigured {
			err = h.StartConnections(ctx)
			r.phase = phaseConnected
			return &Response{}, false, err
		}
	case *StartStorage:
		if r.phase == phaseConfigured && r.config.IsTarget && r.config.Version != DOCA2_10 {
			r.failed = h.StartConnections(ctx)
			r.phase = phaseConnected
		}
		if r.phase == phaseConnected {
			if err = r.failed; err == nil {
				err = h.StartStorage(ctx)
			}
			r.phase = phaseRunning
			return r.replyOf(&StartStorageReply{}), false, err
		}
	case *StopStorage:
		if r.phase == phaseRunning {
			r.phase = phaseStopped
			return &StopStorageReply{}, false, h.StopStorage(ctx)
		}
	case *Shutdown:
		done, err = h.Shutdown(ctx)
		return r.replyOf(&ShutdownReply{}), done, err
	}
	return nil, false, status.Errorf(status.Unexpected, "Unexpected %s while expecting a %s",
		request.Name(), expected[r.phase])
}

// replyOf returns the reply to a successful request, which 3.x has one of for each request.
func (r *Responder) replyOf(reply Message) Message {
	if r.config.Version == DOCA2_10 {
		return &Response{}
	}
	return reply
}
