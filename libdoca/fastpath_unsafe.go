// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include "skin.h"
import "C"

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"unsafe"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/internal/inorder"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// fastPathBatch bounds the messages of one poll of a consumer.
const fastPathBatch = 32

// consumerCore is a consumer. Its messages arrive in memory of the provider, and are copied to the
// bufs of the application. The thread of its engine calls everything except connectionLost.
type consumerCore struct {
	engine     *engine
	ctx        *C.struct_doca_ctx
	consumer   *C.struct_doca_comch_consumer
	connection *connection
	cancel     context.CancelFunc

	announcement *inorder.Entry // nil if it waits for nothing
	data         comch.Consumer // nil unless running
	posted       fifo.Queue[postedTask]
	memory       uint64 // bytes of the provider's memory
	next         uint64 // where the next receive would begin, counted without end
	stopping     bool
	armed        bool
	batch        [fastPathBatch]comch.Received
}

// postedTask is a receive: its task, and the place of its memory, counted without end.
type postedTask struct {
	task  *C.struct_doca_comch_consumer_task_post_recv
	start uint64
}

func newConsumer(e *engine, ctx *C.struct_doca_ctx) *consumerCore {
	consumer := (*C.struct_doca_comch_consumer)(unsafe.Pointer(ctx))
	return &consumerCore{engine: e, ctx: ctx, consumer: consumer,
		connection: connections.get(consumer.connection.core)}
}

// start announces the consumer at once, whether or not its engine is progressed.
func (c *consumerCore) start() (status.Code, error) {
	if err := c.connection.addChild(c); err != nil {
		return 0, err
	}
	limits := &active.Load().Limits
	tasks := int(c.ctx.pools[0].count)
	largest := min(uint64(c.consumer.mmap.len), uint64(limits.MaxBufferLength))
	c.memory = min(uint64(c.consumer.mmap.len)+largest, uint64(tasks)*largest, maxRingMemory)
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.posted = fifo.New[postedTask](tasks)
	config := comch.ConsumerConfig{Receives: tasks, MemorySize: int(c.memory),
		ImmediateLength: int(c.consumer.imm_data_len)}
	c.announcement = c.connection.actions.DoSoon(func() {
		bounded, stop := context.WithTimeout(ctx, startTimeout)
		defer stop()
		data, err := c.connection.comch.NewConsumer(bounded, config)
		c.engine.do(func() { c.started(data, err) })
	})
	return status.InProgress, nil
}

func (c *consumerCore) started(data comch.Consumer, err error) {
	if err == nil {
		err = c.engine.watch(data.Descriptor())
		if err != nil {
			_ = data.Close() // err is the error to report
		}
	}
	switch {
	case err != nil && c.stopping:
		c.engine.finish(c.ctx)
	case err != nil:
		failed("start consumer", err)
		c.engine.enter(c.ctx, C.DOCA_CTX_STATE_IDLE)
	default:
		c.data = data
		c.consumer.id = C.uint32_t(data.ID())
		c.engine.add(c)
		if c.stopping {
			c.close()
			c.engine.finish(c.ctx)
			return
		}
		c.engine.enter(c.ctx, C.DOCA_CTX_STATE_RUNNING)
	}
}

// close destroys the provider's consumer.
func (c *consumerCore) close() {
	c.disarm()
	c.engine.remove(c)
	c.engine.unwatch(c.data.Descriptor())
	if err := c.data.Close(); err != nil {
		failed("stop consumer", err)
	}
	c.data = nil
}

func (c *consumerCore) flush() status.Code {
	for task := takeSubmitted(c.ctx); task != nil; task = takeSubmitted(c.ctx) {
		post := (*C.struct_doca_comch_consumer_task_post_recv)(unsafe.Pointer(task))
		if code := c.post(post); code != status.Success {
			c.engine.complete(task, code)
		}
	}
	c.data.Flush()
	return status.Success
}

