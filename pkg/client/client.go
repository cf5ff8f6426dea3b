// SPDX-License-Identifier: Apache-2.0

// Package client reads and writes a remote volume through a relay. Applications on the host use it;
// the initiator is one of them.
//
// Open connects to a channel of the relay and returns a Volume, which can be used in two ways.
// ReadAt, WriteAt, Flush, Trim, and WriteZeroes block until their outcome is known, and any number
// of goroutines may call them. A Queue submits requests without copying data and polls for their
// results, for one thread: in a loop of its own, with a progress engine (Queue.Attach), or in an
// event loop of the program (Queue.EventDescriptor, Queue.Process). The data of a queue is in the
// memory of the volume, which may be the program's own (Config.Memory).
//
// docs/guides/client.md shows how everything fits together, and examples has whole programs.
package client

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// DefaultChannelName is the Comch service name that the relay uses by default. It is the name that
// the DOCA storage zero copy application uses.
const DefaultChannelName = "storage_zero_copy_comch"

// ChannelName3 is the Comch service name of the DOCA storage applications of 3.x.
const ChannelName3 = "doca_storage_comch"

// Defaults of Config.
const (
	DefaultDepth          = 64
	DefaultBufferSize     = 1 << 20
	DefaultSyncDepth      = 16
	DefaultControlTimeout = 10 * time.Second
	DefaultIOTimeout      = 60 * time.Second
)

// The defaults that Config.Reconnect applies where its policy sets no limit.
const (
	DefaultReconnectTotal        = 10 * time.Minute // as ctrl_loss_tmo of the kernel's NVMe-oF
	DefaultReconnectLongestPause = 2 * time.Second
)

