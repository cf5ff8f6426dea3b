// SPDX-License-Identifier: Apache-2.0

// Package fio runs fio and reads its results.
package fio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/zc-relay/zc-relay/bench/internal/process"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
)

// Job is the part of fio's job description that the workload does not contain.
type Job struct {
	Engine string
	// Arguments name the object that the engine works on.
	Arguments []string
	// Size is the size of that object.
	Size    size.Bytes
	Warmup  time.Duration
	Runtime time.Duration
}

// Measure runs a workload.
func (j *Job) Measure(ctx context.Context, w benchsuite.Workload) (benchsuite.Run, error) {
	directory, err := os.MkdirTemp("", "zc-relay-fio")
	if err != nil {
		return benchsuite.Run{}, err
	}
	defer os.RemoveAll(directory)
	// Engines print messages on standard output before the document.
	document := filepath.Join(directory, "result.json")
	command := []string{
		"fio", "--name=bench", "--output-format=json", "--output=" + document,
		"--ioengine=" + j.Engine, "--rw=" + string(w.Pattern),
		"--bs=" + strconv.Itoa(int(w.BlockSize)), "--iodepth=" + strconv.Itoa(w.QueueDepth),
		"--size=" + strconv.FormatUint(uint64(j.Size), 10),
		"--time_based", "--runtime=" + milliseconds(j.Runtime),
		"--ramp_time=" + milliseconds(j.Warmup),
		"--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:90:99:99.9:99.99",
		"--randrepeat=0", "--norandommap",
		// One process, with one connection, for each queue; their results are added up.
		"--numjobs=" + strconv.Itoa(w.Queues), "--group_reporting=1",
	}
	if _, err := process.Output(ctx, append(command, j.Arguments...)...); err != nil {
		return benchsuite.Run{}, err
	}
	output, err := os.ReadFile(document)
	if err != nil {
		return benchsuite.Run{}, err
	}
	return parse(output)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// result is the part of fio's document that is used.
type result struct {
	Jobs []struct {
		Error int       `json:"error"`
		Read  direction `json:"read"`
		Write direction `json:"write"`
	} `json:"jobs"`
}

type direction struct {
	TotalIOs       uint64  `json:"total_ios"`
	IOPS           float64 `json:"iops"`
	BytesPerSecond uint64  `json:"bw_bytes"`
	Latency        struct {
		Min        int64            `json:"min"`
		Max        int64            `json:"max"`
		Mean       float64          `json:"mean"`
		Percentile map[string]int64 `json:"percentile"`
	} `json:"lat_ns"`
}

// parse parses fio's document of one job in one direction.
func parse(output []byte) (benchsuite.Run, error) {
	var r result
	if err := json.Unmarshal(output, &r); err != nil {
		return benchsuite.Run{}, fmt.Errorf("read the result of fio: %w", err)
	}
	if len(r.Jobs) != 1 {
		return benchsuite.Run{}, fmt.Errorf("fio reports %d jobs instead of one", len(r.Jobs))
	}
	job := &r.Jobs[0]
	if job.Error != 0 {
		return benchsuite.Run{}, fmt.Errorf("fio reports error %d", job.Error)
	}
	d := &job.Read
	if job.Write.TotalIOs > 0 {
		d = &job.Write
	}
	if d.TotalIOs == 0 {
		return benchsuite.Run{}, errors.New("fio reports no IO")
	}
	percentile := func(name string) *int64 {
		if ns, ok := d.Latency.Percentile[name]; ok {
			return &ns
		}
		return nil
	}
	return benchsuite.Run{IOPS: d.IOPS, BytesPerSecond: d.BytesPerSecond,
		LatencyNs: &benchsuite.Latency{
			Min: &d.Latency.Min, Mean: new(int64(d.Latency.Mean)), Max: &d.Latency.Max,
			P50: percentile("50.000000"), P90: percentile("90.000000"),
			P99:  percentile("99.000000"),
			P999: percentile("99.900000"), P9999: percentile("99.990000"),
		}}, nil
}
