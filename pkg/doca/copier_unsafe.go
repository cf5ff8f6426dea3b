// SPDX-License-Identifier: Apache-2.0

package doca

// #include <stdlib.h>
// #include "shim.h"
//
// static doca_error_t zcd_cap_memcpy(zcd_table f, struct doca_devinfo *info)
// { return f->dma_cap_task_memcpy_is_supported(info); }
// static doca_error_t zcd_cap_size(zcd_table f, struct doca_devinfo *info, uint64_t *size)
// { return f->dma_cap_task_memcpy_get_max_buf_size(info, size); }
// static doca_error_t zcd_cap_list(zcd_table f, struct doca_devinfo *info, uint32_t *length)
// { return f->dma_cap_task_memcpy_get_max_buf_list_len(info, length); }
//
// static doca_error_t zcd_cap_tasks(zcd_table f, struct doca_dev *device, uint32_t *tasks)
// {
//	struct doca_dma *dma;
//	doca_error_t result = f->dma_create(device, &dma);
//
//	if (result != DOCA_SUCCESS)
//		return result;
//	result = f->dma_cap_get_max_num_tasks(dma, tasks);
//	f->dma_destroy(dma);
//	return result;
// }
//
// static doca_error_t zcd_can_import(zcd_table f, struct doca_devinfo *info, uint8_t *yes)
// { return f->mmap_cap_is_create_from_export_pci_supported(info, yes); }
import "C"

