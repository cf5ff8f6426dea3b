// SPDX-License-Identifier: Apache-2.0

// Package chain runs target, zc-relay and initiator as three processes.
package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/bench/internal/process"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
)

// Config describes a chain.
type Config struct {
	// Programs is the directory of the three programs.
	Programs string
	// Volume is the backend of the target's volume, for instance "memory:1GiB".
	Volume string
	// Poll is the polling mode of all three programs.
	Poll string
	// CRC turns on checksums between relay and target.
	CRC bool
	// Comch is the provider of relay and initiator, and Isolation that of the channel; "" means the
	// default.
	Comch, Isolation string
	// RDMA is the provider between relay and target, or "iwarp+tls"; "" means iwarp.
	RDMA string
	// CollectInterval is the interval of forced garbage collections, 0 for none.
	CollectInterval time.Duration
}

// Chain is a running target and relay.
type Chain struct {
	config    Config
	directory string
	target    *process.Process
	relay     *process.Process
}

// volumeName is the name of the only volume.
const volumeName = "bench"

// startTimeout bounds the start of a program.
const startTimeout = 20 * time.Second

// Start starts target and relay.
func Start(ctx context.Context, config Config) (_ *Chain, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := &Chain{config: config}
	if c.directory, err = os.MkdirTemp("", "zc-relay-bench"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := c.startTarget(ctx); err != nil {
		return nil, err
	}
	return c, c.startRelay(ctx)
}

func (c *Chain) startTarget(ctx context.Context) (err error) {
	command, err := c.daemon("target", "--listen-port", "0", "--address-file", c.addressFile(),
		"--volume", volumeName+"="+c.config.Volume)
	if err != nil {
		return err
	}
	c.target, err = process.Start(c.directory, "target", command...)
	if err != nil {
		return err
	}
	return c.target.Await(ctx, func() bool { return exists(c.addressFile()) })
}

func (c *Chain) startRelay(ctx context.Context) error {
	address, err := os.ReadFile(c.addressFile())
	if err != nil {
		return err
	}
	args := append([]string{"run", "--storage-server", strings.TrimSpace(string(address)),
		"--volume", volumeName, "--isolation", cmp.Or(c.config.Isolation, "direct")}, c.comch()...)
	command, err := c.daemon("zc-relay", args...)
	if err != nil {
		return err
	}
	c.relay, err = process.Start(c.directory, "zc-relay", command...)
	if err != nil {
		return err
	}
	// Wait until the channel exists. Clients would wait by themselves, but the time would count as
	// part of the measurement.
	return c.relay.Await(ctx, func() bool {
		found, _ := filepath.Glob(filepath.Join(c.Directory(), "*", "*", "*"))
		return len(found) > 0
	})
}

func (c *Chain) daemon(name string, args ...string) ([]string, error) {
	command := append(c.config.program(name), args...)
	command = append(command, "--poll", c.config.Poll, "--log-level", "warn", "--rdma-provider",
		cmp.Or(strings.TrimSuffix(c.config.RDMA, "+tls"), "iwarp"))
	if c.config.CRC {
		command = append(command, "--rdma-crc")
	}
	flags, err := c.secure()
	return append(command, flags...), err
}

func (c *Chain) addressFile() string { return filepath.Join(c.directory, "address") }

// Directory returns the directory of the emulated Comch.
func (c *Chain) Directory() string { return filepath.Join(c.directory, "comch") }

// ProcessIDs returns the process ids of target and relay.
func (c *Chain) ProcessIDs() []int { return []int{c.target.ID(), c.relay.ID()} }

// Stop ends relay and target. It returns an error unless both end normally.
func (c *Chain) Stop() error {
	var errs []error
	for _, p := range []*process.Process{c.relay, c.target} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.directory))...)
}

// Bench runs a workload with the initiator.
func (c *Chain) Bench(ctx context.Context, w benchsuite.Workload, warmup,
	runtime time.Duration) (benchsuite.Run, error) {
	output, err := process.Output(ctx, c.bench(w, warmup, runtime)...)
	if err != nil {
		return benchsuite.Run{}, err
	}
	result, err := resultOf(output)
	return result.Run, err
}

// result is the part of a result of initiator bench that this package reads.
type result struct {
	benchsuite.Run
	Operations  uint64 `json:"operations"`
	Interrupted bool   `json:"interrupted"`
}

// resultOf parses the output of initiator bench.
func resultOf(output []byte) (result, error) {
	var report struct {
		Result result `json:"result"`
	}
	if err := json.Unmarshal(output, &report); err != nil {
		return result{}, fmt.Errorf("read the result of initiator bench: %w", err)
	}
	return report.Result, nil
}

