// SPDX-License-Identifier: Apache-2.0

package dialects

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Requester carries out requests of our own protocol in one of the applications': a relay's towards
// a target of theirs, or an initiator's towards a relay of theirs. It sends one request at a time.
//
// The applications' responders differ from ours in four ways. They serve one session, and then end.
// They connect RDMA by details, and get the export of the client's memory as a whole. They do not
// tell the volume's identity, so a client cannot find out whether it has met the same content
// again: each session has a UUID of its own, with which a client does not resume another. And they
// only read and write.
type Requester struct {
	config    RequesterConfig
	transport controlmsg.Transport
	uuid      [16]byte
	verifier  uint64
	replies   chan *Envelope // has room for one
	receiving context.Context
	cancel    context.CancelFunc
	reading   sync.WaitGroup

	turn sync.Mutex // one request at a time
	next uint32     // ID of the next request

	mu   sync.Mutex // guards err
	err  error
	done chan struct{}
}

// RequesterConfig configures a Requester.
type RequesterConfig struct {
	Version Version
	// Timeout bounds each request.
	Timeout time.Duration
	// AwaitConsumers waits for the relay's consumers, of which there are count, and returns their
	// IDs in the order of their appearance. It is nil on a relay.
	AwaitConsumers func(ctx context.Context, count int) ([]uint32, error)
}

// largestStorage bounds the storage of a target of 2.10 in bytes: it computes the size in 32 bits.
// smallestBlock is what its sizes of buffers are multiples of, in bytes.
const (
	largestStorage = 1 << 32
	smallestBlock  = 64
)

// NewRequester begins a conversation on a transport, which it owns from then on.
func NewRequester(transport controlmsg.Transport, config RequesterConfig) *Requester {
	r := &Requester{config: config, transport: transport, replies: make(chan *Envelope, 1),
		done: make(chan struct{})}
	if config.Version == DOCA2_10 {
		r.next = 1
	}
	r.receiving, r.cancel = context.WithCancel(context.Background())
	var random [8]byte
	_, _ = rand.Read(r.uuid[:]) // never fails
	_, _ = rand.Read(random[:])
	r.verifier = binary.BigEndian.Uint64(random[:])
	r.reading.Go(r.read)
	return r
}

// read takes messages from the transport until it ends.
func (r *Requester) read() {
	for {
		var envelope *Envelope
		message, err := r.transport.Receive(r.receiving)
		if err == nil {
			envelope, err = Decode(r.config.Version, message)
		}
		if err != nil {
			r.fail(status.Errorf(status.ConnectionReset, "the connection has ended: %w", err))
			return
		}
		select {
		case r.replies <- envelope:
		default:
			r.fail(status.Errorf(status.Unexpected, "the peer has sent %s unasked",
				envelope.Message.Name()))
			return
		}
	}
}

// conclude records the first reason for the end, and reports whether this is it.
func (r *Requester) conclude(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return false
	}
	r.err = err
	close(r.done)
	return true
}

// fail ends the conversation because of an error.
func (r *Requester) fail(err error) {
	if r.conclude(err) {
		r.transport.Abort()
	}
}

// Done returns a channel that is closed when the conversation has ended.
func (r *Requester) Done() <-chan struct{} { return r.done }

// Err returns why the conversation has ended, or nil if it has not.
func (r *Requester) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

var errClosed = status.Errorf(status.Shutdown, "the conversation was closed")

// Close ends the conversation. The protocol has no message for the reason; nil means none.
func (r *Requester) Close(reason error) {
	if reason == nil {
		reason = errClosed
	}
	r.conclude(reason)
	r.cancel()
	r.reading.Wait()
	_ = r.transport.Close() // which may have been aborted
}

// Call carries out a request of our own protocol. What the peer need not be told succeeds. Any
// goroutine may call it.
func (r *Requester) Call(
	ctx context.Context, request controlmsg.Message,
) (controlmsg.Message, error) {
	switch m := request.(type) {
	case *controlmsg.OpenVolume:
		return r.openVolume(ctx, m)
	case *controlmsg.ConfigureDataPath:
		return &controlmsg.ConfigureDataPathReply{InboundReads: m.Depth}, r.configure(ctx, m)
	case *controlmsg.StartDataPathConnections:
		return r.startConnections(ctx, len(m.ConsumerIDs))
	case *controlmsg.StartStorage:
		_, err := exchange[*StartStorageReply](ctx, r, &StartStorage{})
		return &controlmsg.StartStorageReply{}, err
	case *controlmsg.Stop:
		if r.config.Version == DOCA2_10 { // an IO message stops the storage
			return &controlmsg.StopReply{}, nil
		}
		_, err := exchange[*StopStorageReply](ctx, r, &StopStorage{})
		return &controlmsg.StopReply{}, err
	case *controlmsg.DestroyObjects:
		_, err := exchange[*ShutdownReply](ctx, r, &Shutdown{})
		return &controlmsg.DestroyObjectsReply{}, err
	}
	return nil, status.Errorf(status.NotSupported, "%v: the protocol %v does not have it",
		request.Kind(), r.config.Version)
}

