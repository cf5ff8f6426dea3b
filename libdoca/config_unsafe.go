// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #cgo CFLAGS: -std=gnu11 -Wall -Wextra -Wno-unused-parameter -I${SRCDIR} -I${SRCDIR}/include
// #include <stdlib.h>
// #include "skin.h"
import "C"

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Release is a release of DOCA, as 100 * major + minor.
type Release int

// The releases that the emulation can answer as. Before 2.9, Comch has other functions; these
// releases are there to be refused.
const (
	Release2_6  Release = 206
	Release2_7  Release = 207
	Release2_9  Release = 209
	Release2_10 Release = 210
	Release3_0  Release = 300
	Release3_1  Release = 301
	Release3_2  Release = 302
	Release3_3  Release = 303
)

var versions = map[Release]string{
	Release2_6: "2.6.0058", Release2_7: "2.7.0085", Release2_9: "2.9.0072",
	Release2_10: "2.10.0087", Release3_0: "3.0.0058", Release3_1: "3.1.0000",
	Release3_2: "3.2.0000", Release3_3: "3.3.0000",
}

// Role is the side of the channel on which a device is.
type Role int

// The roles. A device on the DPU has representors and Comch servers; one on the host has Comch
// clients.
const (
	DPU Role = iota
	Host
)

// FunctionType is the type of a PCI function (enum doca_pci_func_type).
type FunctionType int

// The types of functions.
const (
	PhysicalFunction FunctionType = iota
	VirtualFunction
	SubFunction
)

// Device describes a device of the machine. Several devices of both roles may be in one process, so
// that a test can have the host and the DPU in one.
type Device struct {
	PCI       string // for instance "0000:03:00.0", or "03:00.0" for domain 0
	Alias     string // another address that programs find it by, or ""
	IBDevice  string // for instance "mlx5_0"
	Interface string // for instance "p0"
	IPv4      netip.Addr
	IPv6      netip.Addr // the zero value means the link-local address of MAC
	MAC       [6]byte    // all zeroes mean 02:00, and the PCI address in four bytes
	// LID makes the port one of InfiniBand, which has no MAC address.
	LID        uint16
	ActiveRate uint64 // of the port in bits per second; 0 means 200 Gbit/s
	// GIDIndex is the entry of the GID table with the device's address: RDMA contexts over another
	// one connect to nobody, as on a device that has several versions of RoCE. 0 means that every
	// entry will do.
	GIDIndex uint32
	VHCA     *uint16 // the number of the function in the device; nil derives it from PCI
	Role     Role
	Type     FunctionType
	SFIndex  uint32 // of a SubFunction
	// Representors of the host's functions, for a DPU's device. A client on a host's device
	// connects to the server whose representor has the PCI address of that device.
	Representors []Representor
	// NoComch, NoDMA, NoRDMA, and NoExport take capabilities away, the last one exports and imports
	// over the PCIe bus. On a BlueField in DPU mode, a port has no RDMA, and its sub-function no
	// Comch.
	NoComch, NoDMA, NoRDMA, NoExport bool
}

// Representor is how a DPU sees a function of its host.
type Representor struct {
	PCI       string // the function's address on the host
	VUID      string
	Interface string // of the representor, on the DPU; "" means a name such as pf0hpf
	Type      FunctionType
	Hotplug   bool    // the function has been plugged in while the host ran
	VHCA      *uint16 // nil means that of the host's device with this address
}

// Limits holds the capabilities of all devices. Zeroes select the defaults.
type Limits struct {
	MaxMessageSize   int // bytes of a control message
	MaxReceiveQueue  int // control messages
	MaxSendTasks     int // of a server or client
	MaxClients       int // of a server
	MaxConsumers     int // per connection and side
	MaxProducers     int // per connection and side
	MaxFastPathTasks int // of a consumer or producer
	MaxBufferLength  int // bytes of a buf on the fast path
	MaxDMALength     uint64
	MaxDMAList       int // bufs of a list
	MaxDMATasks      int
	// CompletionVectors is how many interrupts for completions there are to choose from.
	CompletionVectors int
}

// Misuse is something that the rules of DOCA forbid.
type Misuse struct {
	Function string // the DOCA function that was called
	Rule     string // what was wrong
}

