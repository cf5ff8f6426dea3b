package relay

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dialectTarget is a conversation with a target of the DOCA storage applications, releases 3.x. It
// carries out the requests of our own protocol that such a target understands.
//
// These targets differ from ours in four ways. They serve one session, and then end. They connect
// RDMA by details, and get the export of the client's memory as a whole. They do not tell the
// volume's identity, so a client cannot find out whether it has met the same content again: each
// session has a UUID of its own, with which a client does not resume another. And they only read
// and write.
type dialectTarget struct {
	version dialects.Version
	stream  network.Stream
	timeout time.Duration
	uuid    [16]byte
	verify  uint64
	replies chan *dialects.Envelope // has room for one
	reading sync.WaitGroup

	turn sync.Mutex // one request at a time
	next uint32     // ID of the next request

	mu   sync.Mutex // guards err
	err  error
	done chan struct{}
}

func newDialectTarget(v dialects.Version, stream network.Stream, timeout time.Duration,
) *dialectTarget {
	t := &dialectTarget{version: v, stream: stream, timeout: timeout,
		replies: make(chan *dialects.Envelope, 1), done: make(chan struct{})}
	var random [8]byte
	_, _ = rand.Read(t.uuid[:]) // never fails
	_, _ = rand.Read(random[:])
	t.verify = binary.BigEndian.Uint64(random[:])
	t.reading.Go(t.read)
	return t
}

// read takes messages from the stream until it ends.
func (t *dialectTarget) read() {
	for {
		envelope, err := t.readMessage()
		if err != nil {
			t.fail(status.Errorf(status.ConnectionReset, "the connection to the target: %w", err))
			return
		}
		select {
		case t.replies <- envelope:
		default:
			t.fail(status.Errorf(status.Unexpected, "the target has sent %s unasked",
				envelope.Message.Name()))
			return
		}
	}
}

// sizeLength is how many bytes the size of a message takes, which does not count them.
const sizeLength = 4

func (t *dialectTarget) readMessage() (*dialects.Envelope, error) {
	message := make([]byte, sizeLength)
	if _, err := io.ReadFull(t.stream, message); err != nil {
		return nil, err
	}
	size := uint64(binary.BigEndian.Uint32(message))
	if size > uint64(t.version.MaxSize()) {
		return nil, status.Errorf(status.TooBig, "a message of %d bytes", size)
	}
	message = append(message, make([]byte, size)...)
	if _, err := io.ReadFull(t.stream, message[sizeLength:]); err != nil {
		return nil, err
	}
	return dialects.Decode(t.version, message)
}

// fail ends the conversation with the first reason.
func (t *dialectTarget) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return
	}
	t.err = err
	_ = t.stream.Close()
	close(t.done)
}

// Done returns a channel that is closed when the conversation has ended.
func (t *dialectTarget) Done() <-chan struct{} { return t.done }

// Err returns why the conversation has ended, or nil if it has not.
func (t *dialectTarget) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Close ends the conversation. The protocol has no message for the reason.
func (t *dialectTarget) Close(reason error) {
	if reason == nil {
		reason = errShuttingDown
	}
	t.fail(reason)
	t.reading.Wait()
}

// Call carries out a request of our own protocol. What the target need not be told succeeds.
func (t *dialectTarget) Call(
	ctx context.Context, request controlmsg.Message,
) (controlmsg.Message, error) {
	switch m := request.(type) {
	case *controlmsg.OpenVolume:
		return t.openVolume(ctx, m)
	case *controlmsg.ConfigureDataPath:
		_, err := exchange[*dialects.InitStorageReply](ctx, t, &dialects.InitStorage{
			Count: 2 * m.Depth, Cores: m.QueueCount, Export: m.Export.Descriptor})
		return &controlmsg.ConfigureDataPathReply{InboundReads: m.Depth}, err
	case *controlmsg.StartDataPathConnections:
		return &controlmsg.StartDataPathConnectionsReply{}, nil
	case *controlmsg.StartStorage:
		_, err := exchange[*dialects.StartStorageReply](ctx, t, &dialects.StartStorage{})
		return &controlmsg.StartStorageReply{}, err
	case *controlmsg.Stop:
		_, err := exchange[*dialects.StopStorageReply](ctx, t, &dialects.StopStorage{})
		return &controlmsg.StopReply{}, err
	case *controlmsg.DestroyObjects:
		_, err := exchange[*dialects.ShutdownReply](ctx, t, &dialects.Shutdown{})
		return &controlmsg.DestroyObjectsReply{}, err
	}
	return nil, status.Errorf(status.NotSupported, "%v: the target's protocol %v does not have it",
		request.Kind(), t.version)
}

