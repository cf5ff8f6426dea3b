// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// These tables are the one in the comment of lane. A cell holds the outcome of an
// event and, behind an arrow, the next state if the state changes.
const (
	relayLifeCycle = `
		event        | connecting    | running         | failed         | rejecting    | closed
		Start        | ok >running   | BAD_STATE       | BAD_STATE      | BAD_STATE    | BAD_STATE
		request      | unread        | forwarded       | unread         | rejected     | unread
		response     | none >failed  | completes       | none           |              |
		SHUTDOWN     | none >failed  | holds           | none           |              |
		disconnect   | none >failed  | none >failed    | none           | none         |
		timeout      |               | none >failed    | none           | none         | none
		Drain        | ok            | ok              | ok             | ok           | ok
		Revoke       | ok >failed    | ok >failed      | ok             | ok           | ok
		FailRequests | ok >rejecting | ok >rejecting   | ok >rejecting  | ok           | ok
		Close        | ok >closed    | ok >closed      | ok >closed     | ok >closed   | ok`
	targetLifeCycle = `
		event        | connecting    | running         | failed         | closed
		Start        | ok >running   | BAD_STATE       | BAD_STATE      | BAD_STATE
		request      | none >failed  | served          | none           |
		disconnect   | none >failed  | none >failed    | none           |
		Drain        | ok            | ok              | ok             | ok
		Revoke       | ok >failed    | ok >failed      | ok             | ok
		Close        | ok >closed    | ok >closed      | ok >closed     | ok`
)

var laneStates = map[string]laneState{
	"connecting": laneConnecting, "running": laneRunning, "failed": laneFailed,
	"rejecting": laneRejecting,
	"closed":    laneClosed,
}

// forEachCell calls check for each cell that is not empty.
func forEachCell(t *testing.T, table string, check func(t *testing.T, event, state, outcome string,
	next laneState)) {
	lines := strings.Split(strings.TrimSpace(table), "\n")
	states := splitCells(lines[0])
	for _, line := range lines[1:] {
		cells := splitCells(line)
		for column := 1; column < len(cells); column++ {
			if cells[column] == "" {
				continue
			}
			outcome, next, moves := strings.Cut(cells[column], " >")
			if !moves {
				next = states[column]
			}
			t.Run(cells[0]+" while "+states[column], func(t *testing.T) {
				check(t, cells[0], states[column], outcome, laneStates[next])
			})
		}
	}
}

func splitCells(line string) []string {
	cells := strings.Split(line, "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// call returns the outcome of a call by the control plane.
func call(err error) string {
	if err != nil {
		return status.CodeOf(err).String()
	}
	return "ok"
}

// stateOf returns the state of a lane, read on its thread.
func stateOf(t *testing.T, l *lane) (state laneState) {
	together(t, l.worker, func() { state = l.state })
	return state
}

// awaitDisconnected waits until the worker has polled everything that the
// lane's peer had sent when it closed both connections.
func awaitDisconnected(t *testing.T, l *lane) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(time.Millisecond) {
		gone := 0
		together(t, l.worker, func() {
			for role := range iomsg.ConnectionRoleCount {
				if l.connections[role].isGone() || l.connections[role].closed {
					gone++
				}
			}
		})
		if gone == int(iomsg.ConnectionRoleCount) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the lane does not see the end of its connections")
		}
	}
}

