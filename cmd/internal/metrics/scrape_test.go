// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// channelsWithSessions returns idle channels with so many sessions of four queues each.
func channelsWithSessions(channels, sessions int) fakeRelay {
	all := make(fakeRelay, channels)
	address := netip.MustParseAddrPort("10.0.0.5:7470")
	for i := range all {
		id := relay.ChannelID{Device: "03:00.0", Representor: "b1:00.0", Name: fmt.Sprint(i)}
		link := relay.LinkStatus{State: relay.LinkReady}
		c := relay.ChannelStatus{FullName: id.String(), ChannelID: id, Target: address, Link: link,
			Targets:  []relay.TargetStatus{{Address: address, Link: link}},
			Counters: &datapath.CounterSet{}, Sessions: sessions}
		for j := range sessions {
			s := relay.SessionStatus{ID: uint64(j), Counters: &datapath.CounterSet{}}
			for range 4 {
				s.Queues = append(s.Queues, relay.QueueStatus{Transport: "iwarp"})
			}
			c.OpenSessions = append(c.OpenSessions, s)
		}
		all[i] = c
	}
	return all
}

// collectAll scrapes once, without a registry.
func collectAll(collector prometheus.Collector) {
	out := make(chan prometheus.Metric)
	go func() {
		collector.Collect(out)
		close(out)
	}()
	for range out {
	}
}

// A relay has many more sessions than channels, and is scraped all day.
func TestAScrapeAllocatesNothingForASession(t *testing.T) {
	allocations := func(sessions int) float64 {
		collector := NewRelayCollector(channelsWithSessions(1, sessions), Options{})
		return testing.AllocsPerRun(10, func() { collectAll(collector) })
	}
	// Others may allocate meanwhile, but not that often.
	if one, many := allocations(1), allocations(100); many > one+50 {
		t.Errorf("a scrape allocates %v times with 100 sessions, and %v times with one", many, one)
	}
}

func BenchmarkScrapeOf100IdleChannels(b *testing.B) {
	collector := NewRelayCollector(channelsWithSessions(100, 4), Options{})
	b.ReportAllocs()
	for b.Loop() {
		collectAll(collector)
	}
}
