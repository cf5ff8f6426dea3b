// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// sessionMemory is what a session has of its client's memory.
type sessionMemory struct {
	paths      []MemoryPath // that the memory may be reached by, as of OpenVolume
	copier     dma.Device   // of PathStaged; nil unless that is one of paths
	region     *memory.Region
	access     memory.Access
	exported   int64         // bytes
	bounce     *bounceMemory // nil if the target reaches the client's memory
	domain     rdma.ProtectionDomain
	registered rdma.MemoryRegion // the client's memory, or the bounce buffers
	reachable  uint64            // bytes of it that the target may reach

	deregistering, freeing devicecall.Step // steps of the release
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
		if err := s.undoImport(ctx); err != nil {
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

// checkAccess returns an error if the target would get a right that the relay itself lacks: an RDMA
// operation of the target becomes an access of the relay to the client's memory.
func checkAccess(access memory.Access) error {
	switch {
	case access.Has(memory.RemoteWrite) && !access.Has(memory.PCIWrite):
		return status.Errorf(status.InvalidValue, "the export lets the target write (RemoteWrite), "+
			"but not the relay (PCIWrite): export the memory with both rights or neither")
	case access.Has(memory.RemoteRead) && !access.Has(memory.PCIRead):
		return status.Errorf(status.InvalidValue, "the export lets the target read (RemoteRead), "+
			"but not the relay (PCIRead): export the memory with both rights or neither")
	}
	return nil
}

// deregister deregisters the client's memory, unless that has been done.
func (s *sessionMemory) deregister(ctx context.Context) error {
	if s.registered == nil {
		return nil
	}
	err := s.deregistering.Take(ctx, "deregister", s.registered.Deregister)
	if err != nil {
		return fmt.Errorf("deregister the client's memory: %w", err)
	}
	s.registered = nil
	return nil
}

// releaseMemory releases the client's memory, but not as long as a device may still reach it. All
// lanes must be closed.
func (s *session) releaseMemory(ctx context.Context) error {
	if err := s.deregister(ctx); err != nil {
		return err
	}
	return s.freeing.Take(ctx, "free the session's memory", s.freeMemory)
}

// leastReleaseTimeout is how long a release within a request may take although the time of the
// request is over. The client still waits that long for the answer.
const leastReleaseTimeout = 100 * time.Millisecond

// withinRequest returns a context that bounds a release within a request of the client. The end of
// the session does not end it.
func (s *session) withinRequest(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := s.channel.relay.ends.attempt
	if due, limited := ctx.Deadline(); limited {
		timeout = min(timeout, max(time.Until(due), leastReleaseTimeout))
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// undoImport is releaseMemory after a configuration that has failed, perhaps because its time is
// over.
func (s *session) undoImport(ctx context.Context) error {
	releasing, cancel := s.withinRequest(ctx)
	defer cancel()
	return s.releaseMemory(releasing)
}

// freeMemory frees what releaseMemory has deregistered.
func (s *session) freeMemory() error {
	if s.domain != nil {
		if err := s.domain.Close(); err != nil {
			return err
		}
		s.domain = nil
	}
	if s.bounce != nil {
		if err := s.bounce.release(); err != nil {
			return err
		}
		s.bounce = nil
	}
	var err error
	if s.region != nil {
		err = s.region.Close()
		s.region = nil
	}
	s.channel.exported.Add(-s.exported)
	s.exported = 0
	return err
}