func (c *consumerCore) post(post *C.struct_doca_comch_consumer_task_post_recv) status.Code {
	length := uint64(0)
	if buf := post.buf; buf != nil {
		length = uint64(buf.len) - uint64(buf.data-buf.head) - uint64(buf.data_len)
	}
	start, ok := c.place(length)
	if !ok {
		return status.NoMemory
	}
	offset := uint32(0)
	if length > 0 {
		offset = uint32(start % c.memory)
	}
	if err := c.data.PostReceive(offset, uint32(length), 0); err != nil {
		return status.CodeOf(err)
	}
	*c.posted.Push() = postedTask{post, start}
	c.next = start + length
	return status.Success
}

// place finds room for the next receive. Receives complete in order, so the memory is a ring.
func (c *consumerCore) place(length uint64) (start uint64, ok bool) {
	start = c.next
	if start%c.memory+length > c.memory {
		start += c.memory - start%c.memory
	}
	oldest := start
	if c.posted.Len() > 0 {
		oldest = c.posted.Front().start
	}
	return start, start+length-oldest <= c.memory
}

func (c *consumerCore) poll() {
	if c.data == nil || c.collect() > 0 || c.data.State() == progress.Running {
		return
	}
	// The connection has ended, and its last message has been delivered.
	c.failPosted(status.NotConnected)
	c.close()
	c.stopping = true
	c.engine.enter(c.ctx, C.DOCA_CTX_STATE_STOPPING)
	c.engine.finish(c.ctx)
}

// collect completes the receives of messages that have arrived. Memory that the application has
// unmapped fails the task that needs it.
func (c *consumerCore) collect() int {
	n := c.data.Poll(c.batch[:])
	for done := 0; done < n; {
		done += c.deliver(c.batch[done:n])
	}
	return n
}

// deliver delivers messages until one fails, and returns their number.
func (c *consumerCore) deliver(received []comch.Received) (n int) {
	previous := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(previous)
		if fault := recover(); fault != nil {
			failed("receive message", faultError(fault))
			c.completeFirst(status.IOFailed)
			n++
		}
	}()
	memory := c.data.Memory()
	for ; n < len(received); n++ {
		c.store(&received[n], memory)
		c.completeFirst(status.Success)
	}
	return n
}

// store copies a message to the buf of the oldest receive.
func (c *consumerCore) store(r *comch.Received, memory []byte) {
	task := c.posted.Front().task
	if buf := task.buf; buf != nil && r.Length > 0 {
		to := bytesOf(buf.mmap, uintptr(buf.data)+uintptr(buf.data_len), uintptr(r.Length))
		copy(to, memory[r.Offset:][:r.Length])
		buf.data_len += C.size_t(r.Length)
	}
	task.producer_id = C.uint32_t(r.Producer)
	task.imm_data_len = C.uint32_t(r.ImmediateLength)
	if r.ImmediateLength > 0 {
		*(*[comch.MaxImmediateLength]byte)(unsafe.Pointer(&task.imm_data)) = r.Immediate
	}
}

func (c *consumerCore) completeFirst(code status.Code) {
	c.engine.complete(&c.posted.Pop().task.task, code)
}

func (c *consumerCore) failPosted(code status.Code) {
	for c.posted.Len() > 0 {
		c.completeFirst(code)
	}
}

// stop completes with success what has arrived, and the rest with an error.
func (c *consumerCore) stop() status.Code {
	c.connection.removeChild(c)
	c.stopping = true
	if c.data == nil {
		c.cancel()
		if c.connection.actions.Withdraw(c.announcement) {
			c.engine.do(func() { c.started(nil, context.Canceled) })
		}
		return status.InProgress
	}
	c.connection.actions.Settle()
	c.data.Stop()
	for c.collect() > 0 {
	}
	c.failPosted(status.Shutdown)
	c.close()
	return status.Success
}

// connectionLost wakes the engine; poll finds out by itself.
func (c *consumerCore) connectionLost() { c.engine.do(func() {}) }

func (c *consumerCore) end() {
	c.cancel()
	c.connection.removeChild(c)
	c.consumer.id = 0
}

func (c *consumerCore) arm() bool {
	if c.data == nil {
		return true // it has just ended
	}
	c.armed = c.data.Arm()
	return c.armed
}

func (c *consumerCore) disarm() {
	if c.armed {
		c.armed = false
		c.data.Disarm()
		c.data.Clear()
	}
}

