// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// gatherer is a connection beside a model of what it must produce.
type gatherer struct {
	*rapid.T
	depth     int
	device    *loopDevice // whose memory holds the messages
	out       connection
	next      uint64 // number of the next message, which is its content
	seen      uint64 // number of the next message to be posted
	transfers int    // gathered
	posted    int    // of them
	ids       []uint64
	counts    []int // work requests of the posts that have not completed
}

func newGatherer(t *rapid.T, depth int) *gatherer {
	g := &gatherer{T: t, depth: depth, device: newLoopDevice()}
	const before = 3 // messages of others
	end := g.out.layOutSends(before, depth)
	size := end - before
	domain, _ := g.device.NewProtectionDomain()
	messages, err := newMessageMemory(domain, before+int(size))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = messages.close() })
	g.out.messages = messages
	if g.out.room() != uint32(2*depth+spareMessages) || g.out.room() > size {
		t.Fatalf("there is room for %d messages at depth %d, in a ring of %d", g.out.room(), depth,
			size)
	}
	return g
}

// gather adds a message, maybe with a transfer ahead of it.
func (g *gatherer) gather() {
	if g.out.room() == 0 {
		return
	}
	if length := rapid.SampledFrom([]uint32{0, 0, 512, 4096, 128 << 10}).Draw(g.T,
		"transfer"); length > 0 {
		g.transfers++
		r := g.out.addTransfer(length)
		r.Opcode, r.ID, r.Local.Length = rdma.OpWrite, uint64(g.next), length
	}
	binary.BigEndian.PutUint64(g.out.addMessage()[:], g.next)
	g.next++
	if g.out.isFull() {
		g.post()
	}
}

// post checks and forgets what has been gathered.
func (g *gatherer) post() {
	requests := g.out.finish()
	if len(requests) > requestsPerPost {
		g.Fatalf("%d requests in one post", len(requests))
	}
	ahead := uint32(0)
	for i := range requests {
		r := &requests[i]
		if last := i == len(requests)-1; r.Silent == last {
			g.Fatalf("request %d of %d has Silent %v", i, len(requests), r.Silent)
		}
		if r.Opcode == rdma.OpWrite {
			if r.ID < g.seen {
				g.Fatalf("the data of message %d follows message %d", r.ID, g.seen-1)
			}
			ahead += r.Local.Length
			g.posted++
			continue
		}
		if ahead >= bytesPerSend+128<<10 {
			g.Fatalf("%d bytes go ahead of one Send", ahead)
		}
		ahead = 0
		g.checkSend(r)
	}
	if g.seen != g.next || g.posted != g.transfers {
		g.Fatalf("%d of %d messages and %d of %d transfers are posted", g.seen, g.next, g.posted,
			g.transfers)
	}
	if len(requests) > 0 {
		g.ids = append(g.ids, requests[len(requests)-1].ID)
		g.counts = append(g.counts, len(requests))
	}
	if outstanding := sum(g.counts); outstanding > sendQueueDepth(g.depth) {
		g.Fatalf("%d work requests are outstanding at depth %d, want at most %d", outstanding,
			g.depth, sendQueueDepth(g.depth))
	}
}

func sum(counts []int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}

func (g *gatherer) checkSend(r *rdma.SendRequest) {
	if r.Opcode != rdma.OpSend || r.Local.Length%iomsg.Size != 0 || r.Local.Length == 0 ||
		r.Local.Length > g.out.limit*iomsg.Size {
		g.Fatalf("%v of %d bytes, at most %d messages", r.Opcode, r.Local.Length, g.out.limit)
	}
	for b := g.device.bytes(r.Local); len(b) > 0; b = b[iomsg.Size:] {
		if got := binary.BigEndian.Uint64(b); got != g.seen {
			g.Fatalf("message %d is posted instead of %d", got, g.seen)
		}
		g.seen++
	}
}