func (c *Chain) bench(w benchsuite.Workload, warmup, runtime time.Duration) []string {
	return c.initiator("bench",
		"--rw", string(w.Pattern), "--block-size", size.Bytes(w.BlockSize).String(),
		"--queue-depth", strconv.Itoa(w.QueueDepth),
		"--queues", strconv.Itoa(w.Queues), "--sessions", strconv.Itoa(w.Sessions),
		"--warmup", warmup.String(), "--runtime", runtime.String())
}

// longRuntime is longer than anything measured beside a load.
const longRuntime = time.Hour

// settleTime is the time that a load takes to start.
const settleTime = 300 * time.Millisecond

// Load starts a workload that runs until stop is called. stop fails if the load has ended before.
func (c *Chain) Load(w benchsuite.Workload) (stop func() error, err error) {
	p, err := process.Start(c.directory, "load", c.bench(w, 0, longRuntime)...)
	if err != nil {
		return nil, err
	}
	time.Sleep(settleTime)
	return func() error {
		if err := p.Stop(); err != nil {
			return err
		}
		printed, err := p.Log()
		if err != nil {
			return err
		}
		result, err := resultOf(printed)
		if err != nil {
			return err
		}
		if !result.Interrupted || result.Operations == 0 {
			return fmt.Errorf("the background load ended by itself after %d operations",
				result.Operations)
		}
		return nil
	}, nil
}

// fillBlock is the length of the requests that fill a volume.
const fillBlock = size.MiB

// Fill writes the whole volume once, so that no run has to allocate memory or blocks.
func (c *Chain) Fill(ctx context.Context, length size.Bytes) error {
	_, err := process.Output(ctx, c.initiator("bench", "--rw", string(benchsuite.Write),
		"--block-size", fillBlock.String(), "--queues", "1",
		"--queue-depth", "4",
		"--run-limit-operation-count", strconv.FormatUint(uint64(length/fillBlock), 10))...)
	return err
}

// Verify writes and checks length bytes of the volume.
func (c *Chain) Verify(ctx context.Context, length size.Bytes) (benchsuite.Check, error) {
	output, failure := process.Output(ctx, c.initiator("verify", "--length", length.String(),
		"--queues", "2", "--queue-depth", "32")...)
	var report struct {
		Result struct {
			BlocksChecked uint64 `json:"blocks_checked"`
			FindingCount  uint64 `json:"finding_count"`
		} `json:"result"`
	}
	if err := json.Unmarshal(output, &report); err != nil {
		return benchsuite.Check{},
			errors.Join(failure, fmt.Errorf("read the result of initiator verify: %w", err))
	}
	return benchsuite.Check{
		Name: c.config.String(), Blocks: report.Result.BlocksChecked,
		Problems: report.Result.FindingCount,
	}, failure
}

func (c *Chain) initiator(command string, args ...string) []string {
	return c.client(command, append(args, "--output", "json")...)
}

// Gateway returns the command that serves the volume to NBD clients on a Unix socket.
func (c *Chain) Gateway(socket string) []string { return c.client("nbd", "--socket", socket) }

func (c *Chain) client(command string, args ...string) []string {
	all := append(c.config.program("initiator"), command)
	all = append(append(all, args...), c.comch()...)
	return append(all, "--poll", c.config.Poll, "--log-level", "warn")
}

// comch returns the flags that select the Comch provider. The emulation of libdoca uses the
// directory of the emulated provider.
func (c *Chain) comch() []string {
	return []string{"--comch-provider", cmp.Or(c.config.Comch, "emulated"), "--emulated-dir",
		c.Directory()}
}

// collectVariable is the environment variable that makes the programs force a garbage collection at
// that interval.
const collectVariable = "ZC_RELAY_COLLECT_INTERVAL"

// program returns the beginning of a command line.
func (c Config) program(name string) []string {
	path := filepath.Join(c.Programs, name)
	if c.CollectInterval == 0 {
		return []string{path}
	}
	return []string{"env", collectVariable + "=" + c.CollectInterval.String(), path}
}

// String describes the configuration of a chain.
func (c Config) String() string {
	kind, _, _ := strings.Cut(c.Volume, ":")
	text := c.Poll + ", " + kind
	if strings.HasSuffix(c.Volume, ",direct") {
		text += " direct"
	}
	if c.CRC {
		text += ", crc"
	}
	if c.RDMA != "" {
		text += ", " + c.RDMA
	}
	if c.Comch != "" {
		text += ", comch " + c.Comch
	}
	if c.Isolation != "" {
		text += ", " + c.Isolation
	}
	if c.CollectInterval > 0 {
		text += ", garbage collections every " + c.CollectInterval.String()
	}
	return text
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
