// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Parameters describe a run. After Resolve they hold the values in effect, which the report
// contains.
type Parameters struct {
	Pattern benchsuite.Pattern `json:"rw"`
	// ReadPercent is the percentage of reads.
	ReadPercent int `json:"read_percent"`
	// BlockSize is the length of each request in bytes.
	BlockSize  uint32 `json:"block_size_bytes"`
	QueueDepth int    `json:"queue_depth"`
	// BatchSize is the number of requests after which a queue is flushed; 0 flushes it once per
	// turn of its thread.
	BatchSize int `json:"batch_size,omitempty"`
	Queues    int `json:"queues"` // in each session
	Sessions  int `json:"sessions"`
	// CPUs holds the CPU of each thread, one per queue of a session; empty if threads are not
	// pinned. A thread serves one queue of every session.
	CPUs []int `json:"cpus"`
	// Runtime limits the duration of the measured part, OperationLimit its number of requests, over
	// all queues. 0 is no limit; not both may be 0.
	Runtime        time.Duration `json:"runtime_ns"`
	OperationLimit uint64        `json:"operation_limit"`
	// Warmup is the duration before the measured part.
	Warmup time.Duration `json:"warmup_ns"`
	// Offset and Length are the range of the volume to use. Length 0 means up to its end.
	Offset uint64 `json:"offset_bytes"`
	Length uint64 `json:"length_bytes"`
	// InPlace makes the data memory mirror the start of the volume, which becomes the range: each
	// request that can be outstanding has a block to itself, at the same place in both. Older
	// releases of the DOCA storage applications have no other requests.
	InPlace bool   `json:"in_place,omitempty"`
	Seed    uint64 `json:"seed"`
	Poll    string `json:"poll"` // a progress.Mode
	// Rate is the number of requests per second of all queues together, each of which is due at its
	// time whatever becomes of the former ones (open loop); 0 keeps the queues full (closed loop).
	Rate uint64 `json:"rate_per_second,omitempty"`
	// Interval is the time after which intermediate results are reported; 0 is never.
	Interval time.Duration `json:"interval_ns,omitempty"`
	// Validate turns on the comparison of data: writes are read back, and reads must return the
	// content of the file PlainContent.
	Validate     bool   `json:"validate"`
	PlainContent string `json:"plain_content,omitempty"`
	// DrainTimeout bounds the wait for outstanding requests at the end.
	DrainTimeout time.Duration `json:"drain_timeout_ns"`
	// Reconnect is nil if the run ends when the volume is lost.
	Reconnect *document.ReconnectPolicy `json:"reconnect,omitempty"`
}

// MaxSessions bounds Parameters.Sessions: the most clients that a relay admits.
const MaxSessions = 1 << 16

// minInterval is the shortest interval, MaxRate the highest rate that the clock can tell apart.
const (
	minInterval = 10 * time.Millisecond
	MaxRate     = 1e9
)

// Resolve checks the parameters against the volume and fills in derived values. Its errors are
// usage errors.
func (p *Parameters) Resolve(info *client.Info) error {
	if err := p.Check(); err != nil {
		return program.Usage(status.Errorf(status.InvalidValue, "%w", err))
	}
	if p.Pattern.Writes() && info.ReadOnly {
		return program.Usagef("volume %q is read-only: use --rw read or randread", info.Name)
	}
	if err := p.resolveRange(info); err != nil {
		return program.Usage(status.Errorf(status.InvalidValue, "%w", err))
	}
	return nil
}

// Check checks everything that does not depend on the volume, and sets ReadPercent.
func (p *Parameters) Check() error {
	p.ReadPercent = p.Pattern.ReadPercent(p.ReadPercent)
	if p.CPUs == nil {
		p.CPUs = []int{} // a list in JSON
	}
	if err := p.checkRun(); err != nil {
		return err
	}
	_, err := progress.ParseMode(p.Poll)
	return err
}