// Config configures the library. The zero value is usable.
type Config struct {
	// Release is what the library answers as: which functions exist, and which errors have names.
	// 0 means Release3_3.
	Release Release
	// Devices of the machine. nil means one DPU, 0000:03:00.0 (mlx5_0, p0) with representor
	// 0000:b1:00.0, and one host, 0000:b1:00.0 (mlx5_1, enp177s0). An empty slice means none.
	Devices []Device
	// Directory is where Comch servers and clients meet, as for pkg/comch/emulated.
	Directory string
	// Comch replaces the provider of Comch behind the library. nil means pkg/comch/emulated on
	// Directory.
	Comch  comch.Provider
	Limits Limits
	// SignalPending makes an engine that is armed signal what happened before, too. A device need
	// not do so, and the default is the harder one.
	SignalPending bool
	// Again makes the submission of a producer's task fail with AGAIN while the consumer has no
	// receive posted. Otherwise the task waits.
	Again bool
	// ServerOnHost allows Comch servers on devices of hosts.
	ServerOnHost bool
	// KeepPages leaves the pages of memory that is exported over PCI as they are. Otherwise an
	// export replaces them with pages of a file, which importers can map.
	KeepPages bool
	// IdleSleep is how long progress sleeps after a row of calls that found nothing, for programs
	// that poll without end on few processors; at most a millisecond. 0 means never.
	IdleSleep time.Duration
	// RDMAAddress is where peers reach the RDMA contexts of devices without an IPv4 address. The
	// zero value means 127.0.0.1: only programs of this machine.
	RDMAAddress netip.Addr
	// Report is called for each misuse, on the thread that called the function. It must not call
	// the library. nil means a line on the standard error.
	Report func(Misuse)
	// Faults make functions and tasks fail, for programs that want to test how they take that.
	Faults []Fault
	// Bridge gives out protection domains and keys of verbs. Without it, the functions of the
	// bridge fail with NOT_SUPPORTED.
	Bridge Bridge
}

// Bridge connects memory of the library to verbs. Any thread may call its methods.
type Bridge interface {
	// ProtectionDomain returns the ibv_pd of the device with the given IB name. It belongs to the
	// bridge.
	ProtectionDomain(device string) (unsafe.Pointer, error)
	// Register makes memory of this process known to the device, as address and length describe it
	// to the exporter, and returns its key. access is a mask of doca_access_flag. deregister is
	// called once the memory map has ended.
	Register(device string, memory []byte, address uint64, access uint32) (key uint32,
		deregister func(), err error)
}

var defaultLimits = Limits{
	MaxMessageSize: 4080, MaxReceiveQueue: 1024, MaxSendTasks: 8192, MaxClients: 128,
	MaxConsumers: 128, MaxProducers: 128, MaxFastPathTasks: 8192, MaxBufferLength: 1 << 20,
	MaxDMALength: 2 << 20, MaxDMAList: 64, MaxDMATasks: 65536, CompletionVectors: 8,
}

const maxIdleSleep = time.Millisecond

// maxNameLength is the longest name of a Comch server in bytes, with its terminating zero.
const maxNameLength = 121

// active is the configuration in force.
var active atomic.Pointer[Config]

// configuring serializes Configure.
var configuring sync.Mutex

// Configure replaces the configuration of this process. It fails with status.InUse while objects of
// the library exist.
func Configure(config Config) error {
	configuring.Lock()
	defer configuring.Unlock()
	if live := Objects(); len(live) > 0 {
		return status.Errorf(status.InUse, "configure libdoca: objects exist: %v", live)
	}
	if config.Release == 0 {
		config.Release = Release3_3
	}
	version, ok := versions[config.Release]
	if !ok {
		return status.Errorf(status.InvalidValue, "configure libdoca: unknown release %d",
			config.Release)
	}
	if config.Devices == nil {
		config.Devices = defaultDevices()
	}
	config.Limits = config.Limits.withDefaults()
	if config.Comch == nil {
		config.Comch = emulated.New(emulated.Options{Directory: config.Directory,
			Limits: config.Limits.ofComch()})
	}
	if err := checkFaults(config.Faults); err != nil {
		return fmt.Errorf("configure libdoca: %w", err)
	}
	devices, err := newDevices(&config)
	if err != nil {
		return err
	}
	freeDevices()
	C.emu_devices, C.emu_num_devices = devices, C.uint32_t(len(config.Devices))
	C.free(unsafe.Pointer(C.emu_settings.version))
	C.emu_settings = C.struct_emu_settings{
		release:        C.int(config.Release),
		version:        C.CString(version),
		lose_wakeups:   C.bool(!config.SignalPending),
		again:          C.bool(config.Again),
		server_on_host: C.bool(config.ServerOnHost),
		idle_sleep_ns:  C.int(min(config.IdleSleep, maxIdleSleep)),
		faults:         replaceFaults(config.Faults),
		num_faults:     C.uint32_t(len(config.Faults)),
	}
	active.Store(&config)
	C.emu_mark_configured()
	return nil
}