// Config describes how to open a volume. Only Provider and Device are required.
type Config struct {
	// Provider is the Comch implementation, and Device the host's device.
	Provider comch.Provider
	Device   string
	// ChannelName is the relay's Comch service name; "" means DefaultChannelName, or what the DOCA
	// storage applications of Protocol use.
	ChannelName string
	// Protocol is what the relay speaks: dialects.None means our own protocol, the others those of
	// the DOCA storage applications. They only read and write: other requests, and flags, fail with
	// status.NotSupported, as do the options here that need more. Their relays report every IO as
	// successful, serve one volume in their life, and take long to notice that a client has gone.
	//
	// In 2.10 the volume has as many bytes as the memory of the queues, and Request.Offset must
	// equal Request.Memory; the relay's target keeps a copy of the volume for each queue. In 3.0
	// Request.Memory must not be below Request.Offset, nor more than 4 GiB above.
	Protocol dialects.Version
	// Queues is the number of queues that the application will use; it may be 0.
	Queues int
	// Depth is how many requests may be outstanding on each queue; 0 means DefaultDepth.
	Depth int
	// BufferSize is the most data in bytes that one request may move; 0 means DefaultBufferSize.
	BufferSize uint32
	// MemorySize is the size in bytes of the data memory that the queues share; 0 means one buffer
	// for each request that may be outstanding, or all that the blocking methods leave of Memory.
	MemorySize uint64
	// Memory, if not nil, is data memory that the application has made, with memory.Alloc,
	// memory.Map, or, for a provider whose device needs no file, memory.Wrap. The relay reads and
	// writes it in place, from offset 0 on. Unless SyncDepth is negative, the blocking methods use
	// 2 * SyncDepth * BufferSize bytes behind MemorySize; no other volume can then use the memory
	// at the same time. Without blocking methods, volumes can share it.
	//
	// The application keeps it open, and may touch what no request uses. It cannot be replaced as
	// other memory can: if a relay that is silent has it, the volume is not reopened before the
	// relay releases it (ErrQuarantineFull), and buffers in quarantine can be used again when
	// Queue.Session has changed. After Close has returned nil, or AwaitMemory, no relay can touch
	// the memory. Only then unmap it, or use it for something else. An Open that fails waits for up
	// to ReleaseTimeout for the same; if its error matches ErrQuarantined, keep the memory as it is
	// for good.
	Memory *memory.Region
	// SyncDepth is how many requests ReadAt, WriteAt, and the other blocking methods may have
	// outstanding, for all callers together. As many more may be outstanding without a caller,
	// because its context has ended, if the relay allows for that depth: the data memory has
	// buffers for both. 0 means DefaultSyncDepth. A negative value disables these methods.
	SyncDepth int
	// Policy is how the thread behind the blocking methods polls.
	Policy progress.Policy
	// MaxQuarantined bounds the memory, in bytes, that silent relays keep from earlier sessions:
	// see Result.Quarantined. A volume that would exceed it is not reopened before relays have
	// released enough; if Reconnect does not allow for that, it fails with ErrQuarantineFull. 0
	// means the size of the data memory, which suffices for one such session.
	MaxQuarantined uint64
	// ControlTimeout bounds Open, except for the allocation of memory, and each step of Close.
	// IOTimeout bounds how long a request may be outstanding before the session fails, with all of
	// its requests: only that makes certain that nobody uses the buffer any more. 0 means the
	// default; a negative IOTimeout means no limit.
	ControlTimeout time.Duration
	IOTimeout      time.Duration
	// ReleaseTimeout bounds how long the outstanding requests of a session that has ended wait for
	// the relay to release the data memory. Then they fail as quarantined. 0 means ControlTimeout.
	// They wait longer if the leases of the relay's targets do: for 1.01 times their length and a
	// second, 6.05 s by default. Until then a relay that goes on could carry out their changes.
	ReleaseTimeout time.Duration
	// Reconnect, if not nil, makes the client reopen the volume after its session is lost, for
	// instance because the target or the relay has restarted or a connection was cut.
	// DefaultReconnectTotal and DefaultReconnectLongestPause apply where the policy sets no limit.
	// With nil, the volume fails when its session ends. So it does in any case when another owner
	// has preempted this one (ErrPreempted).
	//
	// Requests outstanding on a Queue fail once each, with status.ConnectionReset, Shutdown, or
	// TimeOut. Until there is a new session, Submit returns ErrReopening. If the relay was silent,
	// the new session has new memory: see Queue.SwitchMemory. ReadAt, WriteAt, and the
	// other blocking methods repeat what the loss has left unfinished, and return when it is done
	// or the policy is exhausted. A write may therefore be carried out twice, but no write takes
	// effect after the session that follows its own has begun.
	//
	// The client rejects a volume with another UUID (ErrAnotherVolume). When the target has
	// restarted and may have lost writes, the next flush fails (ErrWritesLost): see Flusher.
	Reconnect *retry.Policy
	// ReadOnly opens the volume for reading: nothing that the application, the relay, or the target
	// does in the session can change it, and changes fail with status.NotPermitted.
	ReadOnly bool
	// Exclusive keeps other owners from opening the volume for as long as this one is open. Open
	// fails with status.InUse while another owner has it open. Between the loss of a session and
	// its replacement (Reconnect), another owner may open the volume; then reopening fails with
	// status.InUse until that one is done.
	Exclusive bool
	// Preempt, if not empty, is a holder of the volume whose place this one takes, by the ID that
	// Info.HolderID or the text of a status.InUse error tells. Open makes the target end all
	// sessions of that holder's owner, and returns when none of their IO can take effect any more;
	// they end with ErrPreempted. Open fails with status.InUse if another holder is there by now,
	// with status.NotPermitted if the relay has no right to preempt, and with status.Again if the
	// holder's IO does not end in time: then nobody has the volume. If no holder is there, Preempt
	// only keeps the owner that it names from coming back. It concerns Open, and never what
	// Reconnect does.
	Preempt string
	// Owner is the program on whose behalf the volume is opened. Volumes of one owner may be open
	// at the same time even if they are exclusive. nil means a new owner.
	Owner *Owner
	// Instance links volumes that are opened one after another. The next Open with the same
	// Instance makes the target end the previous session, and returns only when none of that
	// session's IO can take effect any more. Open fails with status.InUse while the previous volume
	// is open, unless that has failed. nil means a new instance.
	Instance *Instance
	// Tracer records one request in TraceEvery of each queue, and makes relay and target record
	// them, too, if their tracers are on. 0 or nil means none.
	Tracer     *trace.Tracer
	TraceEvery int
	// Software is the program name reported to the relay.
	Software string
	// Logger may be nil.
	Logger *zap.Logger
}