func (t *dialectTarget) openVolume(
	ctx context.Context, m *controlmsg.OpenVolume,
) (controlmsg.Message, error) {
	reply, err := exchange[*dialects.QueryStorageReply](ctx, t, &dialects.QueryStorage{})
	if err != nil {
		return nil, err
	}
	volume := &controlmsg.OpenVolumeReply{Volume: m.Volume, UUID: t.uuid, WriteVerifier: t.verify,
		Size: reply.TotalSize, BlockSize: reply.BlockSize, MaxQueues: controlmsg.SessionMaxQueues,
		MaxDepth: controlmsg.SessionMaxDepth, MaxBufferSize: controlmsg.SessionMaxBufferSize,
		Transport: dialectTransport, Exclusive: true}
	if err := controlmsg.Validate(volume); err != nil {
		return nil, fmt.Errorf("the target's storage: %w", err)
	}
	return volume, nil
}

// dialectTransport is the RDMA transport of the applications.
const dialectTransport = "doca"

// connect passes the details of an RDMA connection to the target, and returns those of the
// target's.
func (t *dialectTarget) connect(ctx context.Context, queue int, role dialects.Role, details []byte,
) ([]byte, error) {
	reply, err := exchange[*dialects.CreateConnectionReply](ctx, t, &dialects.CreateConnection{
		Context: uint32(queue), Role: role, Details: details})
	if err != nil {
		return nil, err
	}
	if reply.Context != uint32(queue) || reply.Role != role {
		return nil, status.Errorf(status.Unexpected, "the target has connected queue %d, role %d "+
			"instead of queue %d, role %d", reply.Context, reply.Role, queue, role)
	}
	return reply.Details, nil
}

// exchange sends a request and waits for its reply.
func exchange[R dialects.Message](
	ctx context.Context, t *dialectTarget, request dialects.Message,
) (reply R, err error) {
	t.turn.Lock()
	defer t.turn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	id := t.next
	t.next++
	b, err := dialects.Encode(t.version, &dialects.Envelope{ID: id, Correlation: id,
		Message: request})
	if err != nil {
		return reply, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = t.stream.SetWriteDeadline(deadline)
	}
	if _, err := t.stream.Write(b); err != nil {
		t.fail(status.Errorf(status.ConnectionReset, "send %s: %w", request.Name(), err))
		return reply, t.Err()
	}
	var answer *dialects.Envelope
	select {
	case answer = <-t.replies:
	case <-t.done:
		return reply, t.Err()
	case <-ctx.Done():
		t.fail(status.Errorf(status.TimeOut, "no reply to %s: %w", request.Name(),
			context.Cause(ctx)))
		return reply, t.Err()
	}
	if failure, failed := answer.Message.(*dialects.Response); failed && answer.ID == id {
		code := failure.Result
		if code == status.Success || !code.Known() {
			code = status.Unknown
		}
		return reply, status.Errorf(code, "%s: %s", request.Name(),
			controlmsg.PrintableLine(failure.Text, maxDialectText))
	}
	reply, expected := answer.Message.(R)
	if !expected || answer.ID != id {
		t.fail(status.Errorf(status.Unexpected, "the target has answered %s %d with %s %d",
			request.Name(), id, answer.Message.Name(), answer.ID))
		return reply, t.Err()
	}
	return reply, nil
}

// describeExport completes a request with the export of the client's memory.
func (t *dialectTarget) describeExport(
	request *controlmsg.ConfigureDataPath, registered rdma.MemoryRegion,
) error {
	exported, ok := registered.(rdma.ExportedRegion)
	if !ok || len(exported.Export()) == 0 {
		return status.Errorf(status.NotSupported,
			"protocol %v needs the RDMA provider doca, and memory that the target may use",
			t.version)
	}
	if request.Depth > math.MaxUint32/2 {
		return status.Errorf(status.TooBig, "depth %d", request.Depth)
	}
	request.Export.Descriptor = exported.Export()
	return nil
}
