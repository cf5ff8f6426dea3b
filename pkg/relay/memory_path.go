package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
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

// ImportDevice says which device imports the memory of a channel's clients, if the CPU cannot
// address it.
type ImportDevice string

const (
	// ImportAuto takes the Comch device if it is the RDMA device as well, then the RDMA device, and
	// falls back to bounce buffers.
	ImportAuto ImportDevice = "auto"
	// ImportComch takes the Comch device alone.
	ImportComch ImportDevice = "comch"
	// ImportRDMA takes the RDMA device alone.
	ImportRDMA ImportDevice = "rdma"
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
func (c *channel) memoryPaths(config *ChannelConfig, device rdma.Device) ([]MemoryPath, error) {
	return MemoryPaths(config, c.relay.config.Comch, c.comchDevice, device, c.relay.config.DMA)
}

// comchDevice names the channel's Comch device. To list devices is slow, so it does that once, and
// logs which of several devices the channel's address means.
func (c *channel) comchDevice() memory.Device {
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

// checkDevices fails if a target behind an RDMA device cannot reach the channel's clients.
func (c *channel) checkDevices(ctx context.Context, config *ChannelConfig,
	device rdma.Device) error {
	paths, err := c.memoryPaths(config, device)
	if err != nil || paths[0] != PathStaged {
		return err
	}
	if config.Isolation != Staged {
		c.attemptLog().Warn("the RDMA device cannot reach the memory of clients: their data is "+
			"copied through memory of the relay (limits.bounce_memory), which costs throughput; "+
			"rdma_address can select another device, and isolation: staged ends this warning",
			zap.Stringer("rdma_device", device.Capabilities().Device))
	}
	_, err = c.relay.dmaDevices.at(ctx, c.id.Device)
	return err
}

// takenPath is the way that the last session has taken.
type takenPath struct {
	path   MemoryPath
	reason string // why no better one, or none at all; "" if this is the best
}

// took notes the way that a session has taken, and what better ones have failed with.
func (c *channel) took(path MemoryPath, failed error) {
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
func (c *channel) tookNone(failed error) {
	switch status.CodeOf(failed) {
	case status.InvalidValue, status.TooBig, status.NoMemory, status.NotConnected,
		status.NotPermitted:
		return
	}
	c.path.Store(&takenPath{path: PathNone, reason: failed.Error()})
}

// choosePaths sets paths and copier for the session's target.
func (s *session) choosePaths(ctx context.Context) error {
	paths, err := s.channel.memoryPaths(s.settings, s.target.Device)
	if err != nil {
		return err
	}
	s.paths, s.copier = paths, nil
	if paths[len(paths)-1] != PathStaged {
		return nil
	}
	s.copier, err = s.channel.relay.dmaDevices.at(ctx, s.channel.id.Device)
	if err != nil && len(paths) > 1 {
		s.paths, err = paths[:len(paths)-1], nil
	}
	return err
}

// importMemory imports the client's memory and registers it for RDMA, or bounce buffers in its
// place, with the rights that the client has granted and no others. It tries one way after the
// other.
func (s *session) importMemory(ctx context.Context, m *controlmsg.ConfigureDataPath) error {
	var failed error
	for _, path := range s.paths {
		err := s.importOver(ctx, m, path)
		if err == nil {
			s.channel.took(path, failed)
			return nil
		}
		isLast := path == s.paths[len(s.paths)-1]
		if ctx.Err() != nil || isLast && path == PathMapped {
			return err
		}
		if isLast {
			err = fmt.Errorf("%w%s", err, s.settings.otherPaths(path))
			s.channel.tookNone(errors.Join(failed, fmt.Errorf("%s: %w", path, err)))
			return err
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", path, err))
		if err := s.abandonMemory(ctx); err != nil {
			return errors.Join(failed, err)
		}
	}
	return status.Errorf(status.Unexpected, "the session has no way to its client's memory")
}

// otherPaths says what to do about memory that the last way, path, does not reach.
func (c *ChannelConfig) otherPaths(path MemoryPath) string {
	switch {
	case path == PathStaged:
		return ""
	case c.checkStaged() != nil:
		return fmt.Sprintf(": set rdma_address (--rdma-address) to an address of the Comch device "+
			"itself; a target with protocol %s allows no staging", c.TargetProtocol)
	case c.ImportDevice != ImportAuto:
		return ": import_device (--import-device) auto lets the relay stage the data instead"
	}
	return ": this channel cannot stage the data instead, because its Comch device has no DMA: " +
		"\"zc-relay providers\" says what is missing"
}

func (s *session) importOver(ctx context.Context, m *controlmsg.ConfigureDataPath,
	path MemoryPath) error {
	length := int64(m.Export.Length)
	if total := s.channel.exported.Add(length); uint64(total) > s.settings.Limits.MaxExport {
		s.channel.exported.Add(-length)
		return status.Errorf(status.NoMemory,
			"export of %d bytes: all sessions of the channel together may export %d",
			length, s.settings.Limits.MaxExport)
	}
	s.exported = length
	region, granted, err := s.importWith(path, m.Export.Descriptor)
	if err != nil {
		return fmt.Errorf("import the client's memory: %w", err)
	}
	s.region = region
	if region.Len() < m.Export.Length {
		return status.Errorf(status.InvalidValue, "the client exported %d bytes, but announced %d",
			region.Len(), m.Export.Length)
	}
	if err := checkAccess(granted & m.Export.Access); err != nil {
		return err
	}
	s.access = granted & m.Export.Access
	reachable := region
	s.reachable = m.Export.Length
	if path == PathStaged {
		s.bounce, err = s.channel.newBounceMemory(s.copier, m, &s.settings.Limits, region,
			granted)
		if err != nil {
			return err
		}
		reachable, s.reachable = s.bounce.region, s.bounce.region.Len()
	}
	if s.domain, err = rdma.NewDomainFor(s.target.Device, reachable); err != nil {
		s.channel.relay.devices.doubt(s.target.Source, err)
		return fmt.Errorf("create a protection domain: %w", err)
	}
	rights := s.access & (memory.RemoteRead | memory.RemoteWrite)
	if s.access.Has(memory.RemoteWrite) {
		rights |= memory.LocalWrite // verbs requires it together with RemoteWrite
	}
	if s.registered, err = s.domain.Register(reachable, rights); err != nil {
		s.channel.relay.devices.doubt(s.target.Source, err)
		return fmt.Errorf("register the session's memory for RDMA: %w", err)
	}
	if path == PathComchDevice || path == PathRDMADevice {
		return s.tryPath(ctx, path)
	}
	return nil
}

// provenPath is a way by which an RDMA device has reached the memory of a client.
type provenPath struct {
	path   MemoryPath
	device memory.Device
}

// tryPath lets the RDMA device read the client's memory, unless it has done that for this channel
// before: a device may import memory that it cannot reach. Some networks keep a device from
// reaching itself; the session's first IO then shows whether it can.
func (s *session) tryPath(ctx context.Context, path MemoryPath) error {
	proven := provenPath{path, s.target.Device.Capabilities().Device}
	if former := s.channel.proven.Load(); former != nil && *former == proven {
		return nil
	}
	trying, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	connected, err := rdma.TryLoopback(trying, s.target.Device, s.target.Source, s.domain,
		s.registered)
	switch {
	case err == nil:
		s.channel.proven.Store(&proven)
	case connected:
		return fmt.Errorf("try to reach the client's memory: %w", err)
	default:
		s.log.Info("cannot try whether the RDMA device reaches the client's memory",
			zap.String("memory_path", string(path)), zap.Error(err))
	}
	return nil
}

// tryTimeout leaves most of a configuration's time to the steps that follow.
const tryTimeout = 2 * time.Second

// importWith imports memory with the device of a path.
func (s *session) importWith(path MemoryPath, descriptor []byte) (*memory.Region, memory.Access,
	error) {
	if path != PathRDMADevice {
		return s.connection.ImportMemory(descriptor)
	}
	device := s.target.Device.Capabilities().Device
	region, granted, err := comch.ImportMemoryFor(s.connection, device, descriptor)
	if err != nil {
		err = fmt.Errorf("RDMA device %v: %w", device, err)
	}
	return region, granted, err
}
