// SPDX-License-Identifier: Apache-2.0

package doca

// #include <stdlib.h>
// #include "shim.h"
//
// static doca_error_t zcd_cap_server(zcd_table f, struct doca_devinfo *info)
// { return f->comch_cap_server_is_supported(info); }
// static doca_error_t zcd_cap_client(zcd_table f, struct doca_devinfo *info)
// { return f->comch_cap_client_is_supported(info); }
// static doca_error_t zcd_cap_consumer(zcd_table f, struct doca_devinfo *info)
// { return f->comch_consumer_cap_is_supported(info); }
// static doca_error_t zcd_cap_producer(zcd_table f, struct doca_devinfo *info)
// { return f->comch_producer_cap_is_supported(info); }
//
// struct zcd_limits {
//	uint32_t name, message, queue, clients, sends;
//	uint32_t consumers, receives, receive_length, immediate;
//	uint32_t producers, producer_sends, send_length;
// };
//
// // zcd_cap_limits leaves 0 where the device does not answer.
// static void zcd_cap_limits(zcd_table f, struct doca_devinfo *info,
//	struct zcd_limits *l)
// {
//	#define LIMIT(field, name) if (f->name(info, &l->field) != DOCA_SUCCESS) l->field = 0
//	LIMIT(name, comch_cap_get_max_name_len);
//	LIMIT(message, comch_cap_get_max_msg_size);
//	LIMIT(queue, comch_cap_get_max_recv_queue_size);
//	LIMIT(clients, comch_cap_get_max_clients);
//	LIMIT(sends, comch_cap_get_max_send_tasks);
//	LIMIT(consumers, comch_consumer_cap_get_max_consumers);
//	LIMIT(receives, comch_consumer_cap_get_max_num_tasks);
//	LIMIT(receive_length, comch_consumer_cap_get_max_buf_size);
//	LIMIT(immediate, comch_consumer_cap_get_max_imm_data_len);
//	LIMIT(producers, comch_producer_cap_get_max_producers);
//	LIMIT(producer_sends, comch_producer_cap_get_max_num_tasks);
//	LIMIT(send_length, comch_producer_cap_get_max_buf_size);
// }
import "C"

