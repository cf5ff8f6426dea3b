// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// matched returns the numbers of the first count writes that a rule matches.
func matched(t *testing.T, conditions string, count int) string {
	t.Helper()
	injector, _ := faulttest.New(t, "volume:write:"+conditions+"corrupt")
	point := injector.Point(fault.Volume, "write")
	var numbers []string
	for n := range count {
		if point.Next(0).Action != fault.None {
			numbers = append(numbers, fmt.Sprint(n+1))
		}
	}
	return strings.Join(numbers, " ")
}

func TestConditionsDecideByTheNumberOfTheOperation(t *testing.T) {
	for conditions, want := range map[string]string{
		"":                 "1 2 3 4 5 6 7 8 9 10",
		"every=3:":         "3 6 9",
		"nth=4:":           "4",
		"after=8:":         "9 10",
		"every=2:after=5:": "6 8 10",
		"p=1:":             "1 2 3 4 5 6 7 8 9 10",
		"while=on:":        "",
	} {
		if got := matched(t, conditions, 10); got != want {
			t.Errorf("%q matched %s", conditions, got)
		}
	}
	first, again, other := matched(t, "p=0.1:seed=1:", 1000), matched(t, "p=0.1:seed=1:", 1000),
		matched(t, "p=0.1:seed=2:", 1000)
	if first != again || first == other {
		t.Error("the matches do not depend on the seed alone")
	}
	if n := len(strings.Fields(first)); n < 50 || n > 150 {
		t.Errorf("%d of 1000 operations matched with probability 0.1", n)
	}
}

func TestTheFirstOfSeveralRulesActsAndAllCount(t *testing.T) {
	injector, recorder := faulttest.New(t, "volume:write:trace", "volume:any:every=2:error=FULL",
		"volume:write:delay=1s", "volume:read:freeze")
	point := injector.Point(fault.Volume, "write")
	if hit := point.Next(512); hit.Action != fault.Delay || !hit.Stalls() {
		t.Errorf("the first write gets %v", hit.Action)
	}
	hit := point.Next(512)
	if hit.Action != fault.Error || !errors.Is(hit.Err(), status.Full) ||
		!errors.Is(hit.Err(), fault.ErrInjected) || hit.Stalls() {
		t.Errorf("the second write gets %v, %v", hit.Action, hit.Err())
	}
	var counts []uint64
	for _, r := range injector.Rules() {
		counts = append(counts, r.Seen, r.Matches)
	}
	if got := fmt.Sprint(counts); got != "[2 2 2 1 2 2 0 0]" {
		t.Errorf("seen and matched: %s", got)
	}
	events := make([]fault.Event, 10)
	if n := recorder.Collect(events); n != 5 || events[0].Action != fault.Trace ||
		events[0].Size != 512 || events[0].Operation != "write" || events[4].Number != 2 {
		t.Errorf("%d events: %+v", n, events[:n])
	}
}

func TestASwitchIsOffAtFirst(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:write:while=a:corrupt", "volume:read:while=b:corrupt")
	write, read := injector.Point(fault.Volume, "write"), injector.Point(fault.Volume, "read")
	check := func(when string, wantWrite, wantRead bool) {
		t.Helper()
		if w, r := write.Next(0).Action, read.Next(0).Action; (w == fault.Corrupt) != wantWrite ||
			(r == fault.Corrupt) != wantRead {
			t.Errorf("%s: write gets %v, read %v", when, w, r)
		}
	}
	check("at first", false, false)
	injector.TurnOn("a")
	check("a on", true, false)
	injector.TurnOn("")
	check("all on", true, true)
	injector.TurnOff("a")
	check("a off", false, true)
	injector.TurnOff("")
	check("all off", false, false)
	if n := injector.Rules()[0].Seen; n != 2 {
		t.Errorf("the rule counted %d operations, some while its switch was off", n)
	}
}

func TestOperationsWithoutRulesHaveNoPoint(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:write:delay=1s")
	if injector.Point(fault.Volume, "read") != nil || injector.Has(fault.RDMA) {
		t.Error("there are rules that nobody has made")
	}
	var none *fault.Injector
	if none.Has(fault.Volume) || none.Rules() != nil {
		t.Error("no injector has rules")
	}
	var point *fault.Point
	if hit, err := point.Enter(t.Context(), nil, 0); hit.Action != fault.None || err != nil ||
		point.CanStall() || point.NeedsKind() {
		t.Error("no rules do something")
	}
	defer func() {
		if recover() == nil {
			t.Error("an operation that does not exist has a point")
		}
	}()
	injector.Point(fault.Volume, "paint")
}

func TestAnyIsEveryOperationThatAllowsTheAction(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:any:corrupt")
	for operation, want := range map[string]bool{"read": true, "write": true, "flush": false} {
		if got := injector.Point(fault.Volume, operation) != nil; got != want {
			t.Errorf("%s has rules: %v", operation, got)
		}
	}
}