func TestLifeCycleOfARelayLane(t *testing.T) {
	forEachCell(t, relayLifeCycle, func(t *testing.T, event, state, outcome string,
		next laneState) {
		r := newRelayRig(t)
		ctx := testContext(t)
		// what the target responses, if the state allows a request in flight
		var inFlight iomsg.Message
		if state != "connecting" {
			r.start()
			r.client.send(readRequest(1))
			inFlight = r.target.receive(iomsg.DataConnection)
		}
		failRequests := func() error { return r.lane.FailRequests(ctx, status.TimeOut) }
		switch state {
		case "failed":
			together(t, r.lane.worker, func() { r.lane.fail(errors.New("test")) })
		case "rejecting":
			if err := failRequests(); err != nil {
				t.Fatal(err)
			}
			r.response()
		case "closed":
			if err := r.lane.Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
		var got string
		switch event {
		case "Start":
			got = call(r.lane.Start(ctx))
		case "Drain":
			got = call(r.lane.Drain(ctx))
		case "Revoke":
			got = call(r.lane.Revoke(ctx))
		case "FailRequests":
			got = call(failRequests())
		case "Close":
			got = call(r.lane.Close(ctx))
		case "request":
			got = r.sendRequest(ctx, outcome)
		case "response":
			inFlight.Type = iomsg.Result
			r.target.send(iomsg.DataConnection, &inFlight)
			if outcome == "completes" {
				got = outcome
				if m := r.response(); m.Result != status.Success || m.UserData != 1 {
					got = fmt.Sprintf("completed with %+v", m)
				}
				break
			}
			r.target.disconnect()
			awaitDisconnected(t, &r.lane.lane)
			got = r.responses()
		case "SHUTDOWN":
			inFlight.Type, inFlight.Result = iomsg.Result, status.Shutdown
			r.target.send(iomsg.DataConnection, &inFlight)
			if outcome == "holds" {
				<-r.targetShutdown
				got = outcome
				if n := r.responses(); n != "none" {
					got = n
				}
				break
			}
			r.target.disconnect()
			awaitDisconnected(t, &r.lane.lane)
			got = r.responses()
		case "timeout":
			r.lane.CheckDeadline(0)
			together(t, r.lane.worker, func() {})
			got = r.responses()
		case "disconnect":
			r.target.disconnect()
			awaitDisconnected(t, &r.lane.lane)
			got = r.responses()
		}
		if got != outcome {
			t.Errorf("outcome is %q, want %q", got, outcome)
		}
		if after := stateOf(t, &r.lane.lane); after != next {
			t.Errorf("state is %d, want %d", after, next)
		}
	})
}

// sendRequest sends a request of the client and returns what becomes of it. If
// it should stay unread, the worker gets two turns in which it could read it.
func (r *relayRig) sendRequest(ctx context.Context, want string) string {
	r.client.send(readRequest(2))
	switch want {
	case "forwarded":
		if m := r.target.receive(iomsg.DataConnection); m.UserData != 2 {
			return fmt.Sprintf("forwarded as %+v", m)
		}
		return "forwarded"
	case "rejected":
		if m := r.response(); m.UserData != 2 || m.Result != status.TimeOut {
			return fmt.Sprintf("completed with %+v", m)
		}
		return "rejected"
	}
	for range 2 {
		together(r.t, r.lane.worker, func() {})
	}
	r.client.consumer.mu.Lock()
	defer r.client.consumer.mu.Unlock()
	if len(r.client.consumer.arrived) == 1 {
		return "unread"
	}
	return "read"
}

// responses returns "none" if the client got no response.
func (r *relayRig) responses() string {
	if n := len(r.client.producer.responses); n > 0 {
		return fmt.Sprintf("%d responses", n)
	}
	return "none"
}

func TestLifeCycleOfATargetLane(t *testing.T) {
	forEachCell(t, targetLifeCycle, func(t *testing.T, event, state, outcome string,
		next laneState) {
		r := makeTargetRig(t, state != "connecting", 0)
		ctx := testContext(t)
		switch state {
		case "failed":
			together(t, r.lane.worker, func() { r.lane.fail(errors.New("test")) })
		case "closed":
			if err := r.lane.Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
		var got string
		switch event {
		case "Start":
			got = call(r.lane.Start(ctx))
		case "Drain":
			got = call(r.lane.Drain(ctx))
		case "Revoke":
			got = call(r.lane.Revoke(ctx))
		case "Close":
			got = call(r.lane.Close(ctx))
		case "request", "disconnect":
			if event == "request" {
				r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Flush})
			}
			if outcome == "served" {
				got = outcome
				if m := r.relay.receive(iomsg.ControlConnection); m.Result != status.Success {
					got = fmt.Sprintf("completed with %+v", m)
				}
				break
			}
			r.relay.disconnect()
			awaitDisconnected(t, &r.lane.lane)
			got = "none"
			if n := len(r.relay.received[iomsg.ControlConnection]); n > 0 {
				got = fmt.Sprintf("%d responses", n)
			}
		}
		if got != outcome {
			t.Errorf("outcome is %q, want %q", got, outcome)
		}
		if after := stateOf(t, &r.lane.lane); after != next {
			t.Errorf("state is %d, want %d", after, next)
		}
	})
}

// awaitStop waits until the lane has handled its stop message, as far as it can.
func awaitStop(t *testing.T, l *lane) {
	t.Helper()
	testkit.Eventually(t, "stop has arrived", func() (arrived bool) {
		together(t, l.worker, func() { arrived = l.stop != stopNone })
		return arrived
	})
}