// producerCore is a producer. It sends to any consumer of the peer, each through an outlet. The
// thread of its engine calls everything except connectionLost.
type producerCore struct {
	engine     *engine
	ctx        *C.struct_doca_ctx
	producer   *C.struct_doca_comch_producer
	connection *connection
	ids        emulated.ProducerIDs // nil if the provider has other connections
	opening    sync.Mutex           // outlets of one ID are opened one after the other
	context    context.Context
	cancel     context.CancelFunc

	outlets  []*outlet
	pending  int // outlets that are being opened
	stopping bool
	again    bool // AGAIN is passed on
	scratch  []byte
}

// outlet leads to one consumer.
type outlet struct {
	consumer C.uint32_t

	data  comch.Producer // nil while it is being opened
	queue []*C.struct_doca_comch_producer_task_send
	armed bool
}

func newProducer(e *engine, ctx *C.struct_doca_ctx) *producerCore {
	producer := (*C.struct_doca_comch_producer)(unsafe.Pointer(ctx))
	p := &producerCore{engine: e, ctx: ctx, producer: producer,
		connection: connections.get(producer.connection.core), again: active.Load().Again,
		scratch: make([]byte, active.Load().Limits.MaxBufferLength)}
	p.context, p.cancel = context.WithCancel(context.Background())
	return p
}

func (p *producerCore) start() (status.Code, error) {
	if err := p.connection.addChild(p); err != nil {
		return 0, err
	}
	if p.producer.id == 0 {
		id, err := p.newID()
		if err != nil {
			p.connection.removeChild(p)
			return 0, err
		}
		p.producer.id = C.uint32_t(id)
	}
	p.ids, _ = p.connection.comch.(emulated.ProducerIDs)
	p.engine.add(p)
	return status.Success, nil
}

// newID returns an ID for the producer.
func (p *producerCore) newID() (uint32, error) {
	if ids, ok := p.connection.comch.(emulated.ProducerIDs); ok {
		return ids.NewProducerID()
	}
	return 1, nil // consumers see those of the provider
}

func (p *producerCore) flush() status.Code {
	for task := takeSubmitted(p.ctx); task != nil; task = takeSubmitted(p.ctx) {
		send := (*C.struct_doca_comch_producer_task_send)(unsafe.Pointer(task))
		o := p.outletTo(send.consumer_id)
		if o.data != nil && len(o.queue) == 0 && p.send(o, send) != status.Again {
			continue
		}
		if last := p.ctx.submitted == nil; p.again && last && o.data != nil && len(o.queue) == 0 {
			p.ctx.submitted, p.ctx.submitted_last = task, task
			p.flushOutlets()
			return status.Again
		}
		o.queue = append(o.queue, send)
	}
	p.flushOutlets()
	return status.Success
}

func (p *producerCore) flushOutlets() {
	for _, o := range p.outlets {
		if o.data != nil {
			o.data.Flush()
		}
	}
}

// outletTo returns the outlet to a consumer, and starts to open it if there is none.
func (p *producerCore) outletTo(consumer C.uint32_t) *outlet {
	for _, o := range p.outlets {
		if o.consumer == consumer {
			return o
		}
	}
	o := &outlet{consumer: consumer}
	p.outlets = append(p.outlets, o)
	p.pending++
	go func() {
		data, err := p.openData(comch.ConsumerID(consumer))
		p.engine.do(func() { p.opened(o, data, err) })
	}()
	return o
}

// remove removes an outlet. The slice is new: poll may be walking the old one.
func (p *producerCore) remove(gone *outlet) {
	p.outlets = slices.DeleteFunc(slices.Clone(p.outlets),
		func(o *outlet) bool { return o == gone })
}

func (p *producerCore) openData(consumer comch.ConsumerID) (comch.Producer, error) {
	p.opening.Lock()
	defer p.opening.Unlock()
	ctx, cancel := context.WithTimeout(p.context, startTimeout)
	defer cancel()
	if p.ids == nil {
		return p.connection.comch.NewProducer(ctx, consumer)
	}
	return p.ids.NewProducerWithID(ctx, consumer, uint32(p.producer.id))
}