// Info describes an opened volume.
type Info struct {
	Name      string
	UUID      volume.UUID
	Size      uint64 // bytes, below 1<<63; Volume.Size returns it for functions of package io
	BlockSize uint32 // bytes; offsets and lengths of queue requests are multiples of it
	// ReadOnly means that writes fail: the volume was opened for reading, or cannot be written.
	ReadOnly bool
	// Exclusive means that no other owner can open the volume, because it was opened exclusively,
	// or open it for writing, because the target lets one owner at a time do that.
	Exclusive bool
	// CanTrim and CanWriteZeroes report which optional operations the volume supports; a read-only
	// one supports neither.
	CanTrim        bool
	CanWriteZeroes bool
	// CanFUA means that a change with the flag FUA is durable when it completes, without a flush. A
	// read-only volume has no changes.
	CanFUA bool
	// CanReportExtents means that the volume knows where its holes are: see Volume.Extents.
	CanReportExtents bool
	// WriteVerifier changes whenever writes that were not flushed may have been lost, as most
	// restarts of the target may do.
	WriteVerifier uint64
	// Transport is the name of the RDMA transport between relay and target.
	Transport string
	// Queues, Depth, and BufferSize are the negotiated values.
	Queues     int
	Depth      int
	BufferSize uint32
	// Relay is the relay's software and version.
	Relay string
	// Sessions is the number of sessions that had the volume open before this one. Holder is the
	// client that had it open exclusively, "" if none had, and HolderID names it for Config.Preempt.
	Sessions int
	Holder   string
	HolderID string
	// OwnHolderID is how others name this volume's owner. It changes when the volume is reopened
	// after the owner has had no session for a while. It is empty without a session, and if the
	// target is too old.
	OwnHolderID string
	// HolderAbsent means that the holder that Config.Preempt names was not there, so that nothing
	// was taken from anybody: it has ended, or the ID is wrong.
	HolderAbsent bool
}

