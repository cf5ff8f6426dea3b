package comch

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// MsgQProvider is a Provider that also makes DPAs and message queues.
type MsgQProvider interface {
	Provider
	// NewDPA makes a DPA thread, status.NotSupported if the device has none.
	NewDPA(config DPAConfig) (DPA, error)
	// NewMsgQ makes a message queue to a DPA of this provider.
	NewMsgQ(config MsgQConfig) (MsgQ, error)
}

// AsMsgQProvider returns provider as a MsgQProvider. It fails with
// status.NotSupported if provider does not implement that.
func AsMsgQProvider(provider Provider) (MsgQProvider, error) {
	if p, ok := provider.(MsgQProvider); ok {
		return p, nil
	}
	return nil, status.Errorf(status.NotSupported, "comch provider %s has no DPA and no message queues", provider.Name())
}

// DPAConfig says where a DPA thread runs. Zero values mean the defaults.
type DPAConfig struct {
	Device string
	// CPUs are the processors that an embedded DPA may run on, in the numbers
	// of the operating system; none leaves the choice to the provider.
	CPUs []int
}

// DPAKernel is the code of a DPA thread. It is called again and again, as long
// as it returns that it has done something; when it returns 0 the thread may
// sleep until one of its consumers has a message, one of its producers that
// found a consumer empty has room again, or Wake is called. It must not block.
type DPAKernel func() int

// DPA is the data path accelerator of a device, with one thread. Its device
// side, DPAConsumer and DPAProducer, is used by the kernel.
type DPA interface {
	// Start runs the kernel. It can be called once.
	Start(kernel DPAKernel) error
	// Wake has the kernel called.
	Wake()
	// Close ends the thread after the kernel has returned. It fails with
	// status.InUse while there are message queues.
	Close() error
}

// MsgQDirection is the one way in which messages of a MsgQ go.
type MsgQDirection uint8

const (
	// DPAConsumers makes CPU producers and DPA consumers
	// (doca_comch_msgq_set_dpa_consumer).
	DPAConsumers MsgQDirection = iota + 1
	// DPAProducers makes DPA producers and CPU consumers
	// (doca_comch_msgq_set_dpa_producer).
	DPAProducers
)

// String names the direction.
func (d MsgQDirection) String() string {
	switch d {
	case DPAConsumers:
		return "to the DPA"
	case DPAProducers:
		return "from the DPA"
	}
	return "invalid"
}

// MsgQConfig describes a message queue.
type MsgQConfig struct {
	DPA       DPA           // mandatory
	Direction MsgQDirection // mandatory
	// MaxConsumers and MaxProducers bound how many of them can be made; 0
	// means the provider's default. A producer counts once for each consumer
	// that it sends to.
	MaxConsumers, MaxProducers int
}

// MsgQ is a message queue between this process's CPU threads and a DPA. It
// needs no server, client or connection, and carries immediate data only. Its
// methods may be called by any goroutine.
type MsgQ interface {
	// Capabilities are the limits of CPU consumers and producers. Their
	// buffers and memory have no bytes.
	Capabilities() Capabilities
	// NewConsumer makes a CPU consumer, whose MemorySize has to be 0.
	// status.NotSupported if the consumers of this queue are the DPA's.
	NewConsumer(ctx context.Context, config ConsumerConfig) (Consumer, error)
	// NewProducer makes a CPU producer to a DPA consumer.
	// status.NotSupported if the producers of this queue are the DPA's.
	NewProducer(ctx context.Context, consumer ConsumerID) (Producer, error)
	// NewDPAConsumer makes a consumer with room for so many messages.
	// status.NotSupported if the consumers of this queue are the CPU's.
	NewDPAConsumer(ctx context.Context, receives int) (DPAConsumer, error)
	// NewDPAProducer makes a producer with room for so many completions.
	// userData comes with each of them. status.NotSupported if the producers
	// of this queue are the CPU's.
	NewDPAProducer(ctx context.Context, sends int, userData uint64) (DPAProducer, error)
	// Close ends the queue. It fails with status.InUse while there are
	// consumers or producers.
	Close() error
}

// DPAConsumer is the device's side of a consumer of immediate data. Ack and
// Poll belong to the kernel.
type DPAConsumer interface {
	// ID is the consumer's id on its queue.
	ID() ConsumerID
	// Ack prepares the consumer for so many more messages. status.Full if
	// that is more than it has room for; nothing is prepared then.
	Ack(messages int) error
	// Poll fills received with messages, in order, and returns their number.
	Poll(received []Received) int
	// Close destroys the consumer, when the kernel does not run.
	Close() error
}

// DPABuffer is a place in memory that a DPA may copy from or to.
type DPABuffer struct {
	Region *memory.Region
	// Access are the rights that the DPA has been given to the region:
	// memory.PCIRead in order to copy from it, memory.PCIWrite to it.
	Access memory.Access
	Offset uint64 // bytes from the start of the region
}

// DPACompletion tells the kernel that a message has arrived for which a
// completion was requested.
type DPACompletion struct {
	UserData uint64 // of the producer
}

// DPAProducer is the device's side of a producer. All methods but Close belong
// to the kernel.
type DPAProducer interface {
	// IsConsumerEmpty reports whether the consumer has no receive posted.
	// status.NotFound if there is no such consumer.
	IsConsumerEmpty(consumer ConsumerID) (bool, error)
	// PostSendImmediate sends at most MaxImmediateLength bytes to a CPU
	// consumer. status.Again if the consumer has no receive posted,
	// status.Full if a completion is requested and the producer has no room
	// for it.
	PostSendImmediate(consumer ConsumerID, immediate []byte, completionRequested bool) error
	// DMACopy copies length bytes and then sends immediate, as
	// PostSendImmediate does, with whose errors it copies nothing.
	// status.NotPermitted if the rights do not suffice, status.InvalidValue if
	// the ranges overlap or are outside their regions.
	DMACopy(consumer ConsumerID, destination, source DPABuffer, length uint64, immediate []byte, completionRequested bool) error
	// Poll fills completions with those that were requested and returns their
	// number.
	Poll(completions []DPACompletion) int
	// Close destroys the producer, when the kernel does not run.
	Close() error
}