// abort ends the process as abort does in C, so that a debugger sees the caller of the library.
func abort() { C.abort() }

// emuConfigure returns once the library is configured: a program that has just loaded it may be
// earlier than the Go runtime, for which the call waits.
//
//export emuConfigure
func emuConfigure() {}

func defaultDevices() []Device {
	return []Device{
		{PCI: "0000:03:00.0", IBDevice: "mlx5_0", Interface: "p0", Role: DPU,
			Representors: []Representor{{PCI: "0000:b1:00.0", VUID: "MT0000X00000VNETS0D0F0"}}},
		{PCI: "0000:b1:00.0", IBDevice: "mlx5_1", Interface: "enp177s0", Role: Host},
	}
}

func (l Limits) withDefaults() Limits {
	d := &defaultLimits
	for _, field := range []struct{ value, fallback *int }{
		{&l.MaxMessageSize, &d.MaxMessageSize}, {&l.MaxReceiveQueue, &d.MaxReceiveQueue},
		{&l.MaxSendTasks, &d.MaxSendTasks}, {&l.MaxClients, &d.MaxClients},
		{&l.MaxConsumers, &d.MaxConsumers}, {&l.MaxProducers, &d.MaxProducers},
		{&l.MaxFastPathTasks, &d.MaxFastPathTasks}, {&l.MaxBufferLength, &d.MaxBufferLength},
		{&l.MaxDMAList, &d.MaxDMAList}, {&l.MaxDMATasks, &d.MaxDMATasks},
		{&l.CompletionVectors, &d.CompletionVectors},
	} {
		if *field.value == 0 {
			*field.value = *field.fallback
		}
	}
	if l.MaxDMALength == 0 {
		l.MaxDMALength = d.MaxDMALength
	}
	return l
}

// ofComch returns the limits of the provider behind the library.
func (l Limits) ofComch() emulated.Limits {
	return emulated.Limits{MaxMessageSize: l.MaxMessageSize, MaxReceiveQueue: l.MaxReceiveQueue,
		MaxClients: l.MaxClients, MaxConsumers: l.MaxConsumers, MaxProducers: l.MaxProducers,
		MaxReceives: l.MaxFastPathTasks, MaxMemorySize: maxRingMemory,
		MaxRingBytes: 4 * maxRingMemory, MaxServerRingBytes: 16 * maxRingMemory}
}

// maxRingMemory bounds the message memory of one consumer in bytes.
const maxRingMemory = 64 << 20