func (c *Config) setDefaults() {
	if c.ChannelName == "" {
		c.ChannelName = DefaultChannelName
		if c.Protocol >= dialects.DOCA3_0 {
			c.ChannelName = ChannelName3
		}
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
	if c.Memory != nil && c.MemorySize == 0 {
		c.MemorySize = c.Memory.Len() - min(c.Memory.Len(), c.blockingMemory())
	} else if c.MemorySize == 0 {
		c.MemorySize = uint64(c.Queues) * uint64(c.Depth) * uint64(c.BufferSize)
	}
	if c.MaxQuarantined == 0 {
		c.MaxQuarantined = c.MemorySize + c.blockingMemory()
	}
	if c.ControlTimeout == 0 {
		c.ControlTimeout = DefaultControlTimeout
	}
	if c.ReleaseTimeout == 0 {
		c.ReleaseTimeout = c.ControlTimeout
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
	if c.Owner == nil {
		c.Owner = NewOwner("")
	}
	if c.Software == "" {
		c.Software = "zc-relay client"
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
}

// checkConnection completes the configuration, and checks what Describe needs of it.
func (c *Config) checkConnection(ctx context.Context) error {
	c.setDefaults()
	switch {
	case ctx == nil:
		return errNilContext
	case c.Provider == nil:
		return status.Errorf(status.InvalidValue, "Config.Provider is nil: it is how the host "+
			"reaches the DPU, for instance emulated.New(emulated.Options{})")
	case c.ControlTimeout < 0:
		return status.Errorf(status.InvalidValue, "Config.ControlTimeout is %v, which is negative",
			c.ControlTimeout)
	}
	return nil
}

var errNilContext = status.Errorf(status.InvalidValue,
	"the context is nil: pass context.Background()")

// check completes the configuration, and checks it before anything is allocated.
func (c *Config) check(ctx context.Context) error {
	switch {
	case c.Instance != nil && c.Instance.id == [16]byte{}:
		return status.Errorf(status.InvalidValue, "Config.Instance is empty: use NewInstance")
	case c.Owner != nil && c.Owner.id == [16]byte{}:
		return status.Errorf(status.InvalidValue, "Config.Owner is empty: use NewOwner")
	}
	if err := c.checkConnection(ctx); err != nil {
		return err
	}
	if err := c.checkProtocolLimits(); err != nil {
		return err
	}
	if err := c.checkMemory(); err != nil {
		return err
	}
	return c.checkProtocol()
}

// checkMemory checks the memory of the application, if there is one.
func (c *Config) checkMemory() error {
	if c.Memory == nil {
		return nil
	}
	if !c.Memory.Mapped() || c.Memory.Untrusted() {
		return status.Errorf(status.NotSupported, "Config.Memory belongs to a device or to another "+
			"process: make it with memory.Alloc, memory.Map, or memory.Wrap")
	}
	needed := c.MemorySize + c.blockingMemory()
	if c.MemorySize == 0 && c.Queues > 0 || needed > c.Memory.Len() {
		return status.Errorf(status.TooBig, "Config.Memory has %d bytes; the queues need %d "+
			"(MemorySize), and the blocking methods %d (2 * SyncDepth * BufferSize)",
			c.Memory.Len(), max(c.MemorySize, 1), c.blockingMemory())
	}
	return nil
}

// blockingMemory is how much memory the blocking methods use at most, in bytes.
func (c *Config) blockingMemory() uint64 {
	return 2 * uint64(max(c.SyncDepth, 0)) * uint64(c.BufferSize)
}

// checkProtocolLimits checks the configuration against the limits of every relay, before anything
// is allocated.
func (c *Config) checkProtocolLimits() error {
	for _, limit := range []struct {
		name       string
		value, max int64
	}{
		{"Queues", int64(c.Queues), controlmsg.MaxQueues},
		{"Depth", int64(c.Depth), controlmsg.MaxDepth},
		{"SyncDepth", int64(max(c.SyncDepth, 0)), controlmsg.MaxDepth},
		{"BufferSize", int64(c.BufferSize), controlmsg.MaxBufferSize},
	} {
		if limit.value < 0 {
			return status.Errorf(status.InvalidValue, "Config.%s is %d, which is negative",
				limit.name, limit.value)
		}
		if limit.value > limit.max {
			return status.Errorf(status.TooBig, "Config.%s is %d, the limit of the protocol is %d",
				limit.name, limit.value, limit.max)
		}
	}
	if c.ReleaseTimeout < 0 {
		return status.Errorf(status.InvalidValue, "Config.ReleaseTimeout is %v, which is negative",
			c.ReleaseTimeout)
	}
	if c.TraceEvery < 0 {
		return status.Errorf(status.InvalidValue, "Config.TraceEvery is %d, which is negative",
			c.TraceEvery)
	}
	if c.Preempt != "" {
		if _, err := controlmsg.ParseHolderID(c.Preempt); err != nil {
			return fmt.Errorf("Config.Preempt: %w", err)
		}
	}
	if c.MemorySize > maxMemorySize {
		return status.Errorf(status.TooBig, "Config.MemorySize is %d bytes, the limit is %d",
			c.MemorySize, uint64(maxMemorySize))
	}
	return nil
}

// maxMemorySize bounds Config.MemorySize so that no sum of sizes overflows.
const maxMemorySize = 1 << 60

// queueCount includes the queue behind the blocking methods.
func (c *Config) queueCount() int {
	if c.SyncDepth > 0 {
		return c.Queues + 1
	}
	return c.Queues
}

// depth returns the depth that all queues of a session share.
func (c *Config) depth() int {
	if c.Queues == 0 {
		return max(c.SyncDepth, 1)
	}
	return max(c.Depth, c.SyncDepth)
}

// canReconnect reports whether the volume is reopened after the loss of a session.
func (c *Config) canReconnect() bool { return c.Reconnect != nil }

// reconnectPolicy returns p with the client's defaults for what is not set.
func reconnectPolicy(p retry.Policy) *retry.Policy {
	p.Total = p.Total.Or(retry.Within(DefaultReconnectTotal))
	if p.LongestPause == 0 {
		p.LongestPause = max(DefaultReconnectLongestPause, p.FirstPause)
	}
	p = p.WithDefaults()
	return &p
}
