// SPDX-License-Identifier: Apache-2.0

package doca

// #include <stdlib.h>
// #include <string.h>
// #include "shim.h"
//
// static doca_error_t zcd_consumer_id(struct zcd_consumer *consumer, uint32_t *id)
// { return consumer->context.engine->f->comch_consumer_get_id(consumer->consumer, id); }
// static doca_error_t zcd_producer_id(struct zcd_producer *producer, uint32_t *id)
// { return producer->context.engine->f->comch_producer_get_id(producer->producer, id); }
//
// // Turns get their object as a number, because cgo would check a pointer at each call.
// static void zcd_consumer_turn_at(uintptr_t consumer, uint32_t posts, uint32_t want,
// 				 uint32_t budget)
// { zcd_consumer_turn((struct zcd_consumer *)consumer, posts, want, budget); }
// static uint32_t zcd_producer_turn_at(uintptr_t producer, uint32_t written, uint32_t budget)
// { return zcd_producer_turn((struct zcd_producer *)producer, written, budget); }
import "C"

import (
	"math"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// stepsPerRecord bounds the steps of progress of one turn: some yield no record.
const stepsPerRecord = 4

// ConsumerConfig configures a consumer.
type ConsumerConfig struct {
	Device     *Device
	Connection Connection
	// Memory is where receives are posted. It must not belong to the Go heap, and must stay mapped
	// until Close.
	Memory []byte
	// Receives is how many receives can be posted at a time.
	Receives int
	// ImmediateLength is how many bytes of immediate data a message may carry.
	ImmediateLength int
	// Wait asks for a Descriptor.
	Wait bool
}

// Consumer is a Comch consumer with its own progress engine.
type Consumer struct {
	Context
	consumer *C.struct_zcd_consumer
	posts    []C.struct_zcd_post     // in C memory
	done     []C.struct_zcd_received // in C memory
	posted   []post                  // by slot
	free     []uint32                // slots that are not posted, as a ring
	freeHead uint32
	freeLen  uint32
	queued   int // of posts
}

// post is what a receive was posted with.
type post struct {
	offset, length uint32
	userData       uint64
}

// MaxImmediateLength bounds the immediate data of a message, in bytes.
const MaxImmediateLength = C.ZCD_MAX_IMMEDIATE

// Received is the completion of a receive.
type Received struct {
	UserData        uint64 // what the receive was posted with
	Offset          uint32 // of the posted range
	Length          uint32 // bytes received, at most the posted length
	Producer        uint32
	ImmediateLength uint32
	Immediate       [MaxImmediateLength]byte
}

// NewConsumer creates a consumer. It uses the connection, so the thread of its Control must call
// it.
func NewConsumer(config ConsumerConfig) (*Consumer, error) {
	if err := check("number of receives", config.Receives, math.MaxInt32/2); err != nil {
		return nil, err
	}
	l := config.Device.library
	e, err := l.newEngine(config.Wait)
	if err != nil {
		return nil, err
	}
	consumer := (*C.struct_zcd_consumer)(C.calloc(1, C.sizeof_struct_zcd_consumer))
	c := &Consumer{Context: Context{e, "comch consumer", &consumer.context}, consumer: consumer}
	settings := (*C.struct_zcd_consumer_config)(C.calloc(1, C.sizeof_struct_zcd_consumer_config))
	defer C.free(unsafe.Pointer(settings))
	settings.connection = config.Connection.connection
	settings.device = config.Device.dev
	settings.memory = unsafe.Pointer(unsafe.SliceData(config.Memory))
	settings.memory_length = C.size_t(len(config.Memory))
	settings.receives = C.uint32_t(config.Receives)
	settings.immediate_length = C.uint32_t(config.ImmediateLength)
	var step *C.char
	result := C.zcd_consumer_open(e.c, settings, consumer, &step)
	if err := l.failure("create comch consumer: "+C.GoString(step), result); err != nil {
		_ = c.Close()
		c.Free()
		return nil, err
	}
	c.posts = unsafe.Slice(consumer.posts, config.Receives)
	c.done = unsafe.Slice(consumer.done, consumer.mask+1)
	c.posted = make([]post, config.Receives)
	c.free = make([]uint32, config.Receives)
	for i := range c.free {
		c.free[i] = uint32(i)
	}
	c.freeLen = uint32(len(c.free))
	return c, nil
}

// ID returns the consumer's id on its connection. The consumer must be Running.
func (c *Consumer) ID() (uint32, error) {
	var id C.uint32_t
	err := c.engine.library.failure("get id of comch consumer", C.zcd_consumer_id(c.consumer, &id))
	return uint32(id), err
}

// PostReceive prepares a receive into a range of the memory, which must be inside of it. Post
// submits it. A receive of length 0 gets a buffer of one byte at offset empty, because DOCA has no
// empty buffers. PostReceive reports whether there was room.
func (c *Consumer) PostReceive(offset, length, empty uint32, userData uint64) bool {
	if c.freeLen == 0 {
		return false
	}
	slot := c.free[c.freeHead]
	c.freeHead = c.next(c.freeHead)
	c.freeLen--
	c.posted[slot] = post{offset, length, userData}
	if length == 0 {
		offset, length = empty, 1
	}
	c.posts[c.queued] = C.struct_zcd_post{C.uint32_t(slot), C.uint32_t(offset), C.uint32_t(length)}
	c.queued++
	return true
}

// next returns the index after i in the ring of free slots.
func (c *Consumer) next(i uint32) uint32 {
	if i+1 == uint32(len(c.free)) {
		return 0
	}
	return i + 1
}

// Post submits the receives that PostReceive has prepared.
func (c *Consumer) Post() {
	if c.queued > 0 {
		c.turn(0)
	}
}

// Posted returns how many receives libdoca may still complete.
func (c *Consumer) Posted() int {
	return len(c.free) - int(c.freeLen) - c.queued - int(c.consumer.tail-c.consumer.head)
}

func (c *Consumer) turn(want int) {
	C.zcd_consumer_turn_at(C.uintptr_t(uintptr(unsafe.Pointer(c.consumer))), C.uint32_t(c.queued),
		C.uint32_t(want), C.uint32_t(want*stepsPerRecord))
	c.queued = 0
}

// Turn submits what was prepared, and makes progress until limit receives have completed. Next
// returns them.
func (c *Consumer) Turn(limit int) { c.turn(limit) }

// Next fills received with the oldest completed receive, and reports whether there was one.
// Receives that were taken back are dropped.
func (c *Consumer) Next(received *Received) bool {
	if c.IsEmpty() {
		return false
	}
	record := &c.done[c.consumer.head&c.consumer.mask]
	c.consumer.head++
	slot := uint32(record.slot)
	c.release(slot)
	p := &c.posted[slot]
	received.UserData, received.Offset = p.userData, p.offset
	received.Length = min(uint32(record.length), p.length)
	received.Producer = uint32(record.producer)
	received.ImmediateLength = uint32(record.immediate_length)
	if record.immediate_length > 0 {
		received.Immediate = *(*[MaxImmediateLength]byte)(unsafe.Pointer(&record.immediate))
	}
	return true
}

func (c *Consumer) release(slot uint32) {
	i := c.freeHead + c.freeLen
	if i >= uint32(len(c.free)) {
		i -= uint32(len(c.free))
	}
	c.free[i] = slot
	c.freeLen++
}

// Arm requests that Descriptor becomes readable at the next message, and reports whether there is
// none yet. If there is, Next returns it.
func (c *Consumer) Arm() bool {
	c.Post()
	return c.IsEmpty() && c.arm() && c.IsEmpty()
}

// IsEmpty drops receives that were taken back, and reports whether Next has nothing to return.
func (c *Consumer) IsEmpty() bool {
	for c.consumer.head != c.consumer.tail {
		record := &c.done[c.consumer.head&c.consumer.mask]
		if record.code == C.DOCA_SUCCESS {
			return false
		}
		c.consumer.head++
		c.release(uint32(record.slot))
	}
	return true
}

// StopReceiving stops the consumer and takes back what was posted, as far as that needs no waiting.
// What had arrived remains for Next. Unlike Stop, it is for the thread that owns the consumer.
func (c *Consumer) StopReceiving() error {
	return c.engine.library.failure("stop comch consumer", C.zcd_consumer_stop(c.consumer))
}

// FreeTasks frees the tasks that libdoca has given back, without which a stopped consumer does not
// become Idle. It returns how many libdoca still has.
func (c *Consumer) FreeTasks() int { return int(C.zcd_consumer_free_tasks(c.consumer)) }

// Close destroys the consumer, which must be Idle, and its progress engine. If that fails, libdoca
// still uses the memory.
func (c *Consumer) Close() error {
	var step *C.char
	result := C.zcd_consumer_close(c.consumer, &step)
	if result != C.DOCA_SUCCESS {
		return c.engine.library.failure("close comch consumer: "+C.GoString(step), result)
	}
	return c.engine.close()
}

// Free frees what Close leaves: the records that the owner of the consumer may still look at.
func (c *Consumer) Free() { C.zcd_consumer_free(c.consumer) }

// ProducerConfig configures a producer.
type ProducerConfig struct {
	Device     *Device
	Connection Connection
	Consumer   uint32 // id of the peer's consumer
	// Memory is where messages are kept until they have been sent. It must not belong to the Go
	// heap, and must stay mapped until Close.
	Memory []byte
	// Sends is how many messages can be in flight, a power of two.
	Sends int
	// Wait asks for a Descriptor.
	Wait bool
}

// Producer is a Comch producer for one consumer, with its own progress engine.
type Producer struct {
	Context
	producer *C.struct_zcd_producer
	sends    []C.struct_zcd_send // in C memory
	memory   []byte
	written  uint32 // the next send
	end      uint32 // where the next message goes in memory
}

// NewProducer creates a producer. It uses the connection, so the thread of its Control must call
// it.
func NewProducer(config ProducerConfig) (*Producer, error) {
	if config.Sends < 1 || config.Sends&(config.Sends-1) != 0 {
		return nil, status.Errorf(status.InvalidValue,
			"create comch producer: %d sends are no power of two", config.Sends)
	}
	l := config.Device.library
	e, err := l.newEngine(config.Wait)
	if err != nil {
		return nil, err
	}
	producer := (*C.struct_zcd_producer)(C.calloc(1, C.sizeof_struct_zcd_producer))
	p := &Producer{Context: Context{e, "comch producer", &producer.context}, producer: producer,
		memory: config.Memory}
	settings := (*C.struct_zcd_producer_config)(C.calloc(1, C.sizeof_struct_zcd_producer_config))
	defer C.free(unsafe.Pointer(settings))
	settings.connection = config.Connection.connection
	settings.device = config.Device.dev
	settings.memory = unsafe.Pointer(unsafe.SliceData(config.Memory))
	settings.memory_length = C.size_t(len(config.Memory))
	settings.sends = C.uint32_t(config.Sends)
	settings.target = C.uint32_t(config.Consumer)
	var step *C.char
	result := C.zcd_producer_open(e.c, settings, producer, &step)
	if err := l.failure("create comch producer: "+C.GoString(step), result); err != nil {
		_ = p.Close()
		p.Free()
		return nil, err
	}
	p.sends = unsafe.Slice(producer.sends, config.Sends)
	return p, nil
}

// ID returns the producer's id on its connection.
func (p *Producer) ID() (uint32, error) {
	var id C.uint32_t
	err := p.engine.library.failure("get id of comch producer", C.zcd_producer_id(p.producer, &id))
	return uint32(id), err
}

// MessageAlignment is the size of the cache lines that messages in a producer's memory keep to, in
// bytes.
const MessageAlignment = 64

// Write copies a message, which Turn sends. It reports whether there was room.
func (p *Producer) Write(message, immediate []byte) bool {
	completed := uint32(p.producer.completed)
	if p.written-completed == uint32(len(p.sends)) {
		return false
	}
	// An empty message has a place as well, so that end differs from the oldest message's offset
	// unless there is none.
	length := uint32(max(len(message), 1)+MessageAlignment-1) &^ (MessageAlignment - 1)
	place, ok := p.place(completed, length)
	if !ok {
		return false
	}
	send := &p.sends[p.written&uint32(p.producer.mask)]
	copy(p.memory[place:], message)
	send.offset, send.length = C.uint32_t(place), C.uint32_t(len(message))
	copied := copy(unsafe.Slice((*byte)(&send.immediate[0]), len(send.immediate)), immediate)
	send.immediate_length = C.uint32_t(copied)
	p.written++
	p.end = place + length
	return true
}

// place finds length bytes of free memory, which is a ring that is freed in order.
func (p *Producer) place(completed, length uint32) (uint32, bool) {
	size := uint32(len(p.memory))
	if p.written == completed {
		return 0, length <= size
	}
	oldest := uint32(p.sends[completed&uint32(p.producer.mask)].offset)
	switch {
	case p.end <= oldest: // the ring has wrapped around
		return p.end, length <= oldest-p.end
	case length <= size-p.end:
		return p.end, true
	}
	return 0, length <= oldest
}

// Turn submits what was written, as far as libdoca accepts it, and makes up to budget steps of
// progress. It returns how many there were.
func (p *Producer) Turn(budget int) int {
	return int(C.zcd_producer_turn_at(C.uintptr_t(uintptr(unsafe.Pointer(p.producer))),
		C.uint32_t(p.written), C.uint32_t(budget)))
}

// Pending returns how many messages have been written and are not sent yet.
func (p *Producer) Pending() int { return int(p.written - uint32(p.producer.completed)) }

// Succeeded counts the messages that have been sent. It wraps around.
func (p *Producer) Succeeded() uint32 { return uint32(p.producer.succeeded) }

// Unsubmitted returns how many messages libdoca has not accepted yet.
func (p *Producer) Unsubmitted() int { return int(p.written - uint32(p.producer.submitted)) }

// Room returns how many messages can be in flight in addition to those that are.
func (p *Producer) Room() int { return len(p.sends) - p.Pending() }

// Arm requests that Descriptor becomes readable when a message has been sent, and reports whether
// none has been meanwhile.
func (p *Producer) Arm() bool {
	completed := p.producer.completed
	return p.arm() && p.producer.completed == completed
}

// FreeTasks frees the tasks that libdoca has given back, without which a stopped producer does not
// become Idle. It returns how many libdoca still has.
func (p *Producer) FreeTasks() int { return int(C.zcd_producer_free_tasks(p.producer)) }

// Close destroys the producer, which must be Idle, and its progress engine. If that fails, libdoca
// still uses the memory.
func (p *Producer) Close() error {
	var step *C.char
	result := C.zcd_producer_close(p.producer, &step)
	if result != C.DOCA_SUCCESS {
		return p.engine.library.failure("close comch producer: "+C.GoString(step), result)
	}
	return p.engine.close()
}

// Free frees what Close leaves: the records that the owner of the producer may still look at.
func (p *Producer) Free() { C.zcd_producer_free(p.producer) }