func TestCorruptInvertsOneBit(t *testing.T) {
	injector, _ := faulttest.New(t, "volume:write:seed=3:corrupt")
	point := injector.Point(fault.Volume, "write")
	places := make(map[string]bool)
	for range 100 {
		data := make([]byte, 16)
		hit := point.Next(16)
		hit.Corrupt(data)
		ones := 0
		for _, b := range data {
			ones += bits.OnesCount8(b)
		}
		if ones != 1 {
			t.Fatalf("%d bits were inverted", ones)
		}
		places[string(data)] = true
		hit.Corrupt(data)
		if data[0]|data[15] != 0 {
			t.Error("the second time did not restore the data")
		}
		hit.Corrupt(nil)
	}
	if len(places) < 30 {
		t.Errorf("100 times, only %d different bits were inverted", len(places))
	}
}

func TestEnterWaitsAsLongAsItsRuleSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		injector, _ := faulttest.New(t, "comch:connect:delay=1s", "comch:accept:freeze",
			"comch:listen:error=NO_MEMORY")
		began := time.Now()
		enter := func(ctx context.Context, ended chan struct{}, operation string) error {
			_, err := injector.Point(fault.Comch, operation).Enter(ctx, ended, 0)
			return err
		}
		if err := enter(t.Context(), nil, "connect"); err != nil || time.Since(began) != time.Second {
			t.Errorf("a delayed operation took %v: %v", time.Since(began), err)
		}
		if err := enter(t.Context(), nil, "listen"); !errors.Is(err, status.NoMemory) {
			t.Errorf("a failing operation returned %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		if err := enter(ctx, nil, "accept"); !errors.Is(err, status.TimeOut) {
			t.Errorf("a frozen operation without time returned %v", err)
		}
		ended := make(chan struct{})
		close(ended)
		if err := enter(t.Context(), ended, "accept"); err != nil {
			t.Errorf("a frozen operation of something that has ended returned %v", err)
		}
		done := make(chan error)
		go func() { done <- enter(t.Context(), nil, "accept") }()
		synctest.Wait()
		select {
		case <-done:
			t.Error("the operation is not frozen")
		default:
		}
		injector.Release()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestNothingAllocatesUnlessARuleMatches(t *testing.T) {
	injector, recorder := faulttest.New(t, "volume:write:while=off:freeze",
		"volume:write:p=1e-300:corrupt", "volume:write:nth=1:delay=1s", "volume:any:trace")
	point := injector.Point(fault.Volume, "write")
	point.Next(0)
	events := make([]fault.Event, 1)
	if n := testing.AllocsPerRun(100, func() {
		point.Next(0)
		recorder.Collect(events)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestARecorderKeepsOrderAndCountsWhatDoesNotFit(t *testing.T) {
	recorder, err := fault.NewRecorder(3)
	if err != nil {
		t.Fatal(err)
	}
	rule, err := fault.Parse("volume:write:trace")
	if err != nil {
		t.Fatal(err)
	}
	injector, err := fault.New([]fault.Rule{rule}, recorder)
	if err != nil {
		t.Fatal(err)
	}
	point := injector.Point(fault.Volume, "write")
	events := make([]fault.Event, 8)
	for round := range uint64(3) {
		for range 6 {
			point.Next(0)
		}
		n := recorder.Collect(events)
		if n != 4 || events[0].Number != 6*round+1 || events[3].Number != 6*round+4 ||
			recorder.Lost() != 2*(round+1) {
			t.Errorf("round %d: %d events, %d lost: %+v", round, n, recorder.Lost(), events[:n])
		}
	}
	for _, events := range []int{0, -1, fault.MaxEvents + 1} {
		if _, err := fault.NewRecorder(events); !errors.Is(err, status.InvalidValue) {
			t.Errorf("a recorder of %d events: %v", events, err)
		}
	}
}

func TestThreadsRecordConcurrently(t *testing.T) {
	const threads, each = 4, 5000
	injector, recorder := faulttest.New(t, "volume:any:trace")
	var running sync.WaitGroup
	for range threads {
		running.Go(func() {
			point := injector.Point(fault.Volume, "write")
			for range each {
				point.Next(1)
			}
		})
	}
	seen := make(map[uint64]bool)
	events := make([]fault.Event, 64)
	for len(seen) < threads*each {
		for _, e := range events[:recorder.Collect(events)] {
			if seen[e.Number] {
				t.Fatalf("event %d arrived twice", e.Number)
			}
			seen[e.Number] = true
		}
	}
	running.Wait()
	if recorder.Lost() != 0 {
		t.Errorf("%d events were lost", recorder.Lost())
	}
}
