package relay

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dialectClient is the relay's side of a conversation with an initiator of the DOCA storage
// applications. It turns that initiator's requests into the ones of our own protocol, which the
// session carries out.
//
// The applications differ from us in three ways. Their initiators list no consumers: queues are
// paired in the order in which the consumers appear, after the reply to init_storage (3.x) or
// before start_data_path_connections (2.10). They do not say how large an IO may be (3.x), or how
// many queues there are (2.10). And they ignore the result of an IO.
type dialectClient struct {
	session   *session
	transport controlmsg.Transport
	version   dialects.Version
	// isGuessed: the version is known only to be one of 3.x until init_storage comes.
	isGuessed bool
	phase     dialectPhase
	epoch     uint64
	instance  [16]byte
	owner     [16]byte
	failed    error // why the data path of a 3.x initiator could not be connected
}

// dialectPhase is the last step that such a conversation has completed.
type dialectPhase uint8

const (
	dialectBegun dialectPhase = iota
	dialectConfigured
	dialectConnected
	dialectRunning
	dialectStopped
)

// expected names the requests that may follow each phase, in errors.
var expected = [...]string{
	dialectBegun:      "query_storage_request or init_storage_request",
	dialectConfigured: "start_data_path_connections",
	dialectConnected:  "start_storage_request",
	dialectRunning:    "stop_storage_request",
	dialectStopped:    "shutdown_request",
}

func newDialectClient(
	s *session, transport controlmsg.Transport, v dialects.Version, isGuessed bool,
) *dialectClient {
	c := &dialectClient{session: s, transport: transport, version: v,
		isGuessed: isGuessed && v != dialects.DOCA2_10}
	_, _ = rand.Read(c.instance[:]) // never fails
	_, _ = rand.Read(c.owner[:])
	s.log.Info("the client is a DOCA storage application", zap.Stringer("protocol", v))
	return c
}

// Serve carries out the initiator's requests until it shuts down, which returns nil, or something
// fails.
func (c *dialectClient) Serve(ctx context.Context, _ controlmsg.Handler) error {
	answering := context.WithoutCancel(ctx)
	for {
		request, err := c.next(ctx)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			return err
		}
		reply, done, err := c.handle(ctx, request.Message)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if err != nil {
			c.session.log.Warn("request failed", zap.String("request", request.Message.Name()),
				zap.Error(err))
			reply = &dialects.Response{Result: status.CodeOf(err),
				Text: controlmsg.PrintableLine(err.Error(), maxDialectText)}
		}
		if answerErr := c.answer(answering, request, reply); answerErr != nil {
			return fmt.Errorf("answer %s: %w", request.Message.Name(), answerErr)
		}
		if err != nil && c.phase != dialectBegun {
			return err // the applications do not go back a step
		}
		if done {
			return nil
		}
		if c.phase == dialectConfigured && c.version != dialects.DOCA2_10 {
			c.failed = c.connect(ctx)
			c.phase = dialectConnected
		}
	}
}

// maxDialectText bounds the text of an error in bytes.
const maxDialectText = 255

// next waits for the next request. Only a data path that is running may be silent for long.
func (c *dialectClient) next(ctx context.Context) (*dialects.Envelope, error) {
	if c.phase != dialectRunning {
		var cancel context.CancelFunc
		ctx, cancel = c.session.stepTimeout(ctx)
		defer cancel()
	}
	b, err := c.transport.Receive(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", expected[c.phase], err)
	}
	if c.isGuessed {
		if v := dialects.DetectInit(b); v != dialects.None {
			c.version, c.isGuessed = v, false
		}
	}
	return dialects.Decode(c.version, b)
}

func (c *dialectClient) answer(
	ctx context.Context, request *dialects.Envelope, reply dialects.Message,
) error {
	ctx, cancel := c.session.stepTimeout(ctx)
	defer cancel()
	b, err := dialects.Encode(c.version, &dialects.Envelope{ID: request.ID,
		Correlation: request.Correlation, Message: reply})
	if err != nil {
		return err
	}
	return c.transport.Send(ctx, b)
}

