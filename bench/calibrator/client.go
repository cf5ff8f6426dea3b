// SPDX-License-Identifier: Apache-2.0

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

// blockStep is the distance between blocks that are requested one after another by all sessions
// together: a prime, so that all blocks have their turn, and far more than what is prefetched.
const blockStep = 7919

// runClient keeps depth requests outstanding and prints its measurements.
func runClient(p parameters) error {
	clients := make([]client, p.sessions)
	var message [messageSize]byte
	for i := range clients {
		c := &clients[i]
		c.number, c.step = uint64(i)*blockStep, uint64(p.sessions)*blockStep
		var err error
		if c.shared, _, err = mapShared(&p, i, true); err != nil {
			return err
		}
		c.starts = make([]time.Duration, p.depth)
		for slot := range p.depth {
			c.send(&message, uint32(slot), 0)
		}
	}
	for i := range clients { // the other processes are still starting
		for !clients[i].shared.answers.get(0, &message) {
			yield()
		}
	}
	epoch := time.Now()
	measured := 0
	latencies := make([]time.Duration, 0, 1<<23)
	for now := time.Duration(0); now < warmup+p.duration; {
		found := false
		for i := range clients {
			c := &clients[i]
			if !c.shared.answers.get(c.received, &message) {
				continue
			}
			found = true
			now = time.Since(epoch)
			for {
				c.received++
				slot := binary.BigEndian.Uint32(message[8:])
				if now > warmup {
					measured++
					if len(latencies) < cap(latencies) {
						latencies = append(latencies, now-c.starts[slot])
					}
				}
				c.send(&message, slot, now)
				if !c.shared.answers.get(c.received, &message) {
					break
				}
			}
		}
		if !found {
			yield()
		}
	}
	return json.NewEncoder(os.Stdout).Encode(result(p, measured, latencies))
}

// client is a session as the client sees it.
type client struct {
	shared         *shared
	starts         []time.Duration // of the request in each slot
	sent, received uint64
	number, step   uint64 // of the next request's block, and from one to the next
}

// send sends a request in a slot. It reuses message for it.
func (c *client) send(message *[messageSize]byte, slot uint32, now time.Duration) {
	c.starts[slot] = now
	binary.BigEndian.PutUint32(message[8:], slot)
	binary.BigEndian.PutUint64(message[32:], c.number)
	c.number += c.step
	c.shared.requests.put(c.sent, message)
	c.sent++
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