// dependentLane is a lane that can take a step only after others have begun theirs.
type dependentLane struct {
	others *sync.WaitGroup
	steps  int
}

func (l *dependentLane) step(ctx context.Context) error {
	l.steps++
	l.others.Done()
	begun := make(chan struct{})
	go func() {
		l.others.Wait()
		close(begun)
	}()
	select {
	case <-begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *dependentLane) Close(ctx context.Context) error { return l.step(ctx) }
func (l *dependentLane) Drain(ctx context.Context) error { return l.step(ctx) }
func (l *dependentLane) InFlight() int                   { return 0 }
func (l *dependentLane) Quiesced() <-chan struct{}       { return nil }

// drainedLane is a lane with these numbers of requests in flight, one after the other. The last one
// stays.
type drainedLane struct {
	dependentLane
	counts []int
}

func (l *drainedLane) InFlight() int {
	n := l.counts[0]
	if len(l.counts) > 1 {
		l.counts = l.counts[1:]
	}
	return n
}

func (l *drainedLane) Drain(context.Context) error { return nil }

func TestADrainCountsWhatItHasStoppedWaitingFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*drainPoll)
	defer cancel()
	declines := &drainedLane{counts: []int{2, 1, 0, 3}} // 3 are requests that it has declined since
	stuck := &drainedLane{counts: []int{5, 4}}
	if n := DrainAll(ctx, []*drainedLane{declines}); n != 0 {
		t.Errorf("%d requests have not completed, want none", n)
	}
	if n := DrainAll(ctx, []*drainedLane{declines, stuck}); n != 7 {
		t.Errorf("%d requests have not completed, want 7", n)
	}
}

func TestAStuckLaneDoesNotHoldUpTheOthersOfItsSession(t *testing.T) {
	for name, step := range map[string]func(context.Context, []*dependentLane) error{
		"Close": func(ctx context.Context, lanes []*dependentLane) error {
			_, err := CloseAll(ctx, lanes)
			return err
		},
		"Drain": func(ctx context.Context, lanes []*dependentLane) error {
			DrainAll(ctx, lanes)
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			var others sync.WaitGroup
			lanes := []*dependentLane{{others: &others}, {others: &others}, {others: &others}}
			others.Add(len(lanes))
			if err := step(ctx, lanes); err != nil {
				t.Error(err)
			}
			for queue, lane := range lanes {
				if lane.steps != 1 {
					t.Errorf("queue %d took %d steps", queue, lane.steps)
				}
			}
		})
	}
}

func TestAStepFailsIfItFailsOnALane(t *testing.T) {
	failure := errors.New("made up")
	taken := [4]bool{}
	err := OnAll([]int{0, 1, 2, 3}, func(lane int) error {
		taken[lane] = true
		if lane == 2 {
			return failure
		}
		return nil
	})
	if !errors.Is(err, failure) || taken != [4]bool{true, true, true, true} {
		t.Errorf("lanes %v took the step: %v", taken, err)
	}
}

func TestALaneIsNotQuiescedBeforeItsLastCompletion(t *testing.T) {
	r := newTargetRig(t)
	together(t, r.lane.worker, func() {
		r.lane.revoke()
		select {
		case <-r.lane.Quiesced():
			t.Error("the lane is quiesced before its connections have reported their end")
		default:
		}
	})
	<-r.lane.Quiesced()
}

// lateConnection is established after its lane has ended.
type lateConnection struct {
	rdma.Connection
	closed bool
}

func (c *lateConnection) Close() { c.closed = true }

func TestAConnectionThatComesAfterTheEndIsClosed(t *testing.T) {
	var l lane
	l.init(nil, nil, func(error) {})
	l.revoke()
	late := &lateConnection{}
	if l.adopt(iomsg.ControlConnection, late) || !late.closed {
		t.Error("a lane that has ended keeps a new connection open")
	}
}

func TestALaneStartsWhenBothHellosHaveBeenExchanged(t *testing.T) {
	var l lane
	for role := range iomsg.ConnectionRoleCount {
		l.connections[role].rdma = &lateConnection{}
	}
	for role := range iomsg.ConnectionRoleCount {
		if err := l.start(); !errors.Is(err, status.BadState) {
			t.Errorf("start before the hellos on the %v connection: %v", role, err)
		}
		l.connections[role].ready = true
	}
	if err := l.start(); err != nil {
		t.Error(err)
	}
}