// handle carries out one request. The reply of 2.10 to a request that succeeds is always the same.
func (c *dialectClient) handle(ctx context.Context, request dialects.Message) (
	reply dialects.Message, done bool, err error) {
	s := c.session
	switch m := request.(type) {
	case *dialects.QueryStorage:
		if c.phase == dialectBegun {
			reply, err = c.queryStorage(ctx)
			return reply, false, err
		}
	case *dialects.InitStorage:
		if c.phase == dialectBegun {
			return c.replyOf(&dialects.InitStorageReply{}), false, c.initStorage(ctx, m)
		}
	case *dialects.StartConnections:
		if c.phase == dialectConfigured {
			err = c.connect(ctx)
			c.phase = dialectConnected
			return &dialects.Response{}, false, err
		}
	case *dialects.StartStorage:
		if c.phase == dialectConnected {
			if err = c.failed; err == nil {
				err = s.StartStorage(ctx)
			}
			c.phase = dialectRunning
			return c.replyOf(&dialects.StartStorageReply{}), false, err
		}
	case *dialects.StopStorage:
		if c.phase == dialectRunning {
			c.phase = dialectStopped
			return &dialects.StopStorageReply{}, false, c.stopStorage(ctx)
		}
	case *dialects.Shutdown:
		done, err = s.DestroyObjects(ctx)
		if err == nil {
			err = s.releaseMemory() // the initiator frees its memory after the reply
		}
		return c.replyOf(&dialects.ShutdownReply{}), done, err
	}
	return nil, false, status.Errorf(status.Unexpected, "Unexpected %s while expecting a %s",
		request.Name(), expected[c.phase])
}

// replyOf returns the reply to a successful request, which 3.x has one of for each request.
func (c *dialectClient) replyOf(reply dialects.Message) dialects.Message {
	if c.version == dialects.DOCA2_10 {
		return &dialects.Response{}
	}
	return reply
}

func (c *dialectClient) queryStorage(ctx context.Context) (dialects.Message, error) {
	volume, err := c.session.OpenVolume(ctx, &controlmsg.OpenVolume{})
	if err != nil {
		return nil, err
	}
	return &dialects.QueryStorageReply{TotalSize: volume.Size, BlockSize: volume.BlockSize}, nil
}

// initStorage opens the volume if that has not been done, and configures the data path.
func (c *dialectClient) initStorage(ctx context.Context, m *dialects.InitStorage) error {
	s := c.session
	if c.isGuessed {
		return status.Errorf(status.InvalidValue, "the request fits more than one release: set the "+
			"channel's protocol to the initiator's, for instance doca-3.0")
	}
	if s.announced == nil {
		if _, err := c.queryStorage(ctx); err != nil {
			return err
		}
	}
	request, err := c.describeMemory(m)
	if err != nil {
		return err
	}
	if err := c.size(m, request); err != nil {
		return err
	}
	for {
		c.epoch++
		request.Epoch = c.epoch
		if err = controlmsg.Validate(request); err == nil {
			_, err = s.ConfigureDataPath(ctx, request)
		}
		// Initiators of 3.x do not say what they need, so try what the target can afford.
		smaller := request.BufferSize / 2 / s.announced.BlockSize * s.announced.BlockSize
		if status.CodeOf(err) != status.NoMemory || m.BufferSize > 0 || smaller == 0 {
			break
		}
		request.BufferSize = smaller
	}
	if err == nil {
		c.phase = dialectConfigured
	}
	return err
}

// describeMemory imports the initiator's memory to learn its size and address, and returns a
// request that exports it.
func (c *dialectClient) describeMemory(m *dialects.InitStorage) (*controlmsg.ConfigureDataPath,
	error) {
	s := c.session
	region, access, err := s.connection.ImportMemory(m.Export)
	if err != nil {
		return nil, fmt.Errorf("import the client's memory: %w", err)
	}
	length, base := region.Len(), region.Base()
	if err := region.Close(); err != nil {
		return nil, err
	}
	s.translator = dialects.NewTranslator(c.version, base)
	return &controlmsg.ConfigureDataPath{
		Depth:          m.Count,
		Export:         controlmsg.Export{Access: access, Length: length, Descriptor: m.Export},
		ClientInstance: c.instance, Owner: c.owner, Client: c.version.String() + " initiator",
	}, nil
}

