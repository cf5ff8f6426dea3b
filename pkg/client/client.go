// Package client reads and writes a remote volume through a relay: it is what
// an application on the host uses, and the initiator is its first user.
//
// Open connects to the relay's channel. The Volume it returns can be used in
// two ways: ReadAt, WriteAt, Flush, Trim and WriteZeroes wait for their
// outcome and may be called by any number of goroutines; a Queue submits
// requests and polls for results, without copying, for one thread.
package client

import (
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// DefaultChannelName is the name of the relay's Comch service unless told
// otherwise; it is that of the DOCA storage zero copy application.
const DefaultChannelName = "storage_zero_copy_comch"

// Defaults of Config.
const (
	DefaultDepth          = 64
	DefaultBufferSize     = 1 << 20
	DefaultSyncDepth      = 16
	DefaultControlTimeout = 10 * time.Second
	DefaultIOTimeout      = 60 * time.Second
)

// Config says how to open a volume. Only Provider and Device are required.
type Config struct {
	// Provider is the Comch implementation, Device the host's device.
	Provider comch.Provider
	Device   string
	// ChannelName is the relay's service; "" means DefaultChannelName.
	ChannelName string
	// Queues is how many queues the application will use; may be 0.
	Queues int
	// Depth is how many requests each of them can have outstanding; 0 means
	// DefaultDepth.
	Depth int
	// BufferSize is the largest data transfer of one request in bytes; 0
	// means DefaultBufferSize.
	BufferSize uint32
	// MemorySize is the number of bytes of data memory for the queues; 0
	// means one buffer for each request that can be outstanding.
	MemorySize uint64
	// SyncDepth is how many requests ReadAt, WriteAt and the others have
	// outstanding at most, all callers together. 0 means DefaultSyncDepth;
	// negative means that these methods are not needed.
	SyncDepth int
	// Policy is how the thread behind ReadAt and the others polls.
	Policy progress.Policy
	// ControlTimeout bounds Open, and each step of Close; IOTimeout how long
	// an outstanding request may take before the volume is given up. 0 means
	// the defaults; negative IOTimeout means no limit.
	ControlTimeout time.Duration
	IOTimeout      time.Duration
	// Reconnect, if it is not nil, has the volume reopened when its session is
	// lost: because target or relay have restarted, or the connection was cut.
	// Where the policy leaves something open, DefaultReconnectTotal and
	// DefaultReconnectLongestPause apply. nil means that the volume ends with
	// its session.
	//
	// Requests of a Queue that were outstanding fail, once each, with
	// status.ConnectionReset, Shutdown or TimeOut; ErrReopening is the answer to
	// new ones until there is a session again. ReadAt, WriteAt and the others
	// repeat by themselves what the loss has left open, and return when that is
	// done or the policy is exhausted. A write may thus be carried out twice,
	// but never after a session has begun that is later than its own.
	//
	// A volume with another UUID is not taken for the one that was lost
	// (ErrAnotherVolume); writes that may be lost with a restarted target make
	// the next flush fail (ErrWritesLost).
	Reconnect *retry.Policy
	// Instance ties the volumes together that are opened one after another
	// with it: the next Open ends the session before, at the target, and
	// waits until none of its IO can strike any more. nil is an instance of
	// its own.
	Instance *Instance
	// Software names the program to the relay.
	Software string
	// Logger may be nil.
	Logger *zap.Logger
}

// Info describes an opened volume.
type Info struct {
	Name      string
	UUID      [16]byte
	Size      uint64 // bytes
	BlockSize uint32 // bytes; offsets and lengths of queue requests are multiples
	ReadOnly  bool
	// CanTrim and CanWriteZeroes tell which optional operations are offered.
	CanTrim        bool
	CanWriteZeroes bool
	// WriteVerifier changes whenever the target restarts, that is whenever
	// writes that were not flushed may have been lost.
	WriteVerifier uint64
	// Transport is the RDMA transport between relay and target.
	Transport string
	// Queues, Depth and BufferSize are what was agreed.
	Queues     int
	Depth      int
	BufferSize uint32
	// Relay is the relay's software and version.
	Relay string
}

func (c *Config) setDefaults() {
	if c.ChannelName == "" {
		c.ChannelName = DefaultChannelName
	}
	if c.Depth == 0 {
		c.Depth = DefaultDepth
	}
	if c.BufferSize == 0 {
		c.BufferSize = DefaultBufferSize
	}
	if c.SyncDepth == 0 {
		c.SyncDepth = DefaultSyncDepth
	}
	if c.MemorySize == 0 {
		c.MemorySize = uint64(c.Queues) * uint64(c.Depth) * uint64(c.BufferSize)
	}
	if c.ControlTimeout == 0 {
		c.ControlTimeout = DefaultControlTimeout
	}
	if c.IOTimeout == 0 {
		c.IOTimeout = DefaultIOTimeout
	}
	if c.Reconnect != nil {
		c.Reconnect = reconnectPolicy(*c.Reconnect)
	}
	if c.Instance == nil {
		c.Instance = NewInstance()
	}
	if c.Software == "" {
		c.Software = "zc-relay client"
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
}

func infoOf(reply *controlmsg.OpenVolumeReply) Info {
	capabilities := volume.Capability(reply.Capabilities)
	return Info{
		Name: reply.Volume, UUID: reply.UUID, Size: reply.Size, BlockSize: reply.BlockSize,
		ReadOnly: reply.ReadOnly, CanTrim: capabilities.Has(volume.CanTrim),
		CanWriteZeroes: capabilities.Has(volume.CanWriteZeroes),
		WriteVerifier:  reply.WriteVerifier, Transport: reply.Transport,
	}
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

// reconnectPolicy is p with a client's defaults for what is not set.
func reconnectPolicy(p retry.Policy) *retry.Policy {
	p.Total = p.Total.Or(retry.Within(DefaultReconnectTotal))
	if p.LongestPause == 0 {
		p.LongestPause = max(DefaultReconnectLongestPause, p.FirstPause)
	}
	p = p.WithDefaults()
	return &p
}