func (p *Parameters) checkRun() error {
	switch {
	case p.ReadPercent < 0 || p.ReadPercent > 100:
		return fmt.Errorf("read percentage %d is not between 0 and 100", p.ReadPercent)
	case p.BlockSize == 0:
		return fmt.Errorf("block size is 0")
	case p.QueueDepth < 1:
		return fmt.Errorf("queue depth %d is less than 1", p.QueueDepth)
	case p.BatchSize < 0:
		return fmt.Errorf("batch size %d is negative", p.BatchSize)
	case p.Queues < 1:
		return fmt.Errorf("number of queues %d is less than 1", p.Queues)
	case p.Sessions < 1 || p.Sessions > MaxSessions:
		return fmt.Errorf("number of sessions %d is not between 1 and %d", p.Sessions, MaxSessions)
	case len(p.CPUs) != 0 && len(p.CPUs) != p.Queues:
		return fmt.Errorf("%d CPUs for %d queues: each queue has one thread", len(p.CPUs), p.Queues)
	case p.Runtime < 0 || p.Warmup < 0:
		return fmt.Errorf("--runtime %v and --warmup %v must not be negative: write for instance 10s",
			p.Runtime, p.Warmup)
	case p.Runtime == 0 && p.OperationLimit == 0:
		return fmt.Errorf("neither a runtime nor a number of operations bounds the run: give --runtime or " +
			"--run-limit-operation-count")
	case p.Interval < 0 || p.Interval > 0 && p.Interval < minInterval:
		return fmt.Errorf("interval %v is not at least %v", p.Interval, minInterval)
	case p.Rate > MaxRate:
		return fmt.Errorf("rate %d is more than %d", p.Rate, uint64(MaxRate))
	case p.Rate > 0 && p.Validate:
		return fmt.Errorf("a rate cannot be kept while writes are validated, which takes further requests")
	case p.InPlace && (p.Pattern.Random() || p.Sessions > 1):
		return fmt.Errorf("requests in place need a sequential pattern and a single session, not %s and %d",
			p.Pattern, p.Sessions)
	case p.Validate && p.ReadPercent > 0 && p.PlainContent == "":
		return fmt.Errorf("pattern %s cannot be validated: the expected data is unknown without --storage-plain-content",
			p.Pattern)
	case p.DrainTimeout <= 0:
		return fmt.Errorf("drain timeout %v (--control-timeout) is not positive", p.DrainTimeout)
	}
	return nil
}

func (p *Parameters) resolveRange(info *client.Info) error {
	block := uint64(info.BlockSize)
	if p.InPlace {
		p.Offset = 0
		p.Length = uint64(p.Queues) * uint64(p.QueueDepth) * uint64(p.BlockSize)
		if p.Length > info.Size {
			return fmt.Errorf("the requests that can be outstanding have %v, but the volume has %v: use fewer queues, less depth, or smaller blocks",
				size.Bytes(p.Length), size.Bytes(info.Size))
		}
	}
	switch {
	case uint64(p.BlockSize)%block != 0:
		return fmt.Errorf("block size %d is not a multiple of the %d of volume %q", p.BlockSize,
			block, info.Name)
	case p.Offset%block != 0:
		return fmt.Errorf("offset %d is not a multiple of the block size %d of volume %q", p.Offset,
			block, info.Name)
	}
	if err := document.CheckRange(info, p.Offset, p.Length); err != nil {
		return err
	}
	if p.Length == 0 {
		p.Length = info.Size - p.Offset
	}
	if needed := p.slices() * uint64(p.BlockSize); p.Length < needed {
		return fmt.Errorf("range of %d bytes is too small: %d queues of depth %d need at least %d bytes in blocks of %d",
			p.Length, p.allQueues(), p.QueueDepth, needed, p.BlockSize)
	}
	return nil
}

// slices returns the number of parts of the range, so that requests do not interfere with each
// other.
func (p *Parameters) slices() uint64 {
	switch {
	case p.Validate && p.Pattern.Writes():
		return uint64(p.allQueues()) * uint64(p.QueueDepth)
	case p.Pattern.Random():
		return 1
	}
	return uint64(p.allQueues())
}

// allQueues returns the number of queues of all sessions.
func (p *Parameters) allQueues() int { return p.Sessions * p.Queues }

// operationLimit returns queue i's share of OperationLimit.
func (p *Parameters) operationLimit(i int) uint64 {
	if p.OperationLimit == 0 {
		return unlimited
	}
	limit := p.OperationLimit / uint64(p.allQueues())
	if uint64(i) < p.OperationLimit%uint64(p.allQueues()) {
		limit++
	}
	return limit
}

// cpu returns the CPU of the thread that serves queue i of every session.
func (p *Parameters) cpu(i int) int {
	if len(p.CPUs) == 0 {
		return affinity.AnyCPU
	}
	return p.CPUs[i]
}
