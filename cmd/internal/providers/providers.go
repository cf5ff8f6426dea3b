// SPDX-License-Identifier: Apache-2.0

// Package providers knows every provider by name.
package providers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/dma"
	dmadoca "github.com/zc-relay/zc-relay/pkg/dma/doca"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	base "github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/auto"
	rdmadoca "github.com/zc-relay/zc-relay/pkg/rdma/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/shm"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The default providers, which work on any machine.
const (
	DefaultComch = "emulated"
	DefaultRDMA  = "auto"
	DefaultDMA   = "software"
)

// ComchOptions are the options of Comch providers that users can set.
type ComchOptions struct {
	// Directory is the directory of the emulated provider's sockets; "" means its default.
	Directory string
	// RingMemory bounds the memory for messages of all its servers, in bytes; 0 means the default.
	RingMemory uint64
	// NeverWait makes the threads of the provider doca look for work every now and then, instead of
	// sleeping until the device wakes them.
	NeverWait bool
	// ReachImports lets the emulated provider copy memory of programs on libdoca that it cannot
	// map: see emulated.Options.
	ReachImports bool
	// Peer is what errors of clients of the emulated provider call the server; "" means a relay.
	Peer   string
	Logger *zap.Logger
}

// Comch returns the Comch provider with the given name.
func Comch(name string, options ComchOptions) (comch.Provider, error) {
	startDOCALog(name)
	switch name {
	case "emulated":
		return emulated.New(emulated.Options{Directory: options.Directory, Logger: options.Logger,
			ReachImports: options.ReachImports, Peer: options.Peer,
			Limits: emulated.Limits{MaxAllRingBytes: int(options.RingMemory)}}), nil
	case "doca":
		loader, err := libdoca(options.Directory)
		return doca.New(doca.Options{Loader: loader, NeverWait: options.NeverWait,
			Logger: options.Logger}), err
	}
	return nil, status.Errorf(status.InvalidValue, "comch provider %q is neither emulated nor doca",
		name)
}

// IsAbsent reports whether err says that this build lacks the provider doca.
func IsAbsent(err error) bool { return errors.Is(err, base.ErrAbsent) }

// RDMAOptions are the options of RDMA providers that users can set.
type RDMAOptions struct {
	// CRC makes the provider iwarp ask for checksums.
	CRC bool
	// Verbs holds the options of the provider verbs, and those that the provider doca has as well.
	// Logger replaces its Logger.
	Verbs verbs.Options
	// Device names the device of the provider doca; "" means the one with the address.
	Device string
	Logger *zap.Logger
}

// RDMA returns the RDMA provider with the given name.
func RDMA(name string, options RDMAOptions) (rdma.Provider, error) {
	switch name {
	case "iwarp":
		return iwarp.New(iwarp.Options{CRC: options.CRC, Logger: options.Logger}), nil
	case "auto":
		return auto.New(iwarp.Options{CRC: options.CRC, Logger: options.Logger}), nil
	case "shm":
		return shm.New(shm.Options{Logger: options.Logger}), nil
	case "verbs":
		options.Verbs.Logger = options.Logger
		return verbs.New(options.Verbs)
	case "doca":
		startDOCALog(name)
		loader, err := libdoca("")
		return rdmadoca.New(rdmadoca.Options{Loader: loader, Device: options.Device,
			GIDIndex: options.Verbs.GIDIndex, PathMTU: options.Verbs.PathMTU,
			RNRRetryCount: options.Verbs.RNRRetryCount, Logger: options.Logger}), err
	}
	return nil, status.Errorf(status.InvalidValue,
		"rdma provider %q is none of iwarp, verbs, shm, doca, and auto", name)
}

// DMA returns the DMA provider with the given name. options are for the software provider.
func DMA(name string, options software.Options) (dma.Provider, error) {
	switch name {
	case "software":
		return software.New(options), nil
	case "doca":
		return docaDMA(false)
	}
	return nil, status.Errorf(status.InvalidValue, "dma provider %q is neither software nor doca",
		name)
}

func docaDMA(neverWait bool) (dma.Provider, error) {
	startDOCALog("doca")
	loader, err := libdoca("")
	return dmadoca.New(dmadoca.Options{Loader: loader, NeverWait: neverWait}), err
}

// StagingDMA returns the DMA provider that reaches the memory of a Comch provider's clients.
func StagingDMA(comchProvider string, neverWait bool) (dma.Provider, error) {
	if comchProvider == "doca" {
		return docaDMA(neverWait)
	}
	return DMA("software", software.Options{AnyDevice: true, Inline: true})
}

// Description describes a provider without using it.
type Description struct {
	Seam  string `json:"seam"` // "comch", "rdma" or "dma"
	Name  string `json:"name"`
	State string `json:"state"` // "built in" or "absent"
	// Detail describes its capabilities, or why it is absent.
	Detail string `json:"detail"`
	// Capabilities holds its limits and abilities by name; none if it is absent or has no device.
	Capabilities map[string]any `json:"capabilities,omitempty"`
}

