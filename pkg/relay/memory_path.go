// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// MemoryPath is how a target reaches the memory of a client.
type MemoryPath string

const (
	// PathMapped is for memory that the relay maps, as with the emulated Comch: any RDMA device can
	// register it.
	PathMapped MemoryPath = "mapped"
	// PathComchDevice imports the memory with the Comch device, which is the RDMA device as well.
	PathComchDevice MemoryPath = "comch-device"
	// PathRDMADevice imports the memory with the RDMA device: a sub-function beside the port that
	// has Comch, for instance.
	PathRDMADevice MemoryPath = "rdma-device"
	// PathStaged copies the data through bounce buffers of the relay.
	PathStaged MemoryPath = "staged"
	// PathNone means that every way that the channel allows has failed. No session has it.
	PathNone MemoryPath = "none"
)

// MemoryPaths returns how the targets behind an RDMA device can reach the memory of a channel's
// clients, the best way first. DOCA does not tell whether a device can import what a client has
// exported, so a session takes the first way that works with its memory. It fails with
// status.NotSupported if no device of the RDMA provider can, and with status.BadConfig if another
// one may. comchDevice names the channel's Comch device (ComchDevice); it is called only if that
// matters, because to list devices is slow. copier provides the copies of bounce buffers; it may be
// nil.
func MemoryPaths(config *ChannelConfig, provider comch.Provider, comchDevice func() memory.Device,
	device rdma.Device, copier dma.Provider) ([]MemoryPath, error) {
	if config.Isolation == Staged {
		if copier != nil && !canCopy(copier, config.Device) {
			return nil, status.Errorf(status.NotSupported, "isolation %s needs a device that copies "+
				"to and from memory of clients, and DMA device %s does not: choose another --device, "+
				"or --isolation direct", Staged, config.Device)
		}
		return []MemoryPath{PathStaged}, nil
	}
	imports, err := provider.Capabilities(config.Device)
	if err != nil {
		return nil, fmt.Errorf("get capabilities of Comch device %s: %w", config.Device, err)
	}
	if !imports.OpaqueImports {
		return []MemoryPath{PathMapped}, nil
	}
	own, reaches := comchDevice(), device.Capabilities()
	isSame := own.RDMA != "" && own.RDMA == reaches.Device.RDMA
	var paths []MemoryPath
	if reaches.OpaqueMemory && reaches.Device.CanBe(own) &&
		(config.ImportDevice != ImportRDMA || isSame) {
		paths = append(paths, PathComchDevice)
	}
	if reaches.OpaqueMemory && reaches.Device.RDMA != "" && !isSame &&
		config.ImportDevice != ImportComch {
		paths = append(paths, PathRDMADevice)
	}
	if config.ImportDevice == ImportAuto && config.checkStaged() == nil &&
		canCopy(copier, config.Device) {
		paths = append(paths, PathStaged)
	}
	switch {
	case len(paths) > 0:
		return paths, nil
	case !reaches.OpaqueMemory:
		return nil, status.Errorf(status.NotSupported, "%s cannot reach memory of clients behind "+
			"Comch device %v: set rdma.provider (--rdma-provider) to verbs or doca, or isolation "+
			"(--isolation) to staged", reaches.Transport, own)
	}
	return nil, status.Errorf(status.BadConfig, "RDMA device %v cannot reach memory of clients "+
		"that Comch device %v imports: set rdma_address (--rdma-address) to an address of that "+
		"device, import_device (--import-device) to auto, or isolation (--isolation) to staged",
		reaches.Device, own)
}

// ComchDevice names a Comch device as far as the provider knows it. others are the devices that
// have the same name as well (comch.FindDevice).
func ComchDevice(provider comch.Provider, name string) (own memory.Device, others []comch.Device) {
	if lister, can := provider.(comch.DeviceLister); can {
		devices, _ := lister.Devices() // without a list, the address decides
		if found, others := comch.FindDevice(devices, name); found != nil {
			return memory.Device{PCI: found.PCI, RDMA: found.RDMA}, others
		}
	}
	return memory.Device{PCI: pci.Normalize(name)}, nil
}

// canCopy reports whether a provider can copy to and from the memory of a Comch device's clients.
func canCopy(provider dma.Provider, device string) bool {
	if provider == nil {
		return false
	}
	c, err := provider.Capabilities(device)
	return err == nil && c.Memcpy && c.ImportedMemory
}

// memoryPaths returns how a target behind an RDMA device can reach the channel's clients.
func (c *channelCommon) memoryPaths(
	config *ChannelConfig, device rdma.Device,
) ([]MemoryPath, error) {
	return MemoryPaths(config, c.relay.config.Comch, c.comchDevice, device, c.relay.config.DMA)
}

// comchDevice names the channel's Comch device. To list devices is slow, so it does that once, and
// logs which of several devices the channel's address means.
func (c *channelCommon) comchDevice() memory.Device {
	if known := c.own.Load(); known != nil {
		return *known
	}
	own, others := ComchDevice(c.relay.config.Comch, c.id.Device)
	if own.RDMA != "" && c.own.CompareAndSwap(nil, &own) && len(others) > 0 {
		names := make([]string, len(others))
		for i, d := range others {
			names[i] = d.RDMA
		}
		c.log.Info("several Comch devices have the address: the channel uses the first, and the "+
			"name of an RDMA device or network interface selects another one",
			zap.String("rdma_device", own.RDMA), zap.Strings("others", names))
	}
	return own
}

// takenPath is the way that the last session has taken.
type takenPath struct {
	path   MemoryPath
	reason string // why no better one, or none at all; "" if this is the best
}

// took notes the way that a session has taken, and what better ones have failed with.
func (c *channelCommon) took(path MemoryPath, failed error) {
	taken := takenPath{path: path}
	if failed != nil {
		taken.reason = failed.Error()
	}
	former := c.path.Swap(&taken)
	if former != nil && former.path == path {
		return
	}
	way := zap.String("memory_path", string(path))
	if path == PathStaged && failed != nil {
		c.log.Warn("the memory of clients cannot be reached directly: their data is copied through "+
			"memory of the relay (limits.bounce_memory), which costs throughput", way,
			zap.Error(failed))
		return
	}
	c.log.Info("targets reach the memory of clients", way, zap.NamedError("not_better", failed))
}

// tookNone notes that all ways have failed, unless what the client exported is to blame.
func (c *channelCommon) tookNone(failed error) {
	switch status.CodeOf(failed) {
	case status.InvalidValue, status.TooBig, status.NoMemory, status.NotConnected,
		status.NotPermitted:
		return
	}
	c.path.Store(&takenPath{path: PathNone, reason: failed.Error()})
}

// provenPath is a way by which an RDMA device has reached the memory of a client.
type provenPath struct {
	path   MemoryPath
	device memory.Device
}
