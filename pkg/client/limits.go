package client

import (
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func infoOf(reply *controlmsg.OpenVolumeReply) Info {
	capabilities := volume.Capability(reply.Capabilities)
	return Info{
		Name: reply.Volume, UUID: reply.UUID, Size: reply.Size, BlockSize: reply.BlockSize,
		ReadOnly: reply.ReadOnly, CanTrim: capabilities.Has(volume.CanTrim),
		CanWriteZeroes: capabilities.Has(volume.CanWriteZeroes),
		WriteVerifier:  reply.WriteVerifier, Transport: reply.Transport,
	}
}

// fitLimits checks what the configuration asks for, and settles Info's
// Queues, Depth and BufferSize.
func (v *Volume) fitLimits(reply *controlmsg.OpenVolumeReply) error {
	if err := v.checkLimits(reply); err != nil {
		return err
	}
	v.info.Queues, v.info.Depth, v.info.BufferSize = v.config.Queues, v.depth(), v.config.BufferSize
	return nil
}

// checkLimits checks what the configuration asks for against what relay and
// target offer.
func (v *Volume) checkLimits(reply *controlmsg.OpenVolumeReply) error {
	c := &v.config
	switch {
	case reply.BlockSize == 0 || reply.BlockSize&(reply.BlockSize-1) != 0 || reply.Size%uint64(reply.BlockSize) != 0:
		return status.Errorf(status.Unexpected, "relay describes a volume of %d bytes in blocks of %d", reply.Size, reply.BlockSize)
	case c.Queues < 0 || uint32(v.queueCount()) > reply.MaxQueues:
		return status.Errorf(status.TooBig, "%d queues are more than the %d that are allowed", v.queueCount(), reply.MaxQueues)
	case v.queueCount() == 0:
		return status.Errorf(status.InvalidValue, "neither queues nor synchronous requests were asked for")
	case c.Depth < 0 || uint32(v.depth()) > reply.MaxDepth:
		return status.Errorf(status.TooBig, "depth %d is more than the %d that is allowed", v.depth(), reply.MaxDepth)
	case c.BufferSize > reply.MaxBufferSize:
		return status.Errorf(status.TooBig, "buffer size %d is more than the %d that is allowed", c.BufferSize, reply.MaxBufferSize)
	case c.BufferSize%reply.BlockSize != 0:
		return status.Errorf(status.InvalidValue, "buffer size %d is not a multiple of the volume's block size %d", c.BufferSize, reply.BlockSize)
	}
	return nil
}

// queueCount includes the queue behind ReadAt.
func (v *Volume) queueCount() int {
	if v.config.SyncDepth > 0 {
		return v.config.Queues + 1
	}
	return v.config.Queues
}

// depth is the same for all queues of a session.
func (v *Volume) depth() int {
	if v.config.Queues == 0 {
		return max(v.config.SyncDepth, 1)
	}
	return max(v.config.Depth, v.config.SyncDepth)
}

// memorySize includes the buffers behind ReadAt.
func (v *Volume) memorySize() uint64 {
	return v.config.MemorySize + uint64(max(v.config.SyncDepth, 0))*uint64(v.config.BufferSize)
}
