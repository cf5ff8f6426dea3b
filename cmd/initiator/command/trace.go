// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// traceFlags determine which requests are traced, and where to.
type traceFlags struct {
	path  string // "" for none
	every int

	tracer *trace.Tracer
	file   *os.File
}

func (t *traceFlags) add(f *pflag.FlagSet) {
	f.StringVar(&t.path, "trace", "", "write a timeline of sampled requests to this file, for "+
		"Chrome's trace viewer and Perfetto; relay and target trace the same ones (their command trace)")
	f.IntVar(&t.every, "trace-every", 1000, "with --trace, sample one request of each queue in so many")
	program.Limit(f, "trace-every", program.Range{Least: 1, Most: math.MaxInt, Example: "1000 or 1"})
}

// start creates the file, and makes the volume that is about to be opened sample.
func (t *traceFlags) start(config *client.Config) error {
	if t.path == "" {
		return nil
	}
	var err error
	if t.file, err = output.Begin(t.path); err != nil {
		return program.Usage(fmt.Errorf("--trace: %w", err))
	}
	t.tracer = &trace.Tracer{}
	t.tracer.Start()
	config.Tracer, config.TraceEvery = t.tracer, t.every
	return nil
}

// end writes the file.
func (t *traceFlags) end() error {
	if t.file == nil {
		return nil
	}
	records, lost := t.tracer.Stop()
	f := trace.NewFile(trace.Program{Name: "initiator", Process: os.Getpid()}, records, lost)
	return errors.Join(f.Write(t.file), t.file.Close())
}