// complete completes the oldest post.
func (g *gatherer) complete() {
	if len(g.ids) == 0 {
		return
	}
	kind, position := splitWorkID(g.ids[0])
	if kind != messageWork {
		g.Fatalf("a post completes as kind %d", kind)
	}
	g.ids, g.counts = g.ids[1:], g.counts[1:]
	g.out.release(position)
	if len(g.ids) == 0 && g.out.room() != g.out.capacity-uint32(g.next-g.seen) {
		g.Fatalf("room for %d messages when all have been sent", g.out.room())
	}
}

func TestEveryMessageTravelsOnceInOrderAndBehindItsData(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		g := newGatherer(t, rapid.IntRange(1, 40).Draw(t, "depth"))
		// Positions count up forever: start where they wrap around, too.
		start := rapid.SampledFrom([]uint32{0, -g.out.mask - 1}).Draw(t, "start")
		g.out.completed, g.out.sent, g.out.tail = start, start, start
		t.Repeat(map[string]func(*rapid.T){
			"gather":   func(*rapid.T) { g.gather() },
			"post":     func(*rapid.T) { g.post() },
			"complete": func(*rapid.T) { g.complete() },
			"hello": func(t *rapid.T) {
				g.post()
				g.out.limit = rapid.Uint32Range(1, messagesPerSend).Draw(t, "limit")
			},
		})
	})
}

// sendSizes lists Send sizes in bytes that a peer may announce, and how many
// messages a Send to it may then carry.
var sendSizes = []struct{ accepts, messages uint32 }{
	{0, 1}, {1, 1}, {iomsg.Size, 1}, {2*iomsg.Size - 1, 1}, {3 * iomsg.Size, 3},
	{messagesPerSend * iomsg.Size, messagesPerSend}, {1 << 31, messagesPerSend},
}

// together runs do on a worker's thread, between two polls.
func together(t *testing.T, w *Worker, do func()) {
	t.Helper()
	if err := w.do(testContext(t), do); err != nil {
		t.Fatal(err)
	}
}

func TestRequestsShareSendsUpToTheSizeThatTheTargetAccepts(t *testing.T) {
	for _, c := range sendSizes {
		t.Run(fmt.Sprintf("%d bytes", c.accepts), func(t *testing.T) {
			r := newRelayRigWith(t, relayRigOptions{accepts: c.accepts})
			r.start()
			hellos := r.target.sends[iomsg.DataConnection].Load()
			together(t, r.lane.worker, func() {
				for i := range uint64(testDepth) {
					r.client.send(readRequest(i))
				}
			})
			responses := make([]*iomsg.Message, 0, testDepth)
			for i := range uint64(testDepth) {
				m := r.target.receive(iomsg.DataConnection)
				if m.UserData != i || m.Type != iomsg.Read {
					t.Errorf("request %d arrives as %+v", i, m)
				}
				m.Type = iomsg.Result
				responses = append(responses, &m)
			}
			// The end of the message ring ends a Send, too.
			sends := uint32(r.target.sends[iomsg.DataConnection].Load() - hellos)
			if want := (testDepth + c.messages - 1) / c.messages; sends != want && sends != want+1 {
				t.Errorf("%d requests came in %d Sends, want %d", testDepth, sends, want)
			}
			r.target.send(iomsg.DataConnection, responses...)
			for i := range uint64(testDepth) {
				if m := r.response(); m.UserData != i || m.Result != status.Success {
					t.Errorf("response %d is %+v", i, m)
				}
			}
		})
	}
}

