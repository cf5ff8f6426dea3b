// SPDX-License-Identifier: Apache-2.0

// Package ublk serves disks to the Linux kernel as block devices, /dev/ublkbN, by the protocol of
// the kernel's driver ublk_drv.
//
// A Device takes the kernel's requests from /dev/ublkcN, with a thread for each of the device's
// queues, and carries them out with a session of an export (pkg/blockio). The kernel copies data
// between its pages and the session's buffers; nobody copies it again. What a disk is, the package
// does not know.
//
// A device outlives its server. If the server leaves, or is killed, the kernel keeps the device and
// the requests that were not answered, and gives them to the server that recovers it. A device
// of a user without privileges ends with its server.
//
// The protocol is that of include/uapi/linux/ublk_cmd.h and Documentation/block/ublk.rst of Linux
// 6.12. Numbers have names of their own here, because Debian 12's header is that of Linux 6.1.
// Comments say where the driver, drivers/block/ublk_drv.c of Linux 6.12, does what nobody expects.
package ublk

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Bounds of the protocol, and the default depth.
const (
	MaxQueues    = 4096
	MaxDepth     = 4096
	DefaultDepth = 128
	// AnyID lets the kernel choose a device's number.
	AnyID = -1
)

// maxID is the largest number of a device (UBLK_MAX_UBLKS).
const maxID = 1<<20 - 1

// Config configures a Device.
type Config struct {
	// ID is the device's number N, or AnyID.
	ID int
	// Queues is the number of queues, each with a thread, and Depth how many requests each may
	// hold; 0 means 1, and DefaultDepth. The kernel lowers Queues to the number of its processors.
	// A recovered device keeps its own.
	Queues, Depth int
	// BlockSize is the logical block size in bytes, a power of two from 512 to 4096; 0 means that
	// of the disk, within these bounds. A recovered device keeps its own.
	BlockSize uint32
	// ReadOnly makes the device read-only even if the disk is not.
	ReadOnly bool
	// Unprivileged makes a device without privileges, which ends with its server. The kernel ends
	// a server of such a device that leaves a request unanswered for 30 s.
	Unprivileged bool
	// Cookie is kept with the device by the kernel, for the server that recovers it.
	Cookie uint64
	// Policy is how threads poll.
	Policy progress.Policy
	// Logger may be nil.
	Logger *zap.Logger
}

func (c *Config) setDefaults(info *blockio.Info) {
	if c.Queues == 0 {
		c.Queues = 1
	}
	if c.Depth == 0 {
		c.Depth = DefaultDepth
	}
	if c.BlockSize == 0 {
		c.BlockSize = min(max(info.BlockSize, sectorSize), maxBlockSize)
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
}

// check returns an error for a configuration that cannot work.
func (c *Config) check(info *blockio.Info) error {
	switch {
	case c.ID < AnyID || c.ID > maxID:
		return status.Errorf(status.InvalidValue, "device number %d is not between 0 and %d", c.ID,
			maxID)
	case c.Queues < 1 || c.Queues > MaxQueues:
		return status.Errorf(status.InvalidValue, "%d queues are not between 1 and %d", c.Queues,
			MaxQueues)
	case c.Depth < 1 || c.Depth > MaxDepth:
		return status.Errorf(status.InvalidValue, "a depth of %d is not between 1 and %d", c.Depth,
			MaxDepth)
	case c.BlockSize < sectorSize || c.BlockSize > maxBlockSize || c.BlockSize&(c.BlockSize-1) != 0:
		return status.Errorf(status.InvalidValue, "block size %d is not a power of two from %d to %d",
			c.BlockSize, sectorSize, maxBlockSize)
	case info.Size < uint64(c.BlockSize):
		return status.Errorf(status.InvalidValue, "the disk has %d bytes, which is less than a block",
			info.Size)
	case info.LargestAny < maxBlockSize || info.LargestAligned < maxBlockSize:
		return status.Errorf(status.InvalidValue, "the disk's buffers hold less than %d bytes",
			maxBlockSize)
	}
	return nil
}

// Path returns the path of a device.
func Path(id int) string { return fmt.Sprintf("/dev/ublkb%d", id) }

// serverPath returns the path of the file by which the server of a device serves it.
func serverPath(id int) string { return fmt.Sprintf("/dev/ublkc%d", id) }

// Status is the state of a device and what its users have done since this server began.
type Status struct {
	ID            int
	Path          string
	Size          uint64 // bytes
	BlockSize     uint32
	ReadOnly      bool
	Queues, Depth int
	// CanRecover is set if the device outlives its server, and Recovered if it has outlived one.
	CanRecover, Recovered bool
	Since                 time.Time // when this server began
	blockio.IOStatus
}
