// SPDX-License-Identifier: Apache-2.0

package doca

// #cgo noescape zcd_rdma_submit
// #include <stdlib.h>
// #include "shim.h"
//
// static doca_error_t zcd_rdma_capabilities(zcd_table f, struct doca_devinfo *info,
//	uint32_t *size, uint32_t *sends, uint32_t *receives)
// {
//	doca_error_t result = f->rdma_cap_get_max_message_size(info, size);
//
//	if (result == DOCA_SUCCESS)
//		result = f->rdma_cap_get_max_send_queue_size(info, sends);
//	return result == DOCA_SUCCESS ? f->rdma_cap_get_max_recv_queue_size(info, receives) : result;
// }
//
// static int zcd_rdma_is_supported(zcd_table f, struct doca_devinfo *info)
// {
//	return f->rdma_cap_task_receive_is_supported(info) == DOCA_SUCCESS &&
//		f->rdma_cap_task_send_is_supported(info) == DOCA_SUCCESS &&
//		f->rdma_cap_task_write_is_supported(info) == DOCA_SUCCESS &&
//		f->rdma_cap_task_read_is_supported(info) == DOCA_SUCCESS;
// }
// static doca_error_t zcd_rdma_gids(zcd_table f, struct doca_devinfo *info,
//	struct doca_rdma_gid *gids, uint32_t count, uint32_t *size)
// {
//	doca_error_t result = DOCA_ERROR_NOT_SUPPORTED;
//
//	if (f->rdma_cap_get_gid && f->rdma_cap_get_gid_table_size)
//		result = f->rdma_cap_get_gid_table_size(info, size);
//	if (result != DOCA_SUCCESS)
//		return result;
//	*size = *size < count ? *size : count;
//	return f->rdma_cap_get_gid(info, 0, *size, gids);
// }
import "C"

import (
	"math"
	"net/netip"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// RDMACapabilities holds what a device can do with RDMA (doca_rdma_cap_*).
type RDMACapabilities struct {
	// Supported: messages, Writes, and Reads.
	Supported      bool
	MaxMessageSize uint64 // bytes
	MaxSends       int    // sends, Writes, and Reads in flight per connection
	MaxReceives    int    // in flight per connection
}

// RDMACapabilities returns the capabilities of the device.
func (d *Device) RDMACapabilities() (RDMACapabilities, error) {
	l := d.library
	if err := l.NeedRDMA(); err != nil {
		return RDMACapabilities{}, err
	}
	if C.zcd_rdma_is_supported(l.table, d.info) == 0 {
		return RDMACapabilities{}, nil
	}
	var size, sends, receives C.uint32_t
	err := l.failure("get limits of RDMA",
		C.zcd_rdma_capabilities(l.table, d.info, &size, &sends, &receives))
	return RDMACapabilities{Supported: err == nil, MaxMessageSize: uint64(size),
		MaxSends:    int(min(sends, math.MaxInt32/4)),
		MaxReceives: int(min(receives, math.MaxInt32/4))}, err
}

// RDMAConfig configures an RDMA.
type RDMAConfig struct {
	Device *Device
	// Sends is how many sends, Writes, and Reads can be in flight together, Reads is how many of
	// them can be Reads, and Receives is how many receives can be posted.
	Sends, Reads, Receives int
	// Wait asks for a Descriptor.
	Wait bool
	// GIDIndex is the entry of the device's GID table to use; nil leaves it to libdoca. PathMTU is
	// the largest payload of a packet in bytes, a power of two from 256 to 4096, and RNRRetryCount
	// how often a Send without a posted receive is repeated, 7 meaning forever; 0 leaves either to
	// libdoca.
	GIDIndex      *uint32
	PathMTU       int
	RNRRetryCount int
}

// maxGIDs bounds the GID table. That of a device has up to 256 entries.
const maxGIDs = 256

// GIDs returns the device's GID table. The address of an entry of nothing is unspecified. It fails
// with status.NotSupported if the release cannot tell.
func (d *Device) GIDs() ([]netip.Addr, error) {
	l := d.library
	if err := l.NeedRDMA(); err != nil {
		return nil, err
	}
	gids := (*C.struct_doca_rdma_gid)(C.calloc(maxGIDs, C.sizeof_struct_doca_rdma_gid))
	defer C.free(unsafe.Pointer(gids))
	var size C.uint32_t
	err := l.failure("get GIDs", C.zcd_rdma_gids(l.table, d.info, gids, maxGIDs, &size))
	if err != nil {
		return nil, err
	}
	all := make([]netip.Addr, 0, size)
	for _, gid := range unsafe.Slice(gids, size) {
		all = append(all, netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&gid))).Unmap())
	}
	return all, nil
}

// RDMA is an RDMA context (doca_rdma) with one connection, and with its own progress engine. While
// it is Running, the peer reaches the memory that this side has exported to it.
type RDMA struct {
	Context
	rdma *C.struct_zcd_rdma
	done []C.struct_zcd_worked // in C memory
}

// RDMAOperation is what RDMA.Submit starts.
type RDMAOperation uint32

// The operations.
const (
	RDMAReceive RDMAOperation = C.ZCD_RDMA_RECEIVE
	RDMASend    RDMAOperation = C.ZCD_RDMA_SEND
	RDMAWrite   RDMAOperation = C.ZCD_RDMA_WRITE
	RDMARead    RDMAOperation = C.ZCD_RDMA_READ
)

