package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
)

// warmup is the unmeasured time at the beginning.
const warmup = 300 * time.Millisecond

// runClient keeps depth requests outstanding and prints its measurements.
func runClient(p parameters) error {
	s, _, err := mapShared(&p, true)
	if err != nil {
		return err
	}
	starts := make([]time.Duration, p.depth)
	latencies := make([]time.Duration, 0, 1<<23)
	var message [messageSize]byte
	var sent, received uint64
	send := func(slot uint32, now time.Duration) {
		starts[slot] = now
		binary.BigEndian.PutUint32(message[8:], slot)
		binary.BigEndian.PutUint64(message[32:], sent*7919)
		s.requests.put(sent, &message)
		sent++
	}
	for slot := range p.depth {
		send(uint32(slot), 0)
	}
	for !s.answers.get(received, &message) { // the other processes are still starting
		yield()
	}
	epoch := time.Now()
	measured := 0
	for now := time.Duration(0); now < warmup+p.duration; {
		if !s.answers.get(received, &message) {
			yield()
			continue
		}
		now = time.Since(epoch)
		for {
			received++
			slot := binary.BigEndian.Uint32(message[8:])
			if now > warmup {
				measured++
				if len(latencies) < cap(latencies) {
					latencies = append(latencies, now-starts[slot])
				}
			}
			send(slot, now)
			if !s.answers.get(received, &message) {
				break
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(result(p, measured, latencies))
}

// result summarizes a run.
func result(p parameters, measured int, latencies []time.Duration) benchsuite.Run {
	iops := float64(measured) / p.duration.Seconds()
	run := benchsuite.Run{IOPS: iops, BytesPerSecond: uint64(iops * float64(p.blockSize))}
	if len(latencies) == 0 {
		return run
	}
	slices.Sort(latencies)
	at := func(quantile float64) *int64 {
		return new(latencies[int(quantile*float64(len(latencies)-1))].Nanoseconds())
	}
	run.LatencyNs = &benchsuite.Latency{
		Min: at(0), P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), P9999: at(0.9999),
		Max: at(1),
	}
	return run
}