var pciAddress = regexp.MustCompile(`^([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// longPCI returns an address with its domain.
func longPCI(address string) (string, error) {
	address = strings.ToLower(address)
	if !pciAddress.MatchString(address) {
		return "", status.Errorf(status.InvalidValue,
			"configure libdoca: %q is no PCI address such as 0000:03:00.0", address)
	}
	if len(address) == len("03:00.0") {
		address = "0000:" + address
	}
	return address, nil
}

// shortPCI returns an address as the directory of Comch servers has it: without domain 0.
func shortPCI(address string) string { return strings.TrimPrefix(address, "0000:") }

// newDevices makes the table that the skin reads.
func newDevices(config *Config) (*C.struct_emu_device, error) {
	const size = C.sizeof_struct_emu_device
	memory := (*C.struct_emu_device)(C.calloc(C.size_t(len(config.Devices)+1), size))
	table := unsafe.Slice(memory, len(config.Devices))
	for i := range config.Devices {
		if err := fillDevice(&table[i], i, config.Devices, &config.Limits); err != nil {
			for j := range table[:i+1] {
				C.free(unsafe.Pointer(table[j].reps))
			}
			C.free(unsafe.Pointer(memory))
			return nil, err
		}
	}
	return memory, nil
}

func freeDevices() {
	for i := range unsafe.Slice(C.emu_devices, C.emu_num_devices) {
		C.free(unsafe.Pointer(unsafe.Slice(C.emu_devices, C.emu_num_devices)[i].reps))
	}
	C.free(unsafe.Pointer(C.emu_devices))
	C.emu_devices, C.emu_num_devices = nil, 0
}

func fillDevice(d *C.struct_emu_device, index int, devices []Device, limits *Limits) error {
	config := &devices[index]
	pci, err := longPCI(config.PCI)
	if err != nil {
		return err
	}
	config.PCI = pci
	d.index = C.uint32_t(index)
	d.role = C.EMU_ROLE_DPU
	if config.Role == Host {
		d.role = C.EMU_ROLE_HOST
	}
	setText(d.pci[:], pci)
	if config.Alias != "" {
		if config.Alias, err = longPCI(config.Alias); err != nil {
			return err
		}
		setText(d.alias[:], config.Alias)
	}
	setText(d.ibdev[:], config.IBDevice)
	setText(d.iface[:], config.Interface)
	if config.IPv4.Is4() {
		d.has_ipv4 = true
		for i, b := range config.IPv4.As4() {
			d.ipv4[i] = C.uint8_t(b)
		}
	}
	fillPort(d, config)
	d._type = C.enum_doca_pci_func_type(config.Type)
	d.sf_index = C.uint32_t(config.SFIndex)
	d.can = capabilities(config, limits)
	if config.Role == Host && len(config.Representors) > 0 {
		return status.Errorf(status.InvalidValue,
			"configure libdoca: device %s of a host has representors", pci)
	}
	d.num_reps = C.uint32_t(len(config.Representors))
	d.reps = (*C.struct_emu_representor)(C.calloc(C.size_t(d.num_reps)+1,
		C.sizeof_struct_emu_representor))
	for i, rep := range unsafe.Slice(d.reps, len(config.Representors)) {
		address, err := longPCI(config.Representors[i].PCI)
		if err != nil {
			return err
		}
		setText(rep.pci[:], address)
		fillRepresentor(&rep, address, config.Representors, i, devices)
		unsafe.Slice(d.reps, len(config.Representors))[i] = rep
	}
	return nil
}

func capabilities(config *Device, limits *Limits) (can C.struct_emu_capabilities) {
	if !config.NoComch {
		can.comch_name_len = maxNameLength
		can.comch_msg_size = C.uint32_t(limits.MaxMessageSize)
		can.comch_recv_queue = C.uint32_t(limits.MaxReceiveQueue)
		can.comch_send_tasks = C.uint32_t(limits.MaxSendTasks)
		can.comch_clients = C.uint32_t(limits.MaxClients)
		can.consumers = C.uint32_t(limits.MaxConsumers)
		can.consumer_tasks = C.uint32_t(limits.MaxFastPathTasks)
		can.consumer_buf_size = C.uint32_t(limits.MaxBufferLength)
		can.imm_data_len = comch.MaxImmediateLength
		can.producers = C.uint32_t(limits.MaxProducers)
		can.producer_tasks = C.uint32_t(limits.MaxFastPathTasks)
		can.producer_buf_size = C.uint32_t(limits.MaxBufferLength)
		can.comch_list_len = 1
	}
	can.completion_vectors = C.uint32_t(limits.CompletionVectors)
	can.export_pci = C.bool(config.Role == Host && !config.NoExport)
	can.import_pci = C.bool(config.Role == DPU && !config.NoExport)
	can.rdma = C.bool(!config.NoRDMA)
	if !config.NoDMA {
		can.dma = true
		can.dma_buf_size = C.uint64_t(limits.MaxDMALength)
		can.dma_list_len = C.uint32_t(limits.MaxDMAList)
		can.dma_tasks = C.uint32_t(limits.MaxDMATasks)
	}
	return can
}

// setText copies a string into a zeroed array of C, and truncates it.
func setText(array []C.char, text string) {
	for i := 0; i < len(text) && i < len(array)-1; i++ {
		array[i] = C.char(text[i])
	}
}

//export emuReport
func emuReport(function, rule *C.char) {
	misuse := Misuse{Function: C.GoString(function), Rule: C.GoString(rule)}
	text := C.CString(misuse.Function + ": " + misuse.Rule)
	C.emu_log_misuse(text)
	C.free(unsafe.Pointer(text))
	config := active.Load()
	if config.Report == nil {
		fmt.Fprintf(os.Stderr, "libdoca emulated: misuse: %s: %s\n", misuse.Function, misuse.Rule)
		return
	}
	config.Report(misuse)
}
