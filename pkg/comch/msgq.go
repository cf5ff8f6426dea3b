// SPDX-License-Identifier: Apache-2.0

package comch

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// MsgQProvider is a Provider with DPAs and message queues.
type MsgQProvider interface {
	Provider
	// NewDPA creates a DPA thread. It fails with status.NotSupported if the device has no DPA.
	NewDPA(config DPAConfig) (DPA, error)
	// NewMsgQ creates a message queue to a DPA of this provider.
	NewMsgQ(config MsgQConfig) (MsgQ, error)
}

// AsMsgQProvider returns provider as a MsgQProvider. It fails with status.NotSupported if provider
// does not implement that interface.
func AsMsgQProvider(provider Provider) (MsgQProvider, error) {
	if p, ok := provider.(MsgQProvider); ok {
		return p, nil
	}
	return nil, status.Errorf(status.NotSupported,
		"comch provider %s has no DPA and no message queues", provider.Name())
}

// DPAConfig configures a DPA thread. Zero values mean the defaults.
type DPAConfig struct {
	Device string
	// CPUs lists the CPUs that an emulated DPA may run on, numbered as the operating system does.
	// If it is empty, the provider chooses.
	CPUs []int
}

// DPAKernel is the code of a DPA thread, which calls it repeatedly as long as it returns a number
// other than 0. After 0 the thread may sleep until one of the kernel's consumers has a message, a
// consumer that had no receive posted for one of the kernel's producers has one again, or Wake is
// called. A kernel must not block.
type DPAKernel func() int

// DPA is the data path accelerator of a device, with one thread. The kernel uses its device side:
// DPAConsumer and DPAProducer.
type DPA interface {
	// Start runs the kernel. It can be called once.
	Start(kernel DPAKernel) error
	// Wake makes the thread call the kernel.
	Wake()
	// Close ends the thread after the kernel has returned. It fails with status.InUse while there
	// are message queues.
	Close() error
}

// MsgQDirection is the direction in which a MsgQ carries messages.
type MsgQDirection uint8

const (
	// DPAConsumers means CPU producers and DPA consumers (doca_comch_msgq_set_dpa_consumer).
	DPAConsumers MsgQDirection = iota + 1
	// DPAProducers means DPA producers and CPU consumers (doca_comch_msgq_set_dpa_producer).
	DPAProducers
)

// String returns the direction as used in errors, for instance "to the DPA".
func (d MsgQDirection) String() string {
	switch d {
	case DPAConsumers:
		return "to the DPA"
	case DPAProducers:
		return "from the DPA"
	}
	return "invalid"
}

// MsgQConfig configures a message queue.
type MsgQConfig struct {
	DPA       DPA           // required
	Direction MsgQDirection // required
	// MaxConsumers and MaxProducers limit the consumers and producers of the queue; 0 means the
	// provider's default. A producer counts once for each consumer that it sends to.
	MaxConsumers, MaxProducers int
}

// MsgQ is a message queue between this process's CPU threads and a DPA. It needs no server, client
// or connection, and carries immediate data only. Any goroutine may call its methods.
type MsgQ interface {
	// Capabilities returns the limits of CPU consumers and producers. The limits of buffers and
	// message memory are 0.
	Capabilities() Capabilities
	// NewConsumer creates a CPU consumer. MemorySize must be 0. It fails with status.NotSupported
	// if the consumers of this queue are on the DPA.
	NewConsumer(ctx context.Context, config ConsumerConfig) (Consumer, error)
	// NewProducer creates a CPU producer for a DPA consumer. It fails with status.NotSupported if
	// the producers of this queue are on the DPA.
	NewProducer(ctx context.Context, consumer ConsumerID) (Producer, error)
	// NewDPAConsumer creates a DPA consumer with room for the given number of messages. It fails
	// with status.NotSupported if the consumers of this queue are on the CPU.
	NewDPAConsumer(ctx context.Context, receives int) (DPAConsumer, error)
	// NewDPAProducer creates a DPA producer with room for the completions of the given number of
	// sends. Each completion carries userData. It fails with status.NotSupported if the producers
	// of this queue are on the CPU.
	NewDPAProducer(ctx context.Context, sends int, userData uint64) (DPAProducer, error)
	// Close closes the queue. It fails with status.InUse while there are consumers or producers.
	Close() error
}

// DPAConsumer is the device's side of a consumer of immediate data. Only the kernel may call Ack
// and Poll.
type DPAConsumer interface {
	// ID returns the consumer's ID on its queue.
	ID() ConsumerID
	// Ack lets the consumer receive the given number of further messages. It fails with
	// status.Full, and changes nothing, if the consumer has no room for them.
	Ack(messages int) error
	// Poll fills received with messages, in order, and returns their number.
	Poll(received []Received) int
	// Close destroys the consumer. The kernel must not be running.
	Close() error
}

// DPABuffer is a place in memory that a DPA may copy from or to.
type DPABuffer struct {
	Region *memory.Region
	// Access is what the DPA may do with the region: copying from it requires memory.PCIRead,
	// copying to it memory.PCIWrite.
	Access memory.Access
	Offset uint64 // bytes from the start of the region
}

// DPACompletion reports that a message has arrived for which the kernel requested a completion.
type DPACompletion struct {
	UserData uint64 // of the producer
}

// DPAProducer is the device's side of a producer. Only the kernel may call its methods, except
// Close.
type DPAProducer interface {
	// IsConsumerEmpty reports whether the consumer has no receive posted. It fails with
	// status.NotFound if there is no such consumer.
	IsConsumerEmpty(consumer ConsumerID) (bool, error)
	// PostSendImmediate sends at most MaxImmediateLength bytes to a CPU consumer. It fails with
	// status.Again if the consumer has no receive posted, and with status.Full if a completion is
	// requested and the producer has no room for it.
	PostSendImmediate(consumer ConsumerID, immediate []byte, completionRequested bool) error
	// DMACopy copies length bytes and then sends immediate as PostSendImmediate does. If that would
	// fail, it copies nothing. It fails with status.NotPermitted if the rights do not suffice, and
	// with status.InvalidValue if the ranges overlap or exceed their regions.
	DMACopy(consumer ConsumerID, destination, source DPABuffer, length uint64, immediate []byte,
		completionRequested bool) error
	// Poll fills completions with requested completions and returns their number.
	Poll(completions []DPACompletion) int
	// Close destroys the producer. The kernel must not be running.
	Close() error
}
