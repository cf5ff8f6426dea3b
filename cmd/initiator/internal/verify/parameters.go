// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Parameters describe a run. After Resolve they hold the values in effect, which the report
// contains.
type Parameters struct {
	Queues     int `json:"queues"`
	QueueDepth int `json:"queue_depth"`
	// CPUs holds the CPU of each queue's thread; empty if threads are not pinned.
	CPUs []int `json:"cpus"`
	// MaxIOSize is the largest length of a request in bytes; the smallest is one block.
	MaxIOSize uint32 `json:"max_io_size_bytes"`
	// Passes is the number of times that the range is written and read; 0 means as often as Runtime
	// allows. Runtime 0 is no limit. Not both may be 0.
	Passes  uint32        `json:"passes"`
	Runtime time.Duration `json:"runtime_ns"`
	// Offset and Length are the range of the volume to use. Length 0 means up to its end.
	Offset uint64 `json:"offset_bytes"`
	Length uint64 `json:"length_bytes"`
	// Seed determines the order and the sizes of requests.
	Seed uint64 `json:"seed"`
	Poll string `json:"poll"` // a progress.Mode
	// DrainTimeout bounds the wait for outstanding requests at the end.
	DrainTimeout time.Duration `json:"drain_timeout_ns"`
	// Reconnect is nil if the run ends when the volume is lost.
	Reconnect *document.ReconnectPolicy `json:"reconnect,omitempty"`
}

// Resolve checks the parameters against the volume and fills in derived values. Its errors are
// usage errors.
func (p *Parameters) Resolve(info *client.Info) error {
	if err := p.Check(); err != nil {
		return program.Usage(status.Errorf(status.InvalidValue, "%w", err))
	}
	if err := p.resolveRange(info); err != nil {
		return program.Usage(status.Errorf(status.InvalidValue, "%w", err))
	}
	return nil
}

// Check checks everything that does not depend on the volume.
func (p *Parameters) Check() error {
	if p.CPUs == nil {
		p.CPUs = []int{} // a list in JSON
	}
	switch {
	case p.QueueDepth < 1:
		return fmt.Errorf("queue depth %d is less than 1", p.QueueDepth)
	case p.Queues < 1:
		return fmt.Errorf("number of queues %d is less than 1", p.Queues)
	case len(p.CPUs) != 0 && len(p.CPUs) != p.Queues:
		return fmt.Errorf("%d CPUs for %d queues: each queue has one thread", len(p.CPUs), p.Queues)
	case p.Passes >= generationOf:
		return fmt.Errorf("%d passes are more than %d", p.Passes, generationOf-1)
	case p.Runtime < 0:
		return fmt.Errorf("--runtime %v must not be negative: write for instance 10s", p.Runtime)
	case p.Runtime == 0 && p.Passes == 0:
		return fmt.Errorf("neither a runtime nor a number of passes bounds the run: give --runtime or --passes")
	case p.DrainTimeout <= 0:
		return fmt.Errorf("drain timeout %v is not positive", p.DrainTimeout)
	}
	_, err := progress.ParseMode(p.Poll)
	return err
}

func (p *Parameters) resolveRange(info *client.Info) error {
	block := uint64(info.BlockSize)
	switch {
	case info.ReadOnly:
		return fmt.Errorf("volume %q is read-only, but verifying writes to it", info.Name)
	case block < smallestBlock:
		return fmt.Errorf("the block size %d of volume %q is too small: verifying needs at least %d bytes",
			block, info.Name, smallestBlock)
	case p.MaxIOSize == 0 || uint64(p.MaxIOSize)%block != 0:
		return fmt.Errorf("maximum IO size %d is not a multiple of the block size %d of volume %q",
			p.MaxIOSize, block, info.Name)
	case p.Offset%block != 0:
		return fmt.Errorf("offset %d is not a multiple of the block size %d of volume %q", p.Offset,
			block, info.Name)
	case p.Length%block != 0:
		return fmt.Errorf("%d bytes at offset %d are not a multiple of the block size %d of volume %q",
			p.Length, p.Offset, block, info.Name)
	}
	if err := document.CheckRange(info, p.Offset, p.Length); err != nil {
		return err
	}
	if p.Length == 0 {
		p.Length = info.Size - p.Offset
	}
	if p.Length < uint64(p.Queues)*block {
		return fmt.Errorf("range of %d bytes is too small: each of %d queues needs a block of %d bytes",
			p.Length, p.Queues, block)
	}
	return nil
}

// slice returns queue i's part of the range: its start in bytes and its number of blocks.
func (p *Parameters) slice(i int, blockSize uint32) (start, blocks uint64) {
	total, queues := p.Length/uint64(blockSize), uint64(p.Queues)
	share := func(i uint64) uint64 { return total/queues*i + min(i, total%queues) }
	first := share(uint64(i))
	return p.Offset + first*uint64(blockSize), share(uint64(i)+1) - first
}

// cpu returns the CPU of queue i's thread.
func (p *Parameters) cpu(i int) int {
	if len(p.CPUs) == 0 {
		return affinity.AnyCPU
	}
	return p.CPUs[i]
}
