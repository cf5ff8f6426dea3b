package main

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// warmup is not measured.
const warmup = 300 * time.Millisecond

// runClient keeps depth requests under way and prints IOPS and latencies.
func runClient(p parameters) error {
	s, _, err := mapShared(&p, true)
	if err != nil {
		return err
	}
	starts := make([]time.Duration, p.depth)
	latencies := make([]time.Duration, 0, 1<<23)
	var message [messageSize]byte
	var sent, received uint64
	epoch := time.Now()
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
	slices.Sort(latencies)
	at := func(quantile float64) float64 {
		return float64(latencies[int(quantile*float64(len(latencies)-1))].Nanoseconds()) / 1000
	}
	iops := float64(measured) / p.duration.Seconds()
	fmt.Printf("%.0f %.1f %.1f %.1f %.1f\n", iops, iops*float64(p.blockSize)/(1<<20), at(0.5), at(0.99), at(0.999))
	return nil
}
