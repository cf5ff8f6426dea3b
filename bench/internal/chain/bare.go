// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/bench/internal/process"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
)

// BareSystem is the name under which runs of the bare chain are reported.
const BareSystem = "bare chain"

// Bare runs the bare chain, the baseline for the real one: the program bench/calibrator.
type Bare struct{ path string }

// FindBare finds the program next to the running one, where "make build-bench" puts both.
func FindBare() (*Bare, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &Bare{path: filepath.Join(filepath.Dir(self), "calibrator")}
	if _, err := os.Stat(b.path); err != nil {
		return nil,
			fmt.Errorf("find the bare chain: %w; build both programs with \"make build-bench\"",
				err)
	}
	return b, nil
}

// Measure runs a workload. The bare chain knows only pattern, block size, depth, the number of
// sessions, and whether the storage is behind TCP or shared memory.
func (b *Bare) Measure(ctx context.Context, w benchsuite.Workload,
	runtime time.Duration) (run benchsuite.Run, err error) {
	directory, err := os.MkdirTemp("", "zc-relay-calibrator")
	if err != nil {
		return run, err
	}
	defer os.RemoveAll(directory)
	pattern := strings.TrimPrefix(string(w.Pattern), "rand")
	output, err := process.Output(ctx, b.path, directory, pattern,
		strconv.Itoa(int(w.BlockSize)), strconv.Itoa(w.QueueDepth), runtime.String(),
		cmp.Or(w.RDMA, "tcp"), strconv.Itoa(w.Sessions))
	if err != nil {
		return run, err
	}
	if err := json.Unmarshal(output, &run); err != nil {
		return run, fmt.Errorf("read the calibrator's result: %w", err)
	}
	return run, nil
}