func TestResponsesShareSendsUpToTheSizeThatTheRelayAccepts(t *testing.T) {
	for _, c := range sendSizes {
		t.Run(fmt.Sprintf("%d bytes", c.accepts), func(t *testing.T) {
			r := makeTargetRig(t, true, c.accepts)
			hellos := r.relay.sends[iomsg.DataConnection].Load()
			r.volume.queue.hold() // so that all are done together
			requests := make([]*iomsg.Message, testDepth)
			for i := range requests {
				offset := uint64(i) * testBlockSize
				requests[i] = &iomsg.Message{
					Type: iomsg.Read, UserData: uint64(i), Slot: uint32(i), IOSize: testBlockSize,
					StorageOffset: offset, RequesterOffset: offset,
				}
			}
			r.relay.send(iomsg.DataConnection, requests...)
			awaitCounts(t, &r.counters,
				func(q *QueueCounts) bool { return q.InFlight == testDepth })
			r.volume.queue.release()
			for range testDepth {
				m := r.relay.receive(iomsg.DataConnection)
				if m.Type != iomsg.Result || m.Result != status.Success {
					t.Errorf("completed with %+v", m)
				}
				if got := r.client[m.RequesterOffset]; got != byte(m.UserData) {
					t.Errorf("block %d in the client's memory begins with %d when the response arrives",
						m.UserData, got)
				}
			}
			sends := uint32(r.relay.sends[iomsg.DataConnection].Load() - hellos)
			if want := (testDepth + c.messages - 1) / c.messages; sends != want && sends != want+1 {
				t.Errorf("%d responses came in %d Sends, want %d", testDepth, sends, want)
			}
		})
	}
}

func TestASendEndsWhenEnoughDataTravelsAheadOfIt(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{staging: true, accepts: messagesPerSend * iomsg.Size})
	r.start()
	hellos := r.target.sends[iomsg.DataConnection].Load()
	const requests = 4
	together(t, r.lane.worker, func() {
		for i := range uint64(requests) {
			r.client.send(&iomsg.Message{Type: iomsg.Write, UserData: i, IOSize: bytesPerSend / 2,
				RequesterOffset: i * bytesPerSend})
		}
	})
	for range requests {
		r.target.receive(iomsg.DataConnection)
	}
	if sends := r.target.sends[iomsg.DataConnection].Load() - hellos; sends != requests/2 {
		t.Errorf("%d requests with %d bytes ahead of each came in %d Sends, want %d", requests,
			bytesPerSend/2, sends, requests/2)
	}
}

func TestAPeerChoosesTheSizeOfSendsWithinBounds(t *testing.T) {
	for size, want := range map[uint32]uint32{
		0: 1, 1: 1, iomsg.Size: 1, 3*iomsg.Size + 1: 3,
		messagesPerSend * iomsg.Size:       messagesPerSend,
		(messagesPerSend + 1) * iomsg.Size: messagesPerSend, 1<<32 - 1: messagesPerSend,
	} {
		var c connection
		c.receiveHello(&iomsg.Message{IOSize: size})
		if c.limit != want {
			t.Errorf("a hello that announces %d bytes allows %d messages in a Send, want %d", size,
				c.limit, want)
		}
	}
}

func TestSendsOfPartialMessagesFailTheLane(t *testing.T) {
	for _, bytes := range []int{0, 1, iomsg.Size - 1, iomsg.Size + 1, 2*iomsg.Size - 32} {
		t.Run(fmt.Sprintf("%d bytes", bytes), func(t *testing.T) {
			relay, target := newRelayRig(t), newTargetRig(t)
			relay.start()
			relay.target.sendBytes(iomsg.DataConnection, make([]byte, bytes))
			relay.expectFailure(status.InvalidValue)
			target.relay.sendBytes(iomsg.DataConnection, make([]byte, bytes))
			target.expectFailure(status.InvalidValue)
		})
	}
}

func TestMessagesBehindABadOneInASendAreIgnored(t *testing.T) {
	target := newTargetRig(t)
	read := iomsg.Message{Type: iomsg.Read, IOSize: testBlockSize, Slot: 1}
	bad := read
	bad.Slot = testDepth
	target.relay.send(iomsg.DataConnection, &bad, &read)
	target.expectFailure(status.Unexpected)
	if n := target.lane.InFlight(); n != 0 {
		t.Errorf("%d requests are in flight", n)
	}

	relay := newRelayRig(t)
	relay.start()
	relay.client.send(readRequest(1))
	response := relay.target.receive(iomsg.DataConnection)
	response.Type = iomsg.Result
	wrong := response
	wrong.Generation++
	relay.target.send(iomsg.DataConnection, &wrong, &response)
	relay.expectFailure(status.Unexpected)
	select {
	case m := <-relay.client.producer.responses:
		t.Errorf("the client received %x", m)
	default:
	}
}

