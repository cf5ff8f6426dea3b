// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/bench/internal/process"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
)

// The programs in this file stop after a number of messages, not after a time. A short run
// determines the number.
const (
	probeMessages = 2000
	mostMessages  = 100_000_000
)

// ucx is ucx_perftest over one of UCX's transports, "tcp" or "sm" (shared memory). At depth 1 it
// runs ucp_get, which is a read, and otherwise a stream of messages with the depth as the number
// outstanding.
func ucx(transport string) Peer {
	return Peer{
		Name: "ucx_perftest " + transport, Programs: []string{"ucx_perftest"},
		Packages: []string{"ucx-utils"},
		Knows: func(w benchsuite.Workload) bool {
			return w.Pattern == benchsuite.RandomRead && w.Queues == 1 && w.Sessions == 1
		},
		Measure: func(ctx context.Context, j *Job) (benchsuite.Run, error) {
			probe, err := measureUCX(ctx, j, transport, probeMessages)
			if err != nil {
				return benchsuite.Run{}, err
			}
			return measureUCX(ctx, j, transport, messagesFor(j, probe.IOPS))
		},
	}
}

// messagesFor returns the number of messages for a run of the given duration.
func messagesFor(j *Job, perSecond float64) int {
	return int(min(max(perSecond*j.Runtime.Seconds(), probeMessages), mostMessages))
}

func measureUCX(ctx context.Context, j *Job, transport string,
	messages int) (benchsuite.Run, error) {
	program := []string{"env", "UCX_TLS=" + transport + ",self", "ucx_perftest"}
	test := []string{"-t", "ucp_get"}
	if depth := j.Workload.QueueDepth; depth > 1 {
		test = []string{"-t", "tag_bw", "-O", strconv.Itoa(depth)}
	}
	var output []byte
	err := withServer(ctx, j, "ucx_perftest", func(port string) []string {
		return append(program[:3:3], "-p", port)
	}, func(port string) (err error) {
		line := append(program[:3:3], "127.0.0.1", "-p", port, "-f", "-s",
			strconv.Itoa(int(j.Workload.BlockSize)),
			"-n", strconv.Itoa(messages), "-w", strconv.Itoa(min(messages/10, 1000)))
		output, err = process.Output(ctx, append(line, test...)...)
		return err
	})
	if err != nil {
		return benchsuite.Run{}, err
	}
	return parseUCX(output, j.Workload.BlockSize)
}

// parseUCX parses the last line of ucx_perftest: iterations, three latencies in µs (median,
// average, overall), two throughputs, two rates (average, overall).
func parseUCX(output []byte, blockSize uint32) (benchsuite.Run, error) {
	fields := lastFields(output)
	if len(fields) != 8 {
		return benchsuite.Run{}, fmt.Errorf("ucx_perftest ends with %q instead of eight numbers",
			strings.Join(fields, " "))
	}
	median, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return benchsuite.Run{}, fmt.Errorf("read the result of ucx_perftest: %w", err)
	}
	rate, err := strconv.ParseFloat(fields[7], 64)
	if err != nil {
		return benchsuite.Run{}, fmt.Errorf("read the result of ucx_perftest: %w", err)
	}
	return benchsuite.Run{
		IOPS: rate, BytesPerSecond: uint64(rate * float64(blockSize)),
		LatencyNs: &benchsuite.Latency{P50: new(int64(median * 1000))},
	}, nil
}

// fiPingpong is fi_pingpong of libfabric over TCP: one message in each direction, both of the block
// size.
func fiPingpong() Peer {
	return Peer{
		Name: "fi_pingpong tcp", Programs: []string{"fi_pingpong"},
		Packages: []string{"libfabric-bin"},
		Knows: func(w benchsuite.Workload) bool {
			return w.Pattern == benchsuite.RandomRead && w.QueueDepth == 1 && w.Queues == 1 &&
				w.Sessions == 1
		},
		Measure: func(ctx context.Context, j *Job) (benchsuite.Run, error) {
			probe, err := measurePingpong(ctx, j, probeMessages)
			if err != nil {
				return benchsuite.Run{}, err
			}
			return measurePingpong(ctx, j, messagesFor(j, probe.IOPS))
		},
	}
}

func measurePingpong(ctx context.Context, j *Job, messages int) (benchsuite.Run, error) {
	line := []string{"fi_pingpong", "-p", "tcp", "-e", "msg", "-S",
		strconv.Itoa(int(j.Workload.BlockSize)), "-I", strconv.Itoa(messages)}
	var output []byte
	err := withServer(ctx, j, "fi_pingpong", func(port string) []string {
		return append(line[:len(line):len(line)], "-B", port)
	}, func(port string) (err error) {
		output, err = process.Output(ctx, append(line[:len(line):len(line)], "-P", port,
			"127.0.0.1")...)
		return err
	})
	if err != nil {
		return benchsuite.Run{}, err
	}
	return parsePingpong(output, j.Workload.BlockSize)
}

// parsePingpong parses the last line of fi_pingpong: bytes, messages sent and acknowledged, total,
// time, MB/s, µs one way, millions of messages per second.
func parsePingpong(output []byte, blockSize uint32) (benchsuite.Run, error) {
	fields := lastFields(output)
	if len(fields) != 8 {
		return benchsuite.Run{}, fmt.Errorf("fi_pingpong ends with %q instead of eight numbers",
			strings.Join(fields, " "))
	}
	oneWay, err := strconv.ParseFloat(fields[6], 64)
	if err != nil || oneWay <= 0 {
		return benchsuite.Run{}, fmt.Errorf("fi_pingpong reports %q µs", fields[6])
	}
	iops := 1e6 / (2 * oneWay)
	return benchsuite.Run{
		IOPS: iops, BytesPerSecond: uint64(iops * float64(blockSize)),
		LatencyNs: &benchsuite.Latency{Mean: new(int64(2 * oneWay * 1000))},
	}, nil
}

func lastFields(output []byte) []string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return strings.Fields(lines[len(lines)-1])
}