import (
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// ComchCapabilities holds what a device can do with Comch (doca_comch_cap_*). A limit that the
// device does not tell is 0.
type ComchCapabilities struct {
	Server, Client, Consumer, Producer bool

	MaxNameLength      int // bytes, without the final zero
	MaxMessageSize     int // bytes of a control message
	MaxReceiveQueue    int // control messages
	MaxClients         int // of a server
	MaxSends           int // control messages in flight
	MaxConsumers       int // per connection
	MaxReceives        int // of a consumer
	MaxReceiveLength   int // bytes
	MaxImmediateLength int // bytes
	MaxProducers       int // per connection
	MaxProducerSends   int // in flight of a producer
	MaxSendLength      int // bytes
}

// ComchCapabilities returns the capabilities of the device of that name, without opening it. It
// fails with status.NotFound if there is no such device.
func (l *Library) ComchCapabilities(device string) (ComchCapabilities, error) {
	var c ComchCapabilities
	if err := l.NeedComch(); err != nil {
		return c, err
	}
	err := l.findDevice(device, func(d *DeviceInfo) error {
		c.Server = C.zcd_cap_server(l.table, d.info) == C.DOCA_SUCCESS
		c.Client = C.zcd_cap_client(l.table, d.info) == C.DOCA_SUCCESS
		c.Consumer = C.zcd_cap_consumer(l.table, d.info) == C.DOCA_SUCCESS
		c.Producer = C.zcd_cap_producer(l.table, d.info) == C.DOCA_SUCCESS
		limits := new(C.struct_zcd_limits)
		C.zcd_cap_limits(l.table, d.info, limits)
		c.MaxNameLength = max(0, int(limits.name)-1)
		c.MaxMessageSize, c.MaxReceiveQueue = int(limits.message), int(limits.queue)
		c.MaxClients, c.MaxSends = int(limits.clients), int(limits.sends)
		c.MaxConsumers, c.MaxReceives = int(limits.consumers), int(limits.receives)
		c.MaxReceiveLength = int(limits.receive_length)
		c.MaxImmediateLength = int(limits.immediate)
		c.MaxProducers, c.MaxProducerSends = int(limits.producers), int(limits.producer_sends)
		c.MaxSendLength = int(limits.send_length)
		return nil
	})
	return c, err
}

// Connection is a doca_comch_connection. It is valid from its event Connected (of a server), or
// since its client runs, until the event Disconnected has been returned or the client is Idle.
type Connection struct {
	connection *C.struct_doca_comch_connection
}

// EventKind is the kind of a ControlEvent.
type EventKind uint32

// The kinds of events.
const (
	// Connected reports a new connection of a server.
	Connected EventKind = C.ZCD_NOTE_CONNECTED
	// Disconnected reports the end of a connection of a server. A client becomes Idle instead.
	Disconnected EventKind = C.ZCD_NOTE_DISCONNECTED
	// MessageReceived reports a control message.
	MessageReceived EventKind = C.ZCD_NOTE_MESSAGE
	// MessageSent reports that a message of Send has been sent or has failed.
	MessageSent EventKind = C.ZCD_NOTE_SENT
	// ConsumerCreated and ConsumerExpired report that the peer has created or lost a consumer.
	ConsumerCreated EventKind = C.ZCD_NOTE_CONSUMER
	ConsumerExpired EventKind = C.ZCD_NOTE_CONSUMER_EXPIRED
)

// ControlEvent is an event of a Control.
type ControlEvent struct {
	Kind       EventKind
	Connection Connection
	// Message is the text of MessageReceived. It is valid until the handler returns.
	Message []byte
	// Consumer is the id of ConsumerCreated and ConsumerExpired.
	Consumer uint32
	// UserData is what Send was called with.
	UserData uint64
	// Err is why a message was not sent, or a connection was not established.
	Err error
}

// ControlConfig configures a server or a client.
type ControlConfig struct {
	Device *Device
	// Representor is the host function that a server serves. It is nil for a client.
	Representor *Representor
	Name        string
	// MaxMessageSize is in bytes, ReceiveQueue and Sends are numbers of messages. All must be set.
	MaxMessageSize, ReceiveQueue, Sends int
	// Wait asks for a Descriptor.
	Wait bool
}

// Control is a Comch server or client with its own progress engine.
type Control struct {
	Context
	control *C.struct_zcd_control
}

// NewControl creates a server or a client. It fails with status.NotSupported if the device cannot
// have one.
func NewControl(config ControlConfig) (*Control, error) {
	l := config.Device.library
	if err := l.NeedComch(); err != nil {
		return nil, err
	}
	e, err := l.newEngine(config.Wait)
	if err != nil {
		return nil, err
	}
	name := "comch client"
	control := (*C.struct_zcd_control)(C.calloc(1, C.sizeof_struct_zcd_control))
	c := &Control{Context{e, name, &control.context}, control}
	settings := (*C.struct_zcd_control_config)(C.calloc(1, C.sizeof_struct_zcd_control_config))
	defer C.free(unsafe.Pointer(settings))
	settings.name = C.CString(config.Name)
	defer C.free(unsafe.Pointer(settings.name))
	settings.device = config.Device.dev
	if config.Representor != nil {
		c.name = "comch server"
		settings.representor = config.Representor.rep
	}
	settings.max_message_size = C.uint32_t(config.MaxMessageSize)
	settings.receive_queue = C.uint32_t(config.ReceiveQueue)
	settings.sends = C.uint32_t(config.Sends)
	var step *C.char
	result := C.zcd_control_open(e.c, settings, control, &step)
	if err := l.failure("create "+c.name+": "+C.GoString(step), result); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Start starts the control. A server is then Running, and fails with status.AlreadyExist if its
// name is taken. A client is Starting until it is connected.
func (c *Control) Start() error {
	return c.engine.library.failure("start "+c.name, C.zcd_control_start(c.control))
}

// Stop begins to stop the control, and ends its connections.
func (c *Control) Stop() error {
	return c.engine.library.failure("stop "+c.name, C.zcd_control_stop(c.control))
}

// Arm requests that Descriptor becomes readable at the next event, and reports whether there is
// none yet. If there is, the next Turn returns it.
func (c *Control) Arm() bool {
	return C.zcd_control_arm(c.control) == 0 && c.control.notes == nil
}

// Turn makes up to budget steps of progress and calls handle with the events, in order. It returns
// the number of events.
func (c *Control) Turn(budget int, handle func(ControlEvent)) int {
	notes := C.zcd_control_turn(c.control, C.uint32_t(budget))
	if notes == nil {
		return 0
	}
	defer C.zcd_notes_free(notes)
	count := 0
	for note := notes; note != nil; note = note.next {
		count++
		handle(c.event(note))
	}
	return count
}

func (c *Control) event(note *C.struct_zcd_note) ControlEvent {
	event := ControlEvent{Kind: EventKind(note.kind), Connection: Connection{note.connection},
		Consumer: uint32(note.id), UserData: uint64(note.user)}
	switch event.Kind {
	case MessageReceived:
		bytes := unsafe.Add(unsafe.Pointer(note), C.sizeof_struct_zcd_note)
		event.Message = unsafe.Slice((*byte)(bytes), note.length)
	case MessageSent:
		event.Err = c.engine.library.failure("send control message", C.doca_error_t(note.code))
	case Connected, Disconnected:
		if note.code != 0 {
			event.Err = status.Errorf(status.NotConnected, "the connection was not established")
		}
	}
	return event
}

// Connection returns the connection of a client that is Running.
func (c *Control) Connection() (Connection, error) {
	var connection Connection
	err := c.engine.library.failure("get connection of "+c.name,
		C.zcd_control_connection(c.control, &connection.connection))
	return connection, err
}

// Send submits a copy of a control message. The event MessageSent with userData follows. Send fails
// with status.Again if too many messages are in flight.
func (c *Control) Send(connection Connection, message []byte, userData uint64) error {
	result := C.zcd_control_send(c.control, connection.connection,
		unsafe.Pointer(unsafe.SliceData(message)), C.uint32_t(len(message)), C.uint64_t(userData))
	return c.engine.library.failure("send control message", result)
}

// Disconnect ends a connection of a server. It fails with status.Again if that has to wait.
func (c *Control) Disconnect(connection Connection) error {
	return c.engine.library.failure("disconnect comch client",
		C.zcd_control_disconnect(c.control, connection.connection))
}

// Close destroys the control, which must be Idle, and its progress engine.
func (c *Control) Close() error {
	err := c.engine.library.failure("destroy "+c.name, C.zcd_control_close(c.control))
	if err != nil {
		return err
	}
	C.free(unsafe.Pointer(c.control))
	return c.engine.close()
}