func TestARelayReadsNoRequestsWhileItsSendsDoNotComplete(t *testing.T) {
	const depth = 4
	r := newForwardRig(t, depth)
	r.queue.withhold = true
	completed := 0
	turn := func() {
		r.worker.engine.Progress()
		completed += r.collect()
	}
	submitted := 0
	for submitted-completed < depth && submitted < 100 {
		r.submit(1)
		submitted++
		for range 4 {
			turn()
		}
	}
	// Requests complete until all that the client may send, and stop, would not fit any more.
	if want := int(sendCapacity(depth)) - depth; completed != want {
		t.Fatalf("%d requests completed while no Send completed, want %d", completed, want)
	}
	if !(relayConsumerWaiter{r.lane}).Arm() || r.lane.consumerArmed {
		t.Error("the lane does not sleep although it accepts no requests")
	}
	r.queue.deliver()
	for range 100 {
		turn()
	}
	if completed != submitted {
		t.Errorf("%d of %d requests completed after the Sends had completed", completed, submitted)
	}
}

// stalledConnection keeps work requests, up to its capacity, until it is opened.
type stalledConnection struct {
	rdma.Connection
	kept     []rdma.SendRequest
	capacity int
	open     bool
}

func (c *stalledConnection) PostSend(requests []rdma.SendRequest) error {
	if c.open {
		return c.Connection.PostSend(requests)
	}
	if len(c.kept)+len(requests) > c.capacity {
		return status.Full
	}
	c.kept = append(c.kept, requests...)
	return nil
}

// stall makes a connection of the lane keep its work requests from now on.
func (r *targetRig) stall(role iomsg.ConnectionRole) *stalledConnection {
	r.t.Helper()
	stalled := &stalledConnection{capacity: sendQueueDepth(testDepth)}
	c := &r.lane.connections[role]
	testkit.Eventually(r.t, "the hello has been sent", func() (sent bool) {
		together(r.t, r.lane.worker, func() {
			if sent = c.pending() == 0; sent {
				stalled.Connection, c.rdma = c.rdma, stalled
			}
		})
		return sent
	})
	return stalled
}

// resume posts what a stalled connection has kept.
func (r *targetRig) resume(stalled *stalledConnection) {
	r.t.Helper()
	together(r.t, r.lane.worker, func() {
		stalled.open = true
		if err := stalled.PostSend(stalled.kept); err != nil {
			r.t.Error(err)
		}
		stalled.Flush()
	})
}

func TestRequestsWaitWhileTheTargetsResponsesAreNotSent(t *testing.T) {
	r := newTargetRig(t)
	stalled := r.stall(iomsg.DataConnection)
	// Requests come one by one, and each slot is reused once its request completes.
	total := uint64(sendCapacity(testDepth)) + 2
	for i := range total {
		r.relay.send(iomsg.DataConnection, &iomsg.Message{
			Type: iomsg.Read, UserData: i, Slot: uint32(i % testDepth), IOSize: testBlockSize,
			RequesterOffset: i % testDepth * testBlockSize,
		})
		awaitCounts(t, &r.counters, func(q *QueueCounts) bool {
			return q.IO(iomsg.OpRead, status.Success)+q.BackPressure(NoResponseRoom) == i+1
		})
	}
	if n := r.counters.Queues()[0].BackPressure(NoResponseRoom); n == 0 || n > testDepth {
		t.Errorf("%d of %d requests had to wait", n, total)
	}
	r.resume(stalled)
	for i := range total {
		if m := r.relay.receive(iomsg.DataConnection); m.UserData != i ||
			m.Result != status.Success {
			t.Errorf("response %d is %+v", i, m)
		}
	}
	select {
	case err := <-r.failure:
		t.Error(err)
	default:
	}
}

func TestASecondStopFailsTheLane(t *testing.T) {
	r := newTargetRig(t)
	r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Stop})
	if m := r.relay.receive(iomsg.ControlConnection); m.Type != iomsg.Stop {
		t.Errorf("the target returned %+v instead of stop", m)
	}
	r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Stop})
	r.expectFailure(status.Unexpected)
}

