// SPDX-License-Identifier: Apache-2.0

package hostilecomch

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

const (
	serverName = "storage"
	depth      = 16 // receives of a consumer
	bufferSize = 64 // bytes
)

// echoServer echoes messages of all its clients on one thread, so an attack that blocks the thread
// affects every client.
type echoServer struct {
	server   comch.Server
	engine   *progress.Engine
	sessions sync.WaitGroup
	stop     context.CancelFunc
	thread   chan struct{} // closed when the thread has ended

	mu     sync.Mutex
	active int
	errors []error // that have ended sessions before they began, the last few
}

func startServer(t *testing.T, directory string) *echoServer {
	t.Helper()
	// The polling thread needs one CPU, everybody else the others.
	previous := runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0)))
	t.Cleanup(func() { runtime.GOMAXPROCS(previous) })
	server, err := emulated.New(emulated.Options{Directory: directory}).Listen(context.Background(),
		comch.ServerConfig{Name: serverName})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &echoServer{server: server, engine: engine, stop: stop, thread: make(chan struct{})}
	go s.work(ctx)
	s.sessions.Go(func() { s.accept(ctx) })
	t.Cleanup(func() { s.close(t) })
	return s
}

func (s *echoServer) close(t *testing.T) {
	closeErr := s.server.Close()
	s.stop()
	s.sessions.Wait()
	s.engine.Wake()
	<-s.thread
	if err := errors.Join(closeErr, s.engine.Close()); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Logf("the server could not serve clients: %v", s.errors)
	}
}

func (s *echoServer) work(ctx context.Context) {
	runtime.LockOSThread()
	defer close(s.thread)
	for ctx.Err() == nil || s.count() > 0 {
		s.engine.Idle(s.engine.Progress())
	}
}

func (s *echoServer) accept(ctx context.Context) {
	for {
		connection, err := s.server.Accept(ctx)
		if err != nil {
			return
		}
		s.sessions.Go(func() { s.serve(ctx, connection) })
	}
}

func (s *echoServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active
}

func (s *echoServer) add(number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active += number
}

// serve runs one session. Errors end only that session.
func (s *echoServer) serve(ctx context.Context, connection comch.Connection) {
	s.add(1)
	defer s.add(-1)
	defer connection.Abort()
	setupCtx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	path, err := newDataPath(setupCtx, connection)
	if err != nil {
		s.mu.Lock()
		s.errors = append(s.errors[max(0, len(s.errors)-9):], err)
		s.mu.Unlock()
		return
	}
	entered := s.do(func() error {
		return errors.Join(s.engine.Add(path), s.engine.AddWaiter(path.consumer))
	})
	if entered == nil {
		s.sessions.Go(func() { readMemory(ctx, connection) })
		select {
		case <-connection.Done():
		case <-ctx.Done():
		}
	}
	_ = s.do(func() error {
		s.engine.RemoveWaiter(path.consumer)
		s.engine.Remove(path)
		return errors.Join(path.consumer.Close(), path.producer.Close())
	})
}

// do runs command on the thread and waits for it.
func (s *echoServer) do(command func() error) error {
	result := make(chan error, 1)
	s.engine.Do(func() { result <- command() })
	return <-result
}

// readMemory copies the memory that the client exports, again and again, while the client may be
// freeing its pages.
func readMemory(ctx context.Context, connection comch.Connection) {
	token, err := connection.Receive(ctx)
	if err != nil {
		return
	}
	region, _, err := connection.ImportMemory(token)
	if err != nil {
		return
	}
	defer func() { _ = region.Close() }()
	buffer := make([]byte, 4096)
	for {
		select {
		case <-connection.Done():
			return
		case <-ctx.Done():
			return
		case <-time.After(time.Millisecond):
			for offset := uint64(0); offset+4096 <= region.Len(); offset += 4096 {
				_ = region.CopyOut(buffer, offset)
			}
		}
	}
}

// dataPath echoes the messages of one session.
type dataPath struct {
	consumer comch.Consumer
	producer comch.Producer
	received [depth]comch.Received
	message  [bufferSize]byte
}

func newDataPath(ctx context.Context, connection comch.Connection) (*dataPath, error) {
	consumer, err := connection.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: depth, MemorySize: depth * bufferSize})
	if err != nil {
		return nil, err
	}
	p := &dataPath{consumer: consumer}
	event, err := connection.NextConsumerEvent(ctx)
	if err == nil {
		p.producer, err = connection.NewProducer(ctx, event.ID)
	}
	if err != nil {
		return nil, errors.Join(err, consumer.Close())
	}
	for i := range uint32(depth) {
		if err := consumer.PostReceive(i*bufferSize, bufferSize, uint64(i)); err != nil {
			return nil, errors.Join(err, consumer.Close(), p.producer.Close())
		}
	}
	consumer.Flush()
	return p, nil
}

// Poll copies each message once, posts its buffer again and sends the echo. If the client has no
// receive posted, the echo is lost.
func (p *dataPath) Poll() int {
	n := p.consumer.Poll(p.received[:])
	for i := range p.received[:n] {
		r := &p.received[i]
		message := p.message[:r.Length]
		copy(message, p.consumer.Memory()[r.Offset:])
		_ = p.consumer.PostReceive(r.Offset, bufferSize, r.UserData)
		_ = p.producer.Send(message, nil)
	}
	if n > 0 {
		p.consumer.Flush()
		p.producer.Flush()
	}
	return n
}
