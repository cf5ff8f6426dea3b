// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/zc-relay/zc-relay/bench/internal/process"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
)

// IPerf3 is the name of the peer that is one loopback TCP stream.
const IPerf3 = "iperf3, one TCP stream"

// startTimeout bounds the start of a server.
const startTimeout = 10 * time.Second

// iperf3 is one TCP stream between two processes: an upper bound of throughput, and so a baseline
// for long requests only. It uses Reno, as pkg/rdma/iwarp does within a machine: BBR would pace it.
func iperf3() Peer {
	return Peer{
		Name: IPerf3, Programs: []string{"iperf3"}, Packages: []string{"iperf3"},
		Knows:   func(w benchsuite.Workload) bool { return w.BlockSize >= 64<<10 },
		Measure: measureIPerf3,
	}
}

func measureIPerf3(ctx context.Context, j *Job) (benchsuite.Run, error) {
	var output []byte
	err := withServer(ctx, j, "iperf3", func(port string) []string {
		return []string{"iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port}
	}, func(port string) (err error) {
		seconds := strconv.Itoa(int(math.Ceil(j.Runtime.Seconds())))
		output, err = process.Output(ctx, "iperf3", "-c", "127.0.0.1", "-p", port, "-t", seconds,
			"-C", "reno", "-O", "1", "-l", strconv.Itoa(int(j.Workload.BlockSize)), "-J")
		return err
	})
	if err != nil {
		return benchsuite.Run{}, err
	}
	return parseIPerf3(output, j.Workload.BlockSize)
}

func parseIPerf3(output []byte, blockSize uint32) (benchsuite.Run, error) {
	var result struct {
		End struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(output, &result); err != nil {
		return benchsuite.Run{}, fmt.Errorf("read the result of iperf3: %w", err)
	}
	bytes := result.End.Received.BitsPerSecond / 8
	if bytes <= 0 {
		return benchsuite.Run{}, errors.New("iperf3 reports no throughput")
	}
	return benchsuite.Run{IOPS: bytes / float64(blockSize), BytesPerSecond: uint64(bytes)}, nil
}

// withServer calls use while a server listens on a port.
func withServer(ctx context.Context, j *Job, name string, command func(port string) []string,
	use func(port string) error) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	server, err := process.Start(j.Directory, name, command(port)...)
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	defer server.Quit()
	if err := server.Await(starting, func() bool { return listens(port) }); err != nil {
		return err
	}
	return use(port)
}
