// SPDX-License-Identifier: Apache-2.0

package comchtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/rpc"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// On hardware no process can be both sides: servers run on the DPU, and clients on the host. There
// the suite runs on the DPU with a provider whose clients are objects of another process, which
// calls its provider as the suite asks by remote procedure calls.

// WithHost returns a provider whose servers are those of dpu, and whose clients live in the process
// at the other end of peer, where ServeHost runs. Its producers and consumers must be late ones.
// What is over there can neither export memory of this process nor wake its threads, so the suite
// skips what needs that. close ends ServeHost.
func WithHost(dpu comch.Provider, peer io.ReadWriteCloser) (provider comch.Provider,
	close func() error) {
	caller := rpc.NewClient(peer)
	return &withHost{dpu, caller}, caller.Close
}

// ServeHost does what WithHost at the other end of peer asks for, until that closes the connection.
func ServeHost(provider comch.Provider, peer io.ReadWriteCloser) error {
	server := rpc.NewServer()
	h := &host{provider: provider, objects: make(map[uint64]any),
		cancels: make(map[uint64]context.CancelFunc)}
	if err := server.RegisterName("Host", &hostService{h}); err != nil {
		return fmt.Errorf("serve host: %w", err)
	}
	server.ServeConn(peer)
	return h.end()
}

// HostCall is one call of a method of an object on the host. Which fields matter depends on the
// method.
type HostCall struct {
	Object, Number      uint64 // Number names the call, to cancel it
	Method              string
	Client              comch.ClientConfig
	Consumer            hostConsumerConfig
	ID                  comch.ConsumerID
	Message, Immediate  []byte
	Offset, Length, Max uint32
	UserData            uint64
}

// hostConsumerConfig is a comch.ConsumerConfig without memory of this process.
type hostConsumerConfig struct{ Receives, MemorySize, ImmediateLength int }

// HostAnswer is its result.
type HostAnswer struct {
	Object       uint64
	Capabilities comch.Capabilities
	Peer         comch.Peer
	Event        comch.ConsumerEvent
	Message      []byte
	Received     []comch.Received
	Messages     [][]byte // of Received
	Number       int
	Yes          bool
	State        progress.State
	Failure      *hostFailure
	Late         *hostFailure
}

// hostFailure is an error on its way.
type hostFailure struct {
	Code               status.Code
	Bare               bool // it is the code itself, as on the data path
	Text               string
	Canceled, Deadline bool
}

func failureOf(err error) *hostFailure {
	if err == nil {
		return nil
	}
	_, bare := err.(status.Code)
	return &hostFailure{Code: status.CodeOf(err), Bare: bare, Text: err.Error(),
		Canceled: errors.Is(err, context.Canceled),
		Deadline: errors.Is(err, context.DeadlineExceeded)}
}

func (f *hostFailure) err() error {
	switch {
	case f == nil:
		return nil
	case f.Bare:
		return f.Code
	case f.Canceled:
		return fmt.Errorf("on the host: %s: %w", f.Text, context.Canceled)
	case f.Deadline:
		return fmt.Errorf("on the host: %s: %w", f.Text, context.DeadlineExceeded)
	}
	return status.Errorf(f.Code, "on the host: %s", f.Text)
}

// host holds the objects on the host.
type host struct {
	provider comch.Provider

	mu      sync.Mutex
	objects map[uint64]any
	last    uint64
	cancels map[uint64]context.CancelFunc
}

// hostService is what net/rpc sees of a host.
type hostService struct{ host *host }

// Cancel ends a call that waits.
func (c *hostService) Cancel(number uint64, _ *struct{}) error {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if cancel := c.host.cancels[number]; cancel != nil {
		cancel()
	}
	return nil
}

// Do carries out a call.
func (c *hostService) Do(call HostCall, answer *HostAnswer) error {
	h := c.host
	ctx, cancel := context.WithCancel(context.Background())
	h.mu.Lock()
	h.cancels[call.Number] = cancel
	object := h.objects[call.Object]
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.cancels, call.Number)
		h.mu.Unlock()
		cancel()
	}()
	var err error
	switch object := object.(type) {
	case nil:
		err = h.callProvider(ctx, &call, answer)
	case comch.Connection:
		err = h.callConnection(ctx, object, &call, answer)
	case comch.LateConsumer:
		err = callConsumer(object, &call, answer)
	case comch.LateProducer:
		err = callProducer(object, &call, answer)
	}
	answer.Failure = failureOf(err)
	return nil
}

