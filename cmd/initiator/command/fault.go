// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"fmt"
	"sync"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/hook"
	"github.com/zc-relay/zc-relay/cmd/internal/injection"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchhook "github.com/zc-relay/zc-relay/pkg/comch/hook"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	volumehook "github.com/zc-relay/zc-relay/pkg/volume/hook"
)

// faults injects faults into the volumes that a command opens, and into its connections to relays.
type faults struct {
	flags    injection.Flags
	begin    sync.Once
	injector *fault.Injector // nil without rules
	err      error
}

func (f *faults) add(flags *pflag.FlagSet) { f.flags.Add(flags, fault.Volume, fault.Comch) }

// check reports what is wrong with the flags, and prepares to inject. The first call warns.
func (f *faults) check(log *zap.Logger) error {
	f.begin.Do(func() {
		var rules []fault.Rule
		if rules, f.err = f.flags.Rules(); f.err != nil {
			return
		}
		for _, r := range rules {
			if r.Action == fault.Trace {
				f.err = program.Usagef("--fault %v: this program records no matches of rules: use "+
					"bench --trace", r)
				return
			}
		}
		f.injector, f.err = injection.New(rules, nil)
		injection.Warn(f.injector, log)
	})
	return f.err
}

// hookComch returns a provider into which the faults of the seam comch are injected.
func (f *faults) hookComch(p comch.Provider) comch.Provider {
	return comchhook.Wrap(p, comchhook.Config{Injector: f.injector})
}

// hookVolume returns a volume into which the faults of the seam volume are injected. Signals turn
// switches until ctx ends or the volume is closed.
func (f *faults) hookVolume(ctx context.Context, v volume, log *zap.Logger) volume {
	if f.injector == nil {
		return v
	}
	ctx, cancel := context.WithCancel(ctx)
	h := &hookedVolume{volume: v, ctx: ctx, cancel: cancel, injector: f.injector,
		points: volumehook.Points(f.injector)}
	signals := injection.Switches()
	h.switches.Go(func() { injection.ObeySwitches(ctx, signals, f.injector, log) })
	if f.injector.Has(fault.Volume) {
		info := v.Info()
		for i := range info.Queues {
			h.queues = append(h.queues, hook.NewQueue(v.Queue(i), info.Depth, v.Memory(),
				f.injector))
		}
	}
	return h
}

// hookedVolume is a volume with hooks.
type hookedVolume struct {
	volume
	ctx      context.Context
	cancel   context.CancelFunc
	injector *fault.Injector
	switches sync.WaitGroup
	points   [iomsg.OperationCount]*fault.Point
	queues   []*hook.Queue // none without rules for volumes
}

// Queue returns queue i.
func (h *hookedVolume) Queue(i int) queue {
	if len(h.queues) == 0 {
		return h.volume.Queue(i)
	}
	return h.queues[i]
}

// ReadAt reads, unless a rule prevents it.
func (h *hookedVolume) ReadAt(p []byte, off int64) (int, error) {
	hit, err := h.enter(iomsg.OpRead, off, len(p))
	if err != nil {
		return 0, err
	}
	n, err := h.volume.ReadAt(p, off)
	if hit.Action == fault.Corrupt {
		hit.Corrupt(p[:n])
	}
	return n, err
}

// WriteAt writes, unless a rule prevents it.
func (h *hookedVolume) WriteAt(p []byte, off int64) (int, error) {
	hit, err := h.enter(iomsg.OpWrite, off, len(p))
	if err != nil {
		return 0, err
	}
	if hit.Action == fault.Drop {
		return len(p), nil
	}
	if hit.Action == fault.Corrupt {
		hit.Corrupt(p)
		defer hit.Corrupt(p) // restores it
	}
	return h.volume.WriteAt(p, off)
}

// Flush flushes, unless a rule prevents it.
func (h *hookedVolume) Flush() error {
	if hit, err := h.enter(iomsg.OpFlush, 0, 0); err != nil || hit.Action == fault.Drop {
		return err
	}
	return h.volume.Flush()
}

// enter applies the rules to a synchronous operation.
func (h *hookedVolume) enter(operation iomsg.Operation, offset int64, length int) (fault.Hit,
	error) {
	point := h.points[operation]
	hit := point.NextAt(uint64(offset), uint64(length))
	if err := point.Carry(h.ctx, h.Done(), hit); err != nil {
		return hit, fmt.Errorf("%v %d bytes at offset %d: %w", operation, length, offset, err)
	}
	return hit, nil
}

// Close closes the volume.
func (h *hookedVolume) Close(ctx context.Context) error {
	h.cancel()
	h.switches.Wait()
	return h.volume.Close(ctx)
}