func (p *producerCore) opened(o *outlet, data comch.Producer, err error) {
	p.pending--
	if err == nil {
		err = p.engine.watch(data.Descriptor())
	}
	if err != nil || p.stopping {
		if data != nil {
			p.closeData(data)
		}
		if err != nil {
			failed("send to consumer", err)
		}
		p.remove(o)
		p.fail(o, status.CodeOf(err))
		p.settle()
		return
	}
	o.data = data
	p.sendQueued(o)
	data.Flush()
}

func (p *producerCore) closeData(data comch.Producer) {
	p.engine.unwatch(data.Descriptor())
	if err := data.Close(); err != nil {
		failed("close producer", err)
	}
}

func (p *producerCore) fail(o *outlet, code status.Code) {
	if code == status.Success {
		code = status.Shutdown
	}
	for _, send := range o.queue {
		p.engine.complete(&send.task, code)
	}
	o.queue = nil
}

// sendQueued sends what is queued, while the consumer has receives posted.
func (p *producerCore) sendQueued(o *outlet) {
	if o.data == nil {
		return
	}
	n := 0
	for n < len(o.queue) && p.send(o, o.queue[n]) != status.Again {
		n++
	}
	if n > 0 {
		o.queue = slices.Delete(o.queue, 0, n)
	}
}

// send sends a message and completes its task, unless it returns Again.
func (p *producerCore) send(o *outlet, send *C.struct_doca_comch_producer_task_send) status.Code {
	var message []byte
	if buf := send.buf; buf != nil {
		message = p.scratch[:buf.data_len]
		from := bytesOf(buf.mmap, uintptr(buf.data), uintptr(buf.data_len))
		// A fault inside of Send would leave a hole in the ring.
		if err := copyGuarded(message, from); err != nil {
			p.engine.complete(&send.task, status.IOFailed)
			return status.IOFailed
		}
	}
	immediate := unsafe.Slice((*byte)(unsafe.Pointer(&send.imm_data)), send.imm_data_len)
	code := status.CodeOf(o.data.Send(message, immediate))
	if code != status.Again {
		p.engine.complete(&send.task, code)
	}
	return code
}

// poll sends what is waiting, and closes outlets whose consumer is gone.
func (p *producerCore) poll() {
	for _, o := range p.outlets {
		if o.data == nil {
			continue
		}
		if len(o.queue) > 0 {
			p.sendQueued(o)
			o.data.Flush()
		}
		if o.data.State() != progress.Running {
			p.closeOutlet(o, status.NotConnected)
			p.remove(o)
		}
	}
}

func (p *producerCore) closeOutlet(o *outlet, code status.Code) {
	p.fail(o, code)
	p.disarmOutlet(o)
	p.closeData(o.data)
}

func (p *producerCore) closeOutlets(code status.Code) {
	p.cancel()
	for _, o := range p.outlets {
		if o.data != nil {
			p.closeOutlet(o, code)
			p.remove(o)
		} else {
			p.fail(o, code)
		}
	}
	p.engine.remove(p)
	p.stopping = true
}

func (p *producerCore) stop() status.Code {
	if p.stopping {
		return status.InProgress // lost, and about to say so
	}
	p.connection.removeChild(p)
	p.closeOutlets(status.Shutdown)
	if p.pending > 0 {
		return status.InProgress
	}
	return status.Success
}

func (p *producerCore) connectionLost() {
	p.engine.do(func() {
		if p.stopping {
			return
		}
		p.closeOutlets(status.NotConnected)
		p.engine.enter(p.ctx, C.DOCA_CTX_STATE_STOPPING)
		p.settle()
	})
}

func (p *producerCore) settle() {
	if p.stopping && p.pending == 0 {
		p.engine.finish(p.ctx)
	}
}

func (p *producerCore) end() {
	p.cancel()
	p.connection.removeChild(p)
}

func (p *producerCore) arm() bool {
	for _, o := range p.outlets {
		if o.data == nil || len(o.queue) == 0 {
			continue
		}
		if o.armed = o.data.Arm(); !o.armed {
			p.disarm()
			return false
		}
	}
	return true
}

func (p *producerCore) disarm() {
	for _, o := range p.outlets {
		p.disarmOutlet(o)
	}
}

func (p *producerCore) disarmOutlet(o *outlet) {
	if o.armed {
		o.armed = false
		o.data.Disarm()
		o.data.Clear()
	}
}