func (h *host) add(object any) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	h.objects[h.last] = object
	return h.last
}

// end ends what a suite that has failed may have left.
func (h *host) end() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cancel := range h.cancels {
		cancel()
	}
	var errs []error
	var connections []comch.Connection
	for _, number := range slices.Sorted(maps.Keys(h.objects)) {
		switch object := h.objects[number].(type) {
		case comch.Connection:
			object.Abort()
			connections = append(connections, object)
		case interface{ Close() error }:
			errs = append(errs, object.Close())
		}
	}
	for _, c := range connections {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func (h *host) callProvider(ctx context.Context, call *HostCall, answer *HostAnswer) error {
	if call.Method == "Capabilities" {
		var err error
		answer.Capabilities, err = h.provider.Capabilities(call.Client.Device)
		return err
	}
	connection, err := h.provider.Connect(ctx, call.Client)
	if err == nil {
		answer.Object, answer.Number = h.add(connection), connection.MaxMessageSize()
		answer.Peer = connection.Peer()
	}
	return err
}

func (h *host) callConnection(ctx context.Context, c comch.Connection, call *HostCall,
	answer *HostAnswer) error {
	var err error
	switch call.Method {
	case "Send":
		return c.Send(ctx, call.Message)
	case "Receive":
		answer.Message, err = c.Receive(ctx)
	case "NextConsumerEvent":
		answer.Event, err = c.NextConsumerEvent(ctx)
	case "Next":
		var next comch.Arrival
		next, err = c.Next(ctx)
		answer.Message, answer.Event = next.Message, next.Event
	case "NewConsumer":
		return h.newConsumer(ctx, c, call, answer)
	case "NewProducer":
		var producer comch.Producer
		if producer, err = c.NewProducer(ctx, call.ID); err == nil {
			answer.Object, answer.Number = h.add(producer), int(producer.ID())
		}
	case "ImportMemory":
		var region *memory.Region
		if region, _, err = c.ImportMemory(call.Message); err == nil {
			err = region.Close()
		}
	case "End":
		<-c.Done()
		answer.Late = failureOf(c.Err())
	case "Close":
		return c.Close()
	case "Abort":
		c.Abort()
	}
	return err
}

func (h *host) newConsumer(ctx context.Context, c comch.Connection, call *HostCall,
	answer *HostAnswer) error {
	config := comch.ConsumerConfig{Receives: call.Consumer.Receives,
		MemorySize:      call.Consumer.MemorySize,
		ImmediateLength: call.Consumer.ImmediateLength}
	if call.Length > 0 { // memory of the application
		region, err := memory.Alloc("host", uint64(call.Length))
		if err != nil {
			return err
		}
		config.Memory = region
	}
	consumer, err := c.NewConsumer(ctx, config)
	if err != nil {
		if config.Memory != nil {
			err = errors.Join(err, config.Memory.Close())
		}
		return err
	}
	answer.Object, answer.Number = h.add(&hostConsumer{consumer.(comch.LateConsumer),
		config.Memory}), int(consumer.ID())
	return nil
}

// hostConsumer closes the memory with the consumer.
type hostConsumer struct {
	comch.LateConsumer
	memory *memory.Region
}

func (c *hostConsumer) Close() error {
	err := c.LateConsumer.Close()
	if c.memory != nil && err == nil {
		err = c.memory.Close()
	}
	return err
}

func callConsumer(c comch.LateConsumer, call *HostCall, answer *HostAnswer) error {
	switch call.Method {
	case "PostReceive":
		return c.PostReceive(call.Offset, call.Length, call.UserData)
	case "Flush":
		c.Flush()
	case "Poll":
		received := make([]comch.Received, min(call.Max, 1<<16))
		answer.Received = received[:c.Poll(received)]
		for _, r := range answer.Received {
			answer.Messages = append(answer.Messages, c.Memory()[r.Offset:][:r.Length])
		}
	case "State":
		answer.State, answer.Late = c.State(), failureOf(c.Err())
	case "Arm":
		answer.Yes = c.Arm()
	case "Disarm":
		c.Disarm()
	case "Clear":
		c.Clear()
	case "Stop":
		c.Stop()
	case "Close":
		return c.Close()
	}
	return nil
}

func callProducer(p comch.LateProducer, call *HostCall, answer *HostAnswer) error {
	switch call.Method {
	case "Send":
		return p.Send(call.Message, call.Immediate)
	case "Flush":
		p.Flush()
	case "Poll":
		answer.Number = p.Poll()
	case "State":
		answer.State, answer.Late = p.State(), failureOf(p.Err())
	case "Arm":
		answer.Yes = p.Arm()
	case "Disarm":
		p.Disarm()
	case "Clear":
		p.Clear()
	case "Abort":
		p.Abort()
	case "Close":
		return p.Close()
	}
	return nil
}

// withHost is the provider of WithHost.
type withHost struct {
	comch.Provider
	caller *rpc.Client
}

var lastCall atomic.Uint64

// call calls a method of an object on the host; object 0 is the provider.
func (p *withHost) call(ctx context.Context, object uint64, call HostCall) (HostAnswer, error) {
	call.Object, call.Number = object, lastCall.Add(1)
	var answer HostAnswer
	done := p.caller.Go("Host.Do", &call, &answer, make(chan *rpc.Call, 1)).Done
	var result *rpc.Call
	select {
	case result = <-done:
	case <-ctx.Done():
	}
	for result == nil {
		// Again and again, because the host may not have begun with the call.
		_ = p.caller.Call("Host.Cancel", call.Number, &struct{}{})
		select {
		case result = <-done:
		case <-time.After(time.Millisecond):
		}
	}
	if result.Error != nil {
		return answer, status.Errorf(status.NotConnected, "call the host: %w", result.Error)
	}
	return answer, answer.Failure.err()
}

// skipWithHost skips a test that a provider of WithHost cannot pass.
func (s *Suite) skipWithHost(t *testing.T, reason string) {
	if _, ok := s.Provider.(*withHost); ok {
		t.Skip(reason)
	}
}

// Capabilities returns what both sides can do. Nobody can sleep on what is on the host.
func (p *withHost) Capabilities(device string) (comch.Capabilities, error) {
	c, err := p.Provider.Capabilities(device)
	if errors.Is(err, status.NotFound) {
		// It is a device of the host.
		var answer HostAnswer
		answer, err = p.call(context.Background(), 0, HostCall{Method: "Capabilities",
			Client: comch.ClientConfig{Device: device}})
		c = answer.Capabilities
	}
	c.CanWait = false
	return c, err
}

func (p *withHost) Connect(ctx context.Context,
	config comch.ClientConfig) (comch.Connection, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	answer, err := p.call(ctx, 0, HostCall{Method: "Connect", Client: config})
	if err != nil {
		return nil, err
	}
	c := &hostConnection{provider: p, object: answer.Object, peer: answer.Peer,
		maxMessageSize: answer.Number, done: make(chan struct{})}
	go c.awaitEnd()
	return c, nil
}

// hostConnection is a connection on the host.
type hostConnection struct {
	provider       *withHost
	object         uint64
	peer           comch.Peer
	maxMessageSize int
	done           chan struct{}
	err            error // set before done is closed
}

func (c *hostConnection) call(ctx context.Context, call HostCall) (HostAnswer, error) {
	return c.provider.call(ctx, c.object, call)
}

// do calls a method that does not wait for the peer.
func (c *hostConnection) do(method string) error {
	_, err := c.call(context.Background(), HostCall{Method: method})
	return err
}

func (c *hostConnection) awaitEnd() {
	answer, err := c.call(context.Background(), HostCall{Method: "End"})
	c.err = errors.Join(err, answer.Late.err())
	close(c.done)
}

func (c *hostConnection) Peer() comch.Peer      { return c.peer }
func (c *hostConnection) MaxMessageSize() int   { return c.maxMessageSize }
func (c *hostConnection) Done() <-chan struct{} { return c.done }

func (c *hostConnection) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

func (c *hostConnection) Close() error { return c.do("Close") }

// Abort returns when Done is closed, as it does on this side.
func (c *hostConnection) Abort() {
	_ = c.do("Abort")
	<-c.done
}

func (c *hostConnection) Send(ctx context.Context, message []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := c.call(ctx, HostCall{Method: "Send", Message: message})
	return err
}

func (c *hostConnection) Receive(ctx context.Context) ([]byte, error) {
	answer, err := c.call(ctx, HostCall{Method: "Receive"})
	return answer.Message, err
}

func (c *hostConnection) NextConsumerEvent(ctx context.Context) (comch.ConsumerEvent, error) {
	answer, err := c.call(ctx, HostCall{Method: "NextConsumerEvent"})
	return answer.Event, err
}

func (c *hostConnection) Next(ctx context.Context) (comch.Arrival, error) {
	answer, err := c.call(ctx, HostCall{Method: "Next"})
	return comch.Arrival{Message: answer.Message, Event: answer.Event}, err
}

func (c *hostConnection) ExportMemory(context.Context, *memory.Region, memory.Access) ([]byte,
	error) {
	return nil, status.Errorf(status.NotSupported, "memory of this process is not on the host")
}

func (c *hostConnection) ImportMemory(descriptor []byte) (*memory.Region, memory.Access, error) {
	_, err := c.call(context.Background(), HostCall{Method: "ImportMemory", Message: descriptor})
	if err == nil {
		err = status.Errorf(status.NotSupported, "memory of the host is not in this process")
	}
	return nil, 0, err
}

func (c *hostConnection) NewConsumer(ctx context.Context,
	config comch.ConsumerConfig) (comch.Consumer, error) {
	call := HostCall{Method: "NewConsumer", Consumer: hostConsumerConfig{config.Receives,
		config.MemorySize, config.ImmediateLength}}
	var bytes []byte
	if config.Memory != nil {
		call.Length = uint32(config.Memory.Len())
		bytes = config.Memory.Bytes()
	}
	answer, err := c.call(ctx, call)
	if err != nil {
		return nil, err
	}
	if bytes == nil {
		bytes = make([]byte, config.MemorySize)
	}
	return &hostConsumerProxy{hostObject{c.provider, answer.Object}, bytes,
		comch.ConsumerID(answer.Number)}, nil
}

func (c *hostConnection) NewProducer(ctx context.Context,
	id comch.ConsumerID) (comch.Producer, error) {
	answer, err := c.call(ctx, HostCall{Method: "NewProducer", ID: id})
	if err != nil {
		return nil, err
	}
	return &hostProducerProxy{hostObject{c.provider, answer.Object}, uint32(answer.Number)}, nil
}

// hostObject is a consumer or producer on the host.
type hostObject struct {
	provider *withHost
	object   uint64
}

func (o hostObject) call(call HostCall) (HostAnswer, error) {
	return o.provider.call(context.Background(), o.object, call)
}

func (o hostObject) do(method string) HostAnswer {
	answer, _ := o.call(HostCall{Method: method})
	return answer
}

func (o hostObject) Flush()                { o.do("Flush") }
func (o hostObject) State() progress.State { return o.do("State").State }
func (o hostObject) Err() error            { return o.do("State").Late.err() }
func (o hostObject) Descriptor() int       { return progress.NoDescriptor }
func (o hostObject) Arm() bool             { return o.do("Arm").Yes }
func (o hostObject) Disarm()               { o.do("Disarm") }
func (o hostObject) Clear()                { o.do("Clear") }

func (o hostObject) Close() error {
	_, err := o.call(HostCall{Method: "Close"})
	return err
}

// hostConsumerProxy implements comch.LateConsumer. What it receives is copied to memory of this
// process.
type hostConsumerProxy struct {
	hostObject
	bytes []byte
	id    comch.ConsumerID
}

func (c *hostConsumerProxy) ID() comch.ConsumerID { return c.id }
func (c *hostConsumerProxy) Memory() []byte       { return c.bytes }
func (c *hostConsumerProxy) Stop()                { c.do("Stop") }

func (c *hostConsumerProxy) PostReceive(offset, length uint32, userData uint64) error {
	_, err := c.call(HostCall{Method: "PostReceive", Offset: offset, Length: length,
		UserData: userData})
	return err
}

func (c *hostConsumerProxy) Poll(received []comch.Received) int {
	answer, _ := c.call(HostCall{Method: "Poll", Max: uint32(len(received))})
	for i, message := range answer.Messages {
		copy(c.bytes[answer.Received[i].Offset:], message)
	}
	return copy(received, answer.Received)
}

// hostProducerProxy implements comch.LateProducer.
type hostProducerProxy struct {
	hostObject
	id uint32
}

func (p *hostProducerProxy) ID() uint32 { return p.id }
func (p *hostProducerProxy) Abort()     { p.do("Abort") }
func (p *hostProducerProxy) Poll() int  { return p.do("Poll").Number }

func (p *hostProducerProxy) Send(message, immediate []byte) error {
	_, err := p.call(HostCall{Method: "Send", Message: message, Immediate: immediate})
	return err
}