func TestAStalledTargetKeepsRoomForStop(t *testing.T) {
	r := newTargetRig(t)
	stalled := r.stall(iomsg.ControlConnection)
	// The last request has to wait, because its response would take the room for stop.
	total := uint64(sendCapacity(testDepth))
	for i := range total {
		r.relay.send(iomsg.ControlConnection,
			&iomsg.Message{Type: iomsg.Flush, UserData: i, Slot: uint32(i % testDepth)})
		awaitCounts(t, &r.counters, func(q *QueueCounts) bool {
			return q.IO(iomsg.OpFlush, status.Success)+q.BackPressure(NoResponseRoom) == i+1
		})
	}
	if n := r.counters.Queues()[0].BackPressure(NoResponseRoom); n != 1 {
		t.Errorf("%d of %d requests have to wait, want 1", n, total)
	}
	r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Stop})
	awaitStop(t, &r.lane.lane)
	r.resume(stalled)
	for i := range total {
		m := r.relay.receive(iomsg.ControlConnection)
		if m.Type != iomsg.Result || m.UserData != i {
			t.Errorf("response %d is %+v", i, m)
		}
	}
	if m := r.relay.receive(iomsg.ControlConnection); m.Type != iomsg.Stop {
		t.Errorf("the last message is %+v instead of stop", m)
	}
}

func TestNoMoreFetchesAreInFlightThanAgreed(t *testing.T) {
	r := newTargetRig(t)
	stalled := r.stall(iomsg.DataConnection)
	for i := range uint32(testDepth) {
		r.relay.send(iomsg.DataConnection,
			&iomsg.Message{Type: iomsg.Write, IOSize: testBlockSize, Slot: i})
	}
	eventuallyInFlight(t, r.lane, testDepth)
	together(t, r.lane.worker, func() {
		if n := len(stalled.kept); n != r.lane.maxReads || n >= testDepth {
			t.Errorf("%d RDMA Reads are in flight, %d are agreed", n, r.lane.maxReads)
		}
	})
	r.resume(stalled)
	for range testDepth {
		if m := r.relay.receive(iomsg.DataConnection); m.Result != status.Success {
			t.Errorf("completed with %v", m.Result)
		}
	}
}

func TestDataIsWrittenAheadOfItsResponse(t *testing.T) {
	r := newTargetRig(t)
	stalled := r.stall(iomsg.DataConnection)
	r.relay.send(iomsg.DataConnection, &iomsg.Message{Type: iomsg.Read, IOSize: testBlockSize})
	awaitCounts(t, &r.counters, func(q *QueueCounts) bool {
		return q.IO(iomsg.OpRead, status.Success) == 1
	})
	together(t, r.lane.worker, func() {
		kept := stalled.kept
		if len(kept) != 2 || kept[0].Opcode != rdma.OpWrite || kept[1].Opcode != rdma.OpSend {
			t.Errorf("the target posts %+v, want the data and then the response", kept)
		}
	})
	r.resume(stalled)
}

func TestAMiscountEndsTheProcessBeforeItOverwritesAMessage(t *testing.T) {
	for name, test := range map[string]struct {
		miscount func(*connection)
		says     string
	}{
		"a message more than there is room for": {
			func(c *connection) {
				for range c.capacity + 1 {
					c.addMessage()
					c.finish()
				}
			}, "no room for a message on the data connection: 12 of 12",
		},
		"a completion of messages that have no Send": {
			func(c *connection) {
				c.limit = 2
				c.addMessage()
				c.release(c.tail)
			}, "messages up to 1 on the data connection have been sent before they were posted",
		},
		"a completion for the second time": {
			func(c *connection) {
				for range 2 {
					c.addMessage()
				}
				c.release(2)
				c.release(1)
			}, "messages up to 1 on the data connection have been sent before they were posted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := connection{role: iomsg.DataConnection,
				messages: &messageMemory{bytes: make([]byte, 64*iomsg.Size)}}
			c.layOutSends(0, 4)
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, test.says) {
					t.Errorf("panics with %q, want %q", said, test.says)
				}
			}()
			test.miscount(&c)
		})
	}
}