// NewRDMA creates an RDMA context.
func NewRDMA(config RDMAConfig) (*RDMA, error) {
	l := config.Device.library
	if err := l.NeedRDMA(); err != nil {
		return nil, err
	}
	for _, n := range []int{config.Sends, config.Receives} {
		if err := check("create RDMA context", n, math.MaxInt32/4); err != nil {
			return nil, err
		}
	}
	e, err := l.newEngine(config.Wait)
	if err != nil {
		return nil, err
	}
	rdma := (*C.struct_zcd_rdma)(C.calloc(1, C.sizeof_struct_zcd_rdma))
	r := &RDMA{Context: Context{e, "RDMA context", &rdma.context}, rdma: rdma}
	gidIndex := C.int32_t(-1)
	if config.GIDIndex != nil {
		gidIndex = C.int32_t(*config.GIDIndex)
	}
	var step *C.char
	result := C.zcd_rdma_open(e.c, &C.struct_zcd_rdma_config{device: config.Device.dev,
		works: C.uint32_t(config.Sends + config.Receives), receives: C.uint32_t(config.Receives),
		sends: C.uint32_t(config.Sends), reads: C.uint32_t(config.Reads),
		permissions: permissions(memory.LocalWrite | memory.RemoteRead | memory.RemoteWrite),
		gid_index:   gidIndex, mtu: C.uint32_t(config.PathMTU),
		rnr_retries: C.uint8_t(config.RNRRetryCount),
	}, rdma, &step)
	if err := l.failure("create RDMA context: "+C.GoString(step), result); err != nil {
		_ = r.Close()
		r.Free()
		return nil, err
	}
	r.done = unsafe.Slice(rdma.done, rdma.mask+1)
	return r, nil
}

// Export creates the connection of a running context and returns its details, for the peer to
// connect to.
func (r *RDMA) Export() ([]byte, error) {
	var details unsafe.Pointer
	var length C.size_t
	l := r.engine.library
	err := l.failure("export RDMA connection", C.zcd_rdma_export(r.rdma, &details, &length))
	if err != nil {
		return nil, err
	}
	if length == 0 || length > maxBlob {
		return nil, status.Errorf(status.Unexpected,
			"export RDMA connection: libdoca describes it with %d bytes", uint64(length))
	}
	return C.GoBytes(details, C.int(length)), nil
}

// Connect connects to the peer's connection of the given details, which may be any bytes. It does
// not wait for the peer. Export comes first.
func (r *RDMA) Connect(details []byte) error {
	if len(details) == 0 {
		return status.Errorf(status.InvalidValue, "connect RDMA: the peer's details are empty")
	}
	return r.engine.library.failure("connect RDMA", C.zcd_rdma_connect(r.rdma,
		unsafe.Pointer(unsafe.SliceData(details)), C.size_t(len(details))))
}

// Submit starts an operation between memory of this side and, for a Write or Read, memory that the
// peer has exported. A local segment without a map stands for no bytes. slot is a number below the
// sum of RDMAConfig's counts that is not in flight. Submit fails with status.Again if the operation
// can be tried later.
func (r *RDMA) Submit(operation RDMAOperation, slot int, local, remote Segment) error {
	l, p := local.c(), remote.c()
	result := C.zcd_rdma_submit(r.rdma, C.uint32_t(operation), C.uint32_t(slot), &l, &p)
	switch result {
	case C.DOCA_SUCCESS:
		return nil
	case C.DOCA_ERROR_AGAIN:
		return errSubmitAgain
	}
	return r.engine.library.failure("submit RDMA task", result)
}

// errSubmitAgain is allocated once, because callers may see it often.
var errSubmitAgain = status.Errorf(status.Again, "submit RDMA task: the device is busy")

// c returns the segment for libdoca.
func (s *Segment) c() C.struct_zcd_segment {
	if s.Map == nil {
		return C.struct_zcd_segment{}
	}
	return C.struct_zcd_segment{mmap: s.Map.mmap, address: C.uint64_t(s.Map.base + s.Offset),
		length: C.uint64_t(s.Length)}
}

// Turn makes progress until up to limit operations have ended. Next returns them.
func (r *RDMA) Turn(limit int) {
	C.zcd_rdma_turn(r.rdma, C.uint32_t(limit), C.uint32_t(limit*stepsPerRecord))
}

// Worked is the end of an operation.
type Worked struct {
	Slot   int
	Length uint32 // bytes received
	Err    error
}

// Next returns an operation that has ended. ok is false if there is none.
func (r *RDMA) Next() (done Worked, ok bool) {
	if r.rdma.head == r.rdma.tail {
		return Worked{}, false
	}
	record := &r.done[r.rdma.head&r.rdma.mask]
	r.rdma.head++
	done = Worked{Slot: int(record.slot), Length: uint32(record.length)}
	if record.code != C.DOCA_SUCCESS {
		done.Err = r.engine.library.failure("RDMA task", C.doca_error_t(record.code))
	}
	return done, true
}

// Arm requests that Descriptor becomes readable when an operation has ended, and reports whether
// none has yet. If one has, Next returns it.
func (r *RDMA) Arm() bool {
	return r.rdma.head == r.rdma.tail && r.arm() && r.rdma.head == r.rdma.tail
}

// Close destroys the context, which must be Idle, and its progress engine.
func (r *RDMA) Close() error {
	var step *C.char
	result := C.zcd_rdma_close(r.rdma, &step)
	if result != C.DOCA_SUCCESS {
		return r.engine.library.failure("close RDMA context: "+C.GoString(step), result)
	}
	return r.engine.close()
}

// Free frees what Close leaves: the records.
func (r *RDMA) Free() { C.zcd_rdma_free(r.rdma) }
