// SPDX-License-Identifier: Apache-2.0

// Package dma is the interface to DMA engines (DOCA DMA), devices that copy memory while the CPU
// does something else.
//
// A job copies the data of one Buffer, or of a list of buffers, into another Buffer. Buffers come
// from an Inventory and are ranges of a MemoryMap, which is memory of this process, or of the other
// side of a PCIe bus, that devices can reach. A Context accepts jobs on one thread and reports
// their outcomes as events through the progress engine of that thread.
//
// For each object of the DOCA DMA guide, this stands for it. The example takes the steps of the
// guide, in its order:
//
//	doca_devinfo_list, doca_dev                 Provider.Devices, Device
//	doca_mmap                                   MemoryMap
//	doca_buf_inventory, doca_buf                Inventory, Buffer
//	doca_dma, doca_ctx                          Context
//	doca_dma_job_get_supported                  Capabilities.Memcpy
//	doca_workq_create, doca_workq_destroy       progress.NewEngine, Engine.Close
//	doca_ctx_workq_add, doca_ctx_workq_rm       Context.Attach, Context.Detach
//	struct doca_dma_job_memcpy                  Job with type Memcpy
//	doca_workq_submit                           Context.Submit
//	doca_workq_progress_retrieve, doca_event    Engine.Progress, which calls the function that
//	                                            Attach was given with an Event
//
// A step out of order fails with status.BadState, or with status.InUse if something still depends
// on the object.
//
// These rules are the same for every device, so this package implements them. A Provider implements
// what differs between devices: registering memory, and copying.
//
// A copy is not atomic: until its event has been delivered, reading the destination or writing the
// source gives a mixture of old and new bytes. The memory of a peer may change or vanish at any
// time. Then only the job fails.
package dma

import (
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// Provider implements DMA on one kind of device.
type Provider interface {
	// Name returns the provider's name in configurations, for instance "software".
	Name() string
	// Devices returns the PCI addresses of the devices that can be opened, without holding any of
	// them. It fails with status.NotSupported if the provider is not built in.
	Devices() ([]string, error)
	// Capabilities returns the capabilities of a device, which need not be open. It fails with
	// status.NotFound if there is no such device.
	Capabilities(device string) (Capabilities, error)
	// Open opens a device. It fails in the same cases as Capabilities.
	Open(device string) (Device, error)
}

// Capabilities are the limits of a device (doca_dma_cap_*).
type Capabilities struct {
	Memcpy              bool   // the device executes jobs of type Memcpy
	MaxBufferSize       uint64 // bytes that one job can copy
	MaxBufferListLength int    // buffers in the list that a job copies from
	MaxJobs             int    // jobs of one context in flight
	// ImportedMemory reports whether the device can reach memory on the other side of the PCIe bus.
	ImportedMemory bool
	// OpaqueMemory reports whether the device can register regions that the CPU cannot address.
	OpaqueMemory bool
	// CanWait reports whether a thread can sleep until a job is done.
	CanWait bool
}

// Device is an open device. Any goroutine may use it.
type Device interface {
	// Name returns the PCI address that the device was opened with.
	Name() string
	Capabilities() Capabilities
	// Register lets the device reach a region. It fails with status.NotSupported if the device
	// cannot reach this kind of region.
	Register(region *memory.Region, access memory.Access) (Registration, error)
	// NewEngine returns an engine for up to capacity copies at a time.
	NewEngine(capacity int) (Engine, error)
	// Close releases the device. It fails with status.InUse while the device has engines or
	// registered memory. Closing a closed device does nothing.
	Close() error
}

// Registration is memory that a device can reach.
type Registration interface {
	// Deregister revokes the device's access. No copy of the memory may be in flight.
	Deregister() error
}

// Engine executes copies. It belongs to one thread, which can sleep on it as on any
// progress.Waiter.
type Engine interface {
	progress.Waiter
	// Submit starts a copy without waiting for it. The engine owns the copy until Poll returns it.
	// Submit fails with status.Full if capacity copies are in flight.
	Submit(c *Copy) error
	// Poll fills done with copies that have ended, in any order, and returns their number.
	Poll(done []*Copy) int
	// Close releases the engine. It fails with status.InUse while the engine owns copies. Closing a
	// closed engine does nothing.
	Close() error
}

// Copy is one copy by an Engine: it fills the destination with the sources, one after the other.
// The lengths of the sources add up to that of the destination.
type Copy struct {
	// Slot belongs to the submitter; engines ignore it.
	Slot        int
	Destination Segment
	Sources     []Segment
	// Err is the outcome, valid once Poll has returned the copy. If it is not nil, the content of
	// the destination is undefined.
	Err error
}

// Segment is a range of registered memory.
type Segment struct {
	Memory Registration
	Offset uint64 // bytes from the start of the region
	Length uint64 // bytes
}
