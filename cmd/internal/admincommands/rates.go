// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"strconv"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// counts are what all operations of some queues add up to.
type counts struct {
	ios, bytes, sumNs, failed uint64
	inFlight                  int64
	p99                       *uint64 // the highest of all operations, in ns; nil without IOs
}

func (c *counts) add(queues []datapath.QueueStatus) {
	for i := range queues {
		c.inFlight += queues[i].InFlight
		c.addOperations(queues[i].Operations)
	}
}

func (c *counts) addOperations(operations map[string]datapath.Operation) {
	for _, o := range operations {
		c.ios += o.Succeeded
		for _, n := range o.Failed {
			c.ios += n
			c.failed += n
		}
		c.bytes += o.Bytes
		c.sumNs += o.Latency.Sum
		c.includeP99(o.Latency.P99)
	}
}

func (c *counts) includeP99(ns *uint64) {
	if ns != nil && (c.p99 == nil || *ns > *c.p99) {
		c.p99 = ns
	}
}

// meanNs returns the mean latency, nil without IOs.
func (c *counts) meanNs() *uint64 {
	if c.ios == 0 {
		return nil
	}
	return new(c.sumNs / c.ios)
}

// countsOfSession returns what a session of a relay has done so far.
func countsOfSession(s *relay.SessionStatus) counts {
	var c counts
	c.addOperations(s.Operations)
	for _, q := range s.Queues {
		c.inFlight += int64(q.InFlight)
	}
	return c
}

// sessionCounts returns what the sessions of a relay have done so far, by their numbers.
func sessionCounts(d *adminserver.Document) map[uint64]counts {
	all := make(map[uint64]counts)
	if d == nil {
		return all
	}
	for i := range d.Channels {
		for j := range d.Channels[i].OpenSessions {
			s := &d.Channels[i].OpenSessions[j]
			all[s.ID] = countsOfSession(s)
		}
	}
	return all
}

// owner is a channel of a relay or a volume of a target.
type owner struct {
	name, state string
	sessions    string
	counts      counts
	queues      map[int]counts // by index, of all sessions together
}

// add counts queues.
func (o *owner) add(queues []datapath.QueueStatus) {
	o.counts.add(queues)
	o.queues = make(map[int]counts)
	for i := range queues {
		var c counts
		c.add(queues[i : i+1])
		o.queues[queues[i].Index] = c
	}
}

func ownersOf(d *adminserver.Document) []owner {
	var owners []owner
	for i := range d.Channels {
		c := &d.Channels[i]
		o := owner{name: c.FullName, state: string(c.Link.State),
			sessions: strconv.Itoa(c.Sessions)}
		o.add(c.Queues)
		owners = append(owners, o)
	}
	for i := range d.Volumes {
		o := owner{name: d.Volumes[i].Name, state: string(d.Volumes[i].State), sessions: "-"}
		o.add(d.Volumes[i].Queues)
		owners = append(owners, o)
	}
	return owners
}

// rates are differences between two readings per second.
type rates struct {
	ios, bytes, failed float64
	latency            time.Duration // mean; 0 without IOs
	inFlight           int64
}

// ratesBetween returns the rates between two readings of the same daemon. Counts that have fallen,
// because a channel was removed and added again, count as none.
func ratesBetween(now, before counts, seconds float64) rates {
	r := rates{inFlight: now.inFlight}
	if seconds <= 0 {
		return r
	}
	ios := grown(now.ios, before.ios)
	r.ios, r.bytes = ios/seconds, grown(now.bytes, before.bytes)/seconds
	r.failed = grown(now.failed, before.failed) / seconds
	if ios > 0 {
		r.latency = time.Duration(grown(now.sumNs, before.sumNs) / ios)
	}
	return r
}

// grown returns by how much a count has grown.
func grown(now, before uint64) float64 { return float64(now - min(now, before)) }
