// Package dma is the seam to DMA engines: devices that copy memory on their
// own while the CPU does something else (DOCA DMA).
//
// A job copies from one Buffer, or a list of them, to another. Buffers are
// ranges of memory maps, and come from an Inventory; a MemoryMap is memory of
// this process, or of the other side of a PCIe bus, made usable for devices; a
// Context takes jobs on one thread, and their completions come out of that
// thread's progress engine.
//
// The order in which things are set up: open a Device; make a MemoryMap, give
// it memory, device and access rights, and start it; make an Inventory and
// start it; make a Context, add the same device, start it, and attach it to a
// progress engine. Then, for every job: take the buffers, submit, progress
// until the event has come, and drop the references to the buffers. Cleaning
// up goes backwards: detach, stop, remove the device, close. Whatever is done
// in another order fails with status.BadState, or with status.InUse where
// something that depends on it is still there.
//
// These rules are the same on every device, so they are here. What differs is
// behind Provider: registering memory, and copying.
//
// A copy is not atomic: whoever reads the destination, or writes the source,
// before the event has come sees, or causes, a mixture. The memory of a peer is
// not trusted either: it may change, or be taken away, at any time, which ends
// the job with an error and nothing else.
package dma

import (
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// Provider is one implementation of DMA.
type Provider interface {
	// Name is the provider's name in configuration, for instance "software".
	Name() string
	// Devices lists the PCI addresses of the devices that can be opened. It
	// holds no resources of them. status.NotSupported if the provider is not
	// built in.
	Devices() ([]string, error)
	// Capabilities answers what a device can do before it is opened.
	// status.NotFound if there is none of that name.
	Capabilities(device string) (Capabilities, error)
	// Open opens a device. It fails as Capabilities does.
	Open(device string) (Device, error)
}

// Capabilities are a device's limits (doca_dma_cap_*).
type Capabilities struct {
	Memcpy              bool   // jobs of type Memcpy are supported
	MaxBufferSize       uint64 // bytes that one job can copy
	MaxBufferListLength int    // buffers in the list that a job copies from
	MaxJobs             int    // jobs of one context in flight
	// ImportedMemory tells that memory of the other side of the PCIe bus can
	// be copied from and to.
	ImportedMemory bool
	// OpaqueMemory tells that regions that the CPU cannot address can be
	// registered.
	OpaqueMemory bool
	// CanWait tells whether a thread can sleep until a job is done.
	CanWait bool
}

// Device is an opened device. It may be used by any goroutine.
type Device interface {
	// Name is the PCI address that it was opened with.
	Name() string
	Capabilities() Capabilities
	// Register makes a region reachable for the device. status.NotSupported
	// if the provider cannot take this kind of region.
	Register(region *memory.Region, access memory.Access) (Registration, error)
	// NewEngine makes an engine for at most capacity copies at a time.
	NewEngine(capacity int) (Engine, error)
	// Close releases the device. status.InUse while it has engines or
	// registered memory. Closing it again does nothing.
	Close() error
}

// Registration is memory that a device can reach.
type Registration interface {
	// Deregister gives the memory up. No copy of it may be under way.
	Deregister() error
}

// Engine copies. It belongs to one thread, which sleeps on it as on any
// progress.Waiter.
type Engine interface {
	progress.Waiter
	// Submit starts a copy without waiting. The engine owns it until Poll
	// returns it. status.Full if the engine has its capacity of copies.
	Submit(c *Copy) error
	// Poll fills done with copies that have ended, in any order, and returns
	// their number.
	Poll(done []*Copy) int
	// Close releases the engine. status.InUse while it owns copies. Closing
	// it again does nothing.
	Close() error
}

// Copy is what an Engine does: it fills the destination with the sources, one
// after the other. Their lengths add up to that of the destination.
type Copy struct {
	// Slot is for whoever submits.
	Slot        int
	Destination Segment
	Sources     []Segment
	// Err is what has gone wrong, set before Poll returns the copy. The
	// destination then holds anything.
	Err error
}

// Segment is a range of registered memory.
type Segment struct {
	Memory Registration
	Offset uint64 // bytes from the beginning of the region
	Length uint64 // bytes
}
