// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/injection"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchhook "github.com/zc-relay/zc-relay/pkg/comch/hook"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	controlhook "github.com/zc-relay/zc-relay/pkg/controlmsg/hook"
	"github.com/zc-relay/zc-relay/pkg/fault"
	rdmahook "github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/volume"
	volumehook "github.com/zc-relay/zc-relay/pkg/volume/hook"
)

// Faults holds the flags of a daemon that inject faults.
type Faults struct {
	injection.Flags
	trace string // file for the matches of rules
}

// AddFlags adds the flags to a daemon that uses the given seams.
func (f *Faults) AddFlags(flags *pflag.FlagSet, seams ...fault.Seam) {
	f.Add(flags, seams...)
	flags.StringVar(&f.trace, "trace-operations", "",
		"for tests: write each match of a rule of --fault to this file, one JSON object per line")
}

// recordedEvents is how many matches of rules are kept between two writes of the trace.
const recordedEvents = 1 << 16

// faults injects faults into the providers of a daemon. Without rules it changes nothing.
type faults struct {
	injector *fault.Injector // nil without rules
	recorder *fault.Recorder // nil without a trace
	trace    *os.File
}

func newFaults(f Faults) (*faults, error) {
	rules, err := f.Rules()
	if err != nil {
		return nil, err
	}
	traces := func(r fault.Rule) bool { return r.Action == fault.Trace }
	switch {
	case f.trace != "" && len(rules) == 0:
		return nil, program.Usagef("--trace-operations needs rules: add for instance "+
			"--allow-faults --fault %s:any:trace", f.Seams()[0])
	case f.trace == "" && slices.ContainsFunc(rules, traces):
		return nil, program.Usagef("a --fault with the action trace needs --trace-operations FILE")
	}
	var all faults
	if f.trace != "" {
		if all.recorder, err = fault.NewRecorder(recordedEvents); err != nil {
			return nil, err
		}
		if all.trace, err = output.Begin(f.trace); err != nil {
			return nil, program.Usage(fmt.Errorf("--trace-operations: %w", err))
		}
	}
	if all.injector, err = injection.New(rules, all.recorder); err != nil {
		return nil, err
	}
	return &all, nil
}

// HookComch returns a provider into which the faults of the seam comch are injected.
func (e *Environment) HookComch(p comch.Provider) comch.Provider {
	return comchhook.Wrap(p, comchhook.Config{Injector: e.faults.injector})
}

// HookVolume returns a volume into which the faults of the seam volume are injected.
func (e *Environment) HookVolume(v volume.Volume) volume.Volume {
	return volumehook.Wrap(v, volumehook.Config{Injector: e.faults.injector})
}

// HookTransport returns a transport into which the faults of the seam control are injected.
func (e *Environment) HookTransport(t controlmsg.Transport) controlmsg.Transport {
	return controlhook.Wrap(t, controlhook.Config{Injector: e.faults.injector})
}

func (e *Environment) hookRDMA() {
	e.RDMA = rdmahook.Wrap(e.RDMA, rdmahook.Config{Injector: e.faults.injector})
}

// startFaults warns that faults are injected, and starts the goroutines that write the trace and
// obey signals. They end with the service.
func (e *Environment) startFaults() {
	if e.faults.injector == nil {
		return
	}
	injection.Warn(e.faults.injector, e.Log)
	switches := injection.Switches()
	e.lifecycle.running.Go(func() {
		injection.ObeySwitches(e.lifecycle.background, switches, e.faults.injector, e.Log)
	})
	if e.faults.trace != nil {
		e.lifecycle.running.Go(func() { e.writeTrace(e.lifecycle.background) })
	}
}

// tracePause is the time between two writes of the trace.
const tracePause = 50 * time.Millisecond

// tracedMatch is a line of the trace.
type tracedMatch struct {
	Time      time.Time `json:"time"`
	Operation string    `json:"operation"`
	Kind      string    `json:"kind,omitempty"`
	Action    string    `json:"action"`
	Size      uint64    `json:"size_bytes"`
	Number    uint64    `json:"number"`
}

// writeTrace writes recorded matches until ctx ends, and then the remaining ones.
func (e *Environment) writeTrace(ctx context.Context) {
	w := bufio.NewWriter(e.faults.trace)
	encoder := json.NewEncoder(w)
	events := make([]fault.Event, recordedEvents)
	var err error
	for ended := false; !ended && err == nil; {
		select {
		case <-time.After(tracePause):
		case <-ctx.Done():
			ended = true
		}
		for _, event := range events[:e.faults.recorder.Collect(events)] {
			err = errors.Join(err, encoder.Encode(tracedMatch{
				Time: event.Time.UTC(), Operation: string(event.Seam) + ":" + event.Operation,
				Kind: event.Kind, Action: event.Action.String(), Size: event.Size,
				Number: event.Number,
			}))
		}
		err = errors.Join(err, w.Flush())
	}
	if err = errors.Join(err, e.faults.trace.Close()); err != nil {
		e.Log.Error("cannot write the trace of operations", zap.Error(err))
	}
	if lost := e.faults.recorder.Lost(); lost > 0 {
		e.Log.Warn("the trace of operations is incomplete", zap.Uint64("lost", lost))
	}
}