// All describes every provider.
func All() []Description {
	return []Description{
		describeComch(emulated.New(emulated.Options{})), describeComch(doca.New(doca.Options{})),
		describeAuto(), describeRDMA(iwarp.New(iwarp.Options{})), describeVerbs(),
		describeRDMA(shm.New(shm.Options{})), describeRDMA(rdmadoca.New(rdmadoca.Options{})),
		describeDMA(software.New(software.Options{})), describeDMA(dmadoca.New(dmadoca.Options{})),
	}
}

func describeAuto() Description {
	d := describeRDMA(auto.New(iwarp.Options{}))
	d.Detail += "; over shared memory (shm) where both programs are on one machine"
	return d
}

func describeVerbs() Description {
	p, err := verbs.New(verbs.Options{})
	if err != nil {
		return Description{Seam: "rdma", Name: verbs.ProviderName, State: "absent",
			Detail: status.Text(err)}
	}
	return describeRDMA(p)
}

func describeComch(p comch.Provider) Description {
	d := Description{Seam: "comch", Name: p.Name(), State: "built in"}
	c, err := p.Capabilities(deviceOf(p))
	if errors.Is(err, status.NotFound) {
		d.Detail = "no device: " + status.Text(err)
		return d
	}
	if err != nil {
		d.State, d.Detail = "absent", status.Text(err)
		return d
	}
	d.Capabilities = map[string]any{
		"server": c.Server, "client": c.Client, "consumer": c.Consumer, "producer": c.Producer,
		"msgq":            c.MsgQ,
		"max_name_length": c.MaxNameLength, "max_message_size_bytes": c.MaxMessageSize,
		"max_receive_queue": c.MaxReceiveQueue,
		"max_clients":       c.MaxClients, "max_send_tasks": c.MaxSendTasks,
		"max_consumers": c.MaxConsumers, "max_receives": c.MaxReceives,
		"max_memory_size_bytes": c.MaxMemorySize, "max_buffer_length_bytes": c.MaxBufferLength,
		"max_immediate_length_bytes": c.MaxImmediateLength, "can_wait": c.CanWait,
	}
	d.Detail = fmt.Sprintf("control messages up to %d bytes, %d clients per server, %d consumers per side, %d receives each, waits: %s",
		c.MaxMessageSize, c.MaxClients, c.MaxConsumers, c.MaxReceives, yesOrNo(c.CanWait))
	return d
}

// deviceOf returns the first device of a provider, or the usual name if it cannot tell.
func deviceOf(p comch.Provider) string {
	if lister, can := p.(comch.DeviceLister); can {
		if devices, err := lister.Devices(); err == nil && len(devices) > 0 {
			return devices[0].PCI
		}
	}
	return emulated.DefaultDevice
}

func describeRDMA(p rdma.Provider) Description {
	d := Description{Seam: "rdma", Name: p.Name(), State: "built in"}
	device, err := devicecall.OpenWithin(context.Background(),
		func() (rdma.Device, error) { return p.Open(netip.IPv4Unspecified()) })
	if errors.Is(err, status.NotSupported) {
		d.State, d.Detail = "absent", status.Text(err)
		return d
	}
	if err != nil {
		d.Detail = "no device: " + status.Text(err)
		return d
	}
	c := device.Capabilities()
	d.Capabilities = map[string]any{
		"transport": c.Transport, "max_inbound_reads": c.MaxInboundReads,
		"max_outbound_reads": c.MaxOutboundReads,
		"max_send_requests":  c.MaxSendRequests, "max_receive_requests": c.MaxReceiveRequests,
		"max_segments":           c.MaxSegments,
		"max_message_size_bytes": c.MaxMessageSize, "write_implies_placed": c.WriteImpliesPlaced,
		"stable_source": c.StableSource, "opaque_memory": c.OpaqueMemory,
	}
	d.Detail = fmt.Sprintf("transport %s, %d inbound and %d outbound reads, messages up to %d bytes",
		c.Transport, c.MaxInboundReads, c.MaxOutboundReads, c.MaxMessageSize)
	if err := device.Close(); err != nil {
		d.Detail += fmt.Sprintf(" (closing it failed: %v)", err)
	}
	return d
}

func describeDMA(p dma.Provider) Description {
	d := Description{Seam: "dma", Name: p.Name(), State: "built in"}
	devices, err := p.Devices()
	if err != nil {
		d.State, d.Detail = "absent", status.Text(err)
		return d
	}
	if len(devices) == 0 {
		d.Detail = "no device"
		return d
	}
	c, err := p.Capabilities(devices[0])
	if err != nil {
		d.Detail = "no device: " + status.Text(err)
		return d
	}
	d.Capabilities = map[string]any{
		"max_buffer_size_bytes": c.MaxBufferSize, "max_buffer_list_length": c.MaxBufferListLength,
		"max_jobs": c.MaxJobs, "can_wait": c.CanWait,
	}
	d.Detail = fmt.Sprintf("jobs up to %d bytes, %d source buffers each, %d jobs per context, waits: %s",
		c.MaxBufferSize, c.MaxBufferListLength, c.MaxJobs, yesOrNo(c.CanWait))
	return d
}

func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