import (
	"math"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// DMACapabilities holds what a device can do with DMA (doca_dma_cap_*).
type DMACapabilities struct {
	Memcpy        bool
	MaxLength     uint64 // bytes of one copy
	MaxListLength int    // buffers in the list that a copy reads
	MaxCopies     int    // in flight
	Import        bool   // the device reaches memory that a host has exported
}

// DMACapabilities returns the capabilities of the device of that name. It fails with
// status.NotFound if there is no such device.
func (l *Library) DMACapabilities(device string) (DMACapabilities, error) {
	if err := l.NeedDMA(); err != nil {
		return DMACapabilities{}, err
	}
	d, err := l.OpenDevice(device)
	if err != nil {
		return DMACapabilities{}, err
	}
	c, err := d.DMACapabilities()
	if closed := d.Close(); err == nil {
		err = closed
	}
	return c, err
}

// DMACapabilities returns the capabilities of the device.
func (d *Device) DMACapabilities() (DMACapabilities, error) {
	var c DMACapabilities
	l := d.library
	if err := l.NeedDMA(); err != nil {
		return c, err
	}
	if C.zcd_cap_memcpy(l.table, d.info) != C.DOCA_SUCCESS {
		return c, nil
	}
	var size C.uint64_t
	var list, tasks C.uint32_t
	var imports C.uint8_t
	C.zcd_cap_list(l.table, d.info, &list)
	C.zcd_can_import(l.table, d.info, &imports)
	err := l.failure("get limit of DMA copies", C.zcd_cap_size(l.table, d.info, &size))
	if err == nil {
		err = l.failure("get limit of DMA tasks", C.zcd_cap_tasks(l.table, d.dev, &tasks))
	}
	if err != nil {
		return c, err
	}
	return DMACapabilities{Memcpy: true, MaxLength: uint64(size),
		MaxListLength: max(1, int(list)), MaxCopies: int(min(tasks, math.MaxInt32/2)),
		Import: imports != 0}, nil
}

// Segment is a range of a memory map.
type Segment struct {
	Map    *MemoryMap
	Offset uint64 // bytes from the start of the map
	Length uint64 // bytes
}

// CopierConfig configures a Copier.
type CopierConfig struct {
	Device *Device
	// Copies is how many copies can be in flight, MaxSources how many segments one may read.
	Copies, MaxSources int
	// Wait asks for a Descriptor.
	Wait bool
}

// Copier is a DMA context (doca_dma) with its own progress engine.
type Copier struct {
	Context
	copier   *C.struct_zcd_copier
	segments []C.struct_zcd_segment // in C memory
	done     []C.struct_zcd_copied  // in C memory
}

// NewCopier creates a copier.
func NewCopier(config CopierConfig) (*Copier, error) {
	l := config.Device.library
	if err := l.NeedDMA(); err != nil {
		return nil, err
	}
	for _, n := range []int{config.Copies, config.MaxSources} {
		if err := check("create DMA context", n, math.MaxInt32/2); err != nil {
			return nil, err
		}
	}
	e, err := l.newEngine(config.Wait)
	if err != nil {
		return nil, err
	}
	copier := (*C.struct_zcd_copier)(C.calloc(1, C.sizeof_struct_zcd_copier))
	c := &Copier{Context: Context{e, "DMA context", &copier.context}, copier: copier}
	var step *C.char
	result := C.zcd_copier_open(e.c, config.Device.dev, C.uint32_t(config.Copies),
		C.uint32_t(config.MaxSources), copier, &step)
	if err := l.failure("create DMA context: "+C.GoString(step), result); err != nil {
		_ = c.Close()
		c.Free()
		return nil, err
	}
	c.segments = unsafe.Slice(copier.segments, config.MaxSources+1)
	c.done = unsafe.Slice(copier.done, copier.mask+1)
	return c, nil
}

// Submit starts a copy of the sources, one after the other, to the destination. slot is a number
// below CopierConfig.Copies that is not in flight.
func (c *Copier) Submit(slot int, destination Segment, sources []Segment) error {
	if len(sources) >= len(c.segments) {
		return status.Errorf(status.TooBig, "submit copy: %d sources, the limit is %d",
			len(sources), len(c.segments)-1)
	}
	c.set(0, &destination)
	for i := range sources {
		c.set(i+1, &sources[i])
	}
	result := C.zcd_copier_submit(c.copier, C.uint32_t(slot), C.uint32_t(len(sources)))
	if result == C.DOCA_SUCCESS {
		return nil
	}
	return c.engine.library.failure("submit copy", result)
}

func (c *Copier) set(i int, s *Segment) {
	c.segments[i] = s.c()
}

// Turn makes progress until up to limit copies have ended. Next returns them.
func (c *Copier) Turn(limit int) {
	C.zcd_copier_turn(c.copier, C.uint32_t(limit), C.uint32_t(limit*stepsPerRecord))
}

// Next returns the slot and the outcome of a copy that has ended. ok is false if there is none.
func (c *Copier) Next() (slot int, err error, ok bool) {
	if c.copier.head == c.copier.tail {
		return 0, nil, false
	}
	record := &c.done[c.copier.head&c.copier.mask]
	c.copier.head++
	if record.code != C.DOCA_SUCCESS {
		err = c.engine.library.failure("copy", C.doca_error_t(record.code))
	}
	return int(record.slot), err, true
}

// Arm requests that Descriptor becomes readable when a copy has ended, and reports whether none has
// yet. If one has, Next returns it.
func (c *Copier) Arm() bool {
	return c.copier.head == c.copier.tail && c.arm() && c.copier.head == c.copier.tail
}

// FreeTasks frees the tasks that libdoca has given back, without which a stopped copier does not
// become Idle. It returns how many libdoca still has.
func (c *Copier) FreeTasks() int { return int(C.zcd_copier_free_tasks(c.copier)) }

// Close destroys the copier, which must be Idle, and its progress engine.
func (c *Copier) Close() error {
	var step *C.char
	result := C.zcd_copier_close(c.copier, &step)
	if result != C.DOCA_SUCCESS {
		return c.engine.library.failure("close DMA context: "+C.GoString(step), result)
	}
	return c.engine.close()
}

// Free frees what Close leaves: the records.
func (c *Copier) Free() { C.zcd_copier_free(c.copier) }