// dialectBufferSize is the largest IO in bytes that a 3.x initiator may request, unless a block of
// the volume is larger, or a limit lower.
const dialectBufferSize = 128 << 10

// size completes a request with the number of queues and the largest IO.
func (c *dialectClient) size(m *dialects.InitStorage, request *controlmsg.ConfigureDataPath) error {
	volume, length := c.session.announced, request.Export.Length
	if c.version != dialects.DOCA2_10 {
		request.QueueCount = m.Cores
		request.BufferSize = min(max(dialectBufferSize, volume.BlockSize),
			volume.MaxBufferSize/volume.BlockSize*volume.BlockSize)
		return nil
	}
	// Every thread has Count buffers, and the memory consists of them.
	perQueue := uint64(m.Count) * uint64(m.BufferSize)
	if perQueue == 0 || length%perQueue != 0 || length/perQueue > controlmsg.MaxQueues {
		return status.Errorf(status.InvalidValue, "memory of %d bytes does not consist of the "+
			"buffers of up to %d threads, %d of %d bytes each", length, controlmsg.MaxQueues,
			m.Count, m.BufferSize)
	}
	if length > volume.Size {
		return status.Errorf(status.TooBig, "the initiator uses its memory's %d bytes of the "+
			"storage, but the volume has %d", length, volume.Size)
	}
	request.QueueCount, request.BufferSize = uint32(length/perQueue), m.BufferSize
	return nil
}

// connect waits for the initiator's consumers, and opens a queue for each in the order of their
// appearance, in which initiators also expect the relay's.
func (c *dialectClient) connect(ctx context.Context) error {
	s := c.session
	waiting, cancel := s.stepTimeout(ctx)
	defer cancel()
	request := &controlmsg.StartDataPathConnections{}
	for uint32(len(request.ConsumerIDs)) < s.config.QueueCount {
		event, err := s.connection.NextConsumerEvent(waiting)
		if err != nil {
			return fmt.Errorf("wait for the initiator's consumers, of which %d of %d are there: %w",
				len(request.ConsumerIDs), s.config.QueueCount, err)
		}
		if !event.Created {
			return status.Errorf(status.Unexpected, "the initiator has destroyed consumer %d",
				event.ID)
		}
		request.ConsumerIDs = append(request.ConsumerIDs, uint32(event.ID))
	}
	_, err := s.StartDataPathConnections(ctx, request)
	return err
}

// stopStorage completes what is in flight, and stops the target.
func (c *dialectClient) stopStorage(ctx context.Context) error {
	draining, cancel := c.session.stepTimeout(ctx)
	defer cancel()
	c.session.drain(draining)
	if n := c.session.inFlight(); n > 0 {
		return status.Errorf(status.TimeOut, "%d IOs have not completed", n)
	}
	return c.session.stopTarget(ctx)
}

// Done returns a channel that is closed when the connection to the initiator has ended.
func (c *dialectClient) Done() <-chan struct{} { return c.session.connection.Done() }

// Err returns why the connection has ended, or nil if it has not.
func (c *dialectClient) Err() error { return c.session.connection.Err() }

// dialectCloseTimeout is how long an initiator that has shut down may take to close.
const dialectCloseTimeout = time.Second

// Close closes the connection. The protocol has no message for the reason.
func (c *dialectClient) Close(reason error) {
	if reason == nil {
		select {
		case <-c.Done():
		case <-time.After(dialectCloseTimeout):
		}
	}
	if err := c.transport.Close(); err != nil {
		c.session.log.Debug("close the connection to the client", zap.Error(err))
	}
}
