package datapath

import (
	"fmt"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// sendSizes are what a peer says that it takes in one Send, in bytes, and how
// many messages it is sent.
var sendSizes = []struct{ takes, messages uint32 }{
	{0, 1}, {1, 1}, {iomsg.Size, 1}, {2*iomsg.Size - 1, 1}, {3 * iomsg.Size, 3},
	{messagesPerSend * iomsg.Size, messagesPerSend}, {1 << 31, messagesPerSend},
}

// together has a worker do something before it polls again.
func together(t *testing.T, w *Worker, do func()) {
	t.Helper()
	if err := w.do(testContext(t), do); err != nil {
		t.Fatal(err)
	}
}

func TestRequestsShareSendsAsFarAsTheTargetTakesThem(t *testing.T) {
	for _, c := range sendSizes {
		t.Run(fmt.Sprintf("%d bytes", c.takes), func(t *testing.T) {
			r := newRelayRigWith(t, relayRigOptions{takes: c.takes})
			r.start()
			hellos := r.target.sends[iomsg.DataConnection].Load()
			together(t, r.lane.worker, func() {
				for i := range uint64(testDepth) {
					r.client.send(readRequest(i))
				}
			})
			answers := make([]*iomsg.Message, 0, testDepth)
			for i := range uint64(testDepth) {
				m := r.target.receive(iomsg.DataConnection)
				if m.UserData != i || m.Type != iomsg.Read {
					t.Errorf("request %d arrives as %+v", i, m)
				}
				m.Type = iomsg.Result
				answers = append(answers, &m)
			}
			// Where the ring of messages ends, a Send does too.
			sends := uint32(r.target.sends[iomsg.DataConnection].Load() - hellos)
			if want := (testDepth + c.messages - 1) / c.messages; sends != want && sends != want+1 {
				t.Errorf("%d requests came in %d Sends, want %d", testDepth, sends, want)
			}
			r.target.send(iomsg.DataConnection, answers...)
			for i := range uint64(testDepth) {
				if m := r.answer(); m.UserData != i || m.Result != status.Success {
					t.Errorf("answer %d is %+v", i, m)
				}
			}
		})
	}
}

func TestAnswersShareSendsAsFarAsTheRelayTakesThem(t *testing.T) {
	for _, c := range sendSizes {
		t.Run(fmt.Sprintf("%d bytes", c.takes), func(t *testing.T) {
			r := makeTargetRig(t, true, c.takes)
			hellos := r.relay.sends[iomsg.DataConnection].Load()
			r.volume.lane.hold() // so that all are done together
			requests := make([]*iomsg.Message, testDepth)
			for i := range requests {
				offset := uint64(i) * testBlockSize
				requests[i] = &iomsg.Message{
					Type: iomsg.Read, UserData: uint64(i), Slot: uint32(i), IOSize: testBlockSize, StorageOffset: offset, RequesterOffset: offset,
				}
			}
			r.relay.send(iomsg.DataConnection, requests...)
			awaitCounts(t, &r.counters, func(q *QueueCounts) bool { return q.InFlight == testDepth })
			r.volume.lane.release()
			for range testDepth {
				m := r.relay.receive(iomsg.DataConnection)
				if m.Type != iomsg.Result || m.Result != status.Success {
					t.Errorf("answered with %+v", m)
				}
				if got := r.client[m.RequesterOffset]; got != byte(m.UserData) {
					t.Errorf("block %d in the client's memory begins with %d when it is answered", m.UserData, got)
				}
			}
			sends := uint32(r.relay.sends[iomsg.DataConnection].Load() - hellos)
			if want := (testDepth + c.messages - 1) / c.messages; sends != want && sends != want+1 {
				t.Errorf("%d answers came in %d Sends, want %d", testDepth, sends, want)
			}
		})
	}
}

func TestASendIsOverWhenEnoughDataGoesAheadOfIt(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{staging: true, takes: messagesPerSend * iomsg.Size})
	r.start()
	hellos := r.target.sends[iomsg.DataConnection].Load()
	const requests = 4
	together(t, r.lane.worker, func() {
		for i := range uint64(requests) {
			r.client.send(&iomsg.Message{Type: iomsg.Write, UserData: i, IOSize: bytesPerSend / 2, RequesterOffset: i * bytesPerSend})
		}
	})
	for range requests {
		r.target.receive(iomsg.DataConnection)
	}
	if sends := r.target.sends[iomsg.DataConnection].Load() - hellos; sends != requests/2 {
		t.Errorf("%d requests with %d bytes ahead of each came in %d Sends, want %d", requests, bytesPerSend/2, sends, requests/2)
	}
}

func TestSendsThatAreNotWholeMessagesEndTheLane(t *testing.T) {
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

func TestNothingAfterABadMessageOfASendCounts(t *testing.T) {
	target := newTargetRig(t)
	read := iomsg.Message{Type: iomsg.Read, IOSize: testBlockSize, Slot: 1}
	bad := read
	bad.Slot = testDepth
	target.relay.send(iomsg.DataConnection, &bad, &read)
	target.expectFailure(status.Unexpected)
	if n := target.lane.InFlight(); n != 0 {
		t.Errorf("%d requests are under way", n)
	}

	relay := newRelayRig(t)
	relay.start()
	relay.client.send(readRequest(1))
	answer := relay.target.receive(iomsg.DataConnection)
	answer.Type = iomsg.Result
	wrong := answer
	wrong.Generation++
	relay.target.send(iomsg.DataConnection, &wrong, &answer)
	relay.expectFailure(status.Unexpected)
	select {
	case m := <-relay.client.producer.answers:
		t.Errorf("the client was answered with %x", m)
	default:
	}
}