// openVolume asks for the size of the storage. In 2.10 that is the size of the initiator's memory,
// so the largest possible takes its place.
func (r *Requester) openVolume(
	ctx context.Context, m *controlmsg.OpenVolume,
) (controlmsg.Message, error) {
	storage := &QueryStorageReply{TotalSize: largestStorage, BlockSize: smallestBlock}
	if r.config.Version != DOCA2_10 {
		var err error
		if storage, err = exchange[*QueryStorageReply](ctx, r, &QueryStorage{}); err != nil {
			return nil, err
		}
	}
	volume := &controlmsg.OpenVolumeReply{Volume: m.Volume, UUID: r.uuid, WriteVerifier: r.verifier,
		Size: storage.TotalSize, BlockSize: storage.BlockSize,
		MaxQueues: controlmsg.SessionMaxQueues, MaxDepth: controlmsg.SessionMaxDepth,
		MaxBufferSize: controlmsg.SessionMaxBufferSize, Transport: Transport, Exclusive: true}
	if err := controlmsg.Validate(volume); err != nil {
		return nil, fmt.Errorf("the peer's storage: %w", err)
	}
	return volume, nil
}

// Transport is the RDMA transport of the applications.
const Transport = "doca"

// configure exports the client's memory. A relay of 3.2 asks its target for twice the depth, as the
// applications' does.
func (r *Requester) configure(ctx context.Context, m *controlmsg.ConfigureDataPath) error {
	request := &InitStorage{Count: m.Depth, BufferSize: m.BufferSize, BatchSize: 1,
		Cores: m.QueueCount, Export: m.Export.Descriptor}
	if r.config.AwaitConsumers == nil && r.config.Version >= DOCA3_2 {
		request.Count = 2 * m.Depth
	}
	_, err := exchange[*InitStorageReply](ctx, r, request)
	return err
}

// startConnections returns the consumers of the relay, if the peer is one.
func (r *Requester) startConnections(
	ctx context.Context, queues int,
) (controlmsg.Message, error) {
	if r.config.Version == DOCA2_10 {
		if _, err := exchange[*Response](ctx, r, &StartConnections{}); err != nil {
			return nil, err
		}
	}
	reply := &controlmsg.StartDataPathConnectionsReply{}
	if r.config.AwaitConsumers == nil {
		return reply, nil
	}
	var err error
	reply.ConsumerIDs, err = r.config.AwaitConsumers(ctx, queues)
	return reply, err
}

// Connect passes the details of an RDMA connection of a queue to a target, and returns those of the
// target's.
func (r *Requester) Connect(ctx context.Context, queue int, role Role, details []byte) (
	[]byte, error) {
	reply, err := exchange[*CreateConnectionReply](ctx, r, &CreateConnection{
		Context: uint32(queue), Role: role, Details: details})
	if err != nil {
		return nil, err
	}
	if r.config.Version == DOCA2_10 { // which does not number the queues
		reply.Context = uint32(queue)
	}
	if reply.Context != uint32(queue) || reply.Role != role {
		return nil, status.Errorf(status.Unexpected, "the target has connected queue %d, role %d "+
			"instead of queue %d, role %d", reply.Context, reply.Role, queue, role)
	}
	return reply.Details, nil
}

// exchange sends a request and waits for its reply. In 2.10 most replies have no type of their own:
// exchange then returns an empty one.
func exchange[R Message](ctx context.Context, r *Requester, request Message) (reply R, err error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.config.Timeout)
	defer cancel()
	id, version := r.next, r.config.Version
	r.next++
	b, err := Encode(version, &Envelope{ID: id, Correlation: id, Message: request})
	if err != nil {
		return reply, err
	}
	if err := r.transport.Send(ctx, b); err != nil {
		r.fail(status.Errorf(status.ConnectionReset, "send %s: %w", request.Name(), err))
		return reply, r.Err()
	}
	var answer *Envelope
	select {
	case answer = <-r.replies:
	case <-r.done:
		select {
		case answer = <-r.replies: // the last message before the end
		default:
			return reply, r.Err()
		}
	case <-ctx.Done():
		r.fail(status.Errorf(status.TimeOut, "no reply to %s: %w", request.Name(),
			context.Cause(ctx)))
		return reply, r.Err()
	}
	answered := answer.ID
	if version == DOCA2_10 {
		answered = answer.Correlation
	}
	result, isResponse := answer.Message.(*Response)
	reply, isExpected := answer.Message.(R)
	if version == DOCA2_10 && isResponse && result.Result == status.Success {
		_, isConnection := request.(*CreateConnection)
		isExpected = !isConnection
	} else if isResponse && answered == id {
		return reply, result.failure(request)
	}
	if !isExpected || answered != id {
		r.fail(status.Errorf(status.Unexpected, "the peer has answered %s %d with %s %d",
			request.Name(), id, answer.Message.Name(), answered))
		return reply, r.Err()
	}
	return reply, nil
}

// maxText bounds the text of an error in bytes.
const maxText = 255

// failure returns the error that a response reports.
func (m *Response) failure(request Message) error {
	code := m.Result
	if code == status.Success || !code.Known() {
		code = status.Unknown
	}
	return status.Errorf(code, "%s: %s", request.Name(), printable.Line(m.Text, maxText))
}
