// Package calibrator runs the bare chain that the real one is held against.
package calibrator

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/bench/internal/process"
	"github.com/zc-relay/zc-relay/internal/bench/suite"
)

// System is the name under which its runs are reported.
const System = "bare chain"

// sourcePackage is the calibrator's program.
const sourcePackage = "github.com/zc-relay/zc-relay/bench/calibrator"

// Calibrator is the program, built.
type Calibrator struct{ path string }

// Build builds the program into a directory.
func Build(ctx context.Context, directory string) (*Calibrator, error) {
	c := &Calibrator{path: filepath.Join(directory, "calibrator")}
	_, err := process.Output(ctx, "go", "build", "-o", c.path, sourcePackage)
	return c, err
}

// Measure runs a workload, of which the bare chain knows pattern, block size
// and depth.
func (c *Calibrator) Measure(ctx context.Context, w suite.Workload, runtime time.Duration) (run suite.Run, err error) {
	directory, err := os.MkdirTemp("", "zc-relay-calibrator")
	if err != nil {
		return run, err
	}
	defer os.RemoveAll(directory)
	pattern := strings.TrimPrefix(string(w.Pattern), "rand")
	output, err := process.Output(ctx, c.path, directory, pattern,
		strconv.Itoa(int(w.BlockSize)), strconv.Itoa(w.QueueDepth), runtime.String())
	if err != nil {
		return run, err
	}
	if err := json.Unmarshal(output, &run); err != nil {
		return run, fmt.Errorf("read the calibrator's result: %w", err)
	}
	return run, nil
}
