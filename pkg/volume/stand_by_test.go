// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func standBy(v volume.Volume) error {
	err, _ := v.Ownership().State()
	return err
}

func openProgram(t *testing.T, p *volumetest.Program) volume.Volume {
	t.Helper()
	v, err := volume.Open(volume.Spec{Name: "disk", BlockSize: 4096, Backend: p})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// An owner that no relay reaches hands the volume over to a program that one reaches.
func TestAnUnusedOwnerHandsTheVolumeOverWhereItIsWanted(t *testing.T) {
	defer volume.SetContendPause(time.Millisecond)()
	defer volume.SetIdleBound(10 * time.Millisecond)()
	image := volumetest.NewSharedImage(1 << 20)
	first := openProgram(t, &volumetest.Program{Image: image})
	second := openProgram(t, &volumetest.Program{Image: image})
	const several = 50 * time.Millisecond // times of the bound
	time.Sleep(several)
	release := first.Ownership().Use()
	second.Ownership().Want()
	time.Sleep(several)
	if owners, _ := image.Owners(); owners != 1 {
		t.Errorf("an owner that was not wanted elsewhere, or used, has lost the volume: %d owners",
			owners)
	}
	release()
	testkit.Eventually(t, "the owner hands the volume over", func() bool {
		return standBy(second) == nil && standBy(first) != nil
	})
	first.Ownership().Want()
	testkit.Eventually(t, "the volume comes back", func() bool { return standBy(first) == nil })
	for _, v := range []volume.Volume{first, second} {
		volumetest.CloseVolume(t, v)
	}
}

func TestOfEagerProgramsExactlyOneOwnsTheVolume(t *testing.T) {
	defer volume.SetContendPause(time.Millisecond)()
	image := volumetest.NewSharedImage(1 << 20)
	programs := []*volumetest.Program{{Image: image}, {Image: image}, {Image: image}}
	var volumes []volume.Volume
	for _, p := range programs {
		volumes = append(volumes, openProgram(t, p))
	}
	owner := func() int {
		found := -1
		for i, v := range volumes {
			if standBy(v) == nil {
				if found >= 0 {
					t.Fatalf("programs %d and %d both own the volume", found, i)
				}
				found = i
			}
		}
		return found
	}
	time.Sleep(50 * time.Millisecond) // the stand-bys try all the time
	if owners, _ := image.Owners(); owners != 1 || owner() != 0 {
		t.Fatalf("program %d is the owner, after %d changes", owner(), owners)
	}
	if _, err := volumes[1].NewQueue(1); !errors.Is(err, status.NoLock) {
		t.Errorf("a queue of a stand-by: %v", err)
	}
	for i, want := range []volume.State{volume.Serving, volume.StandBy} {
		if now := volumes[i].Status(); now.State != want ||
			(now.Reason == nil) != (want == volume.Serving) || now.Since.IsZero() {
			t.Errorf("volume %d is %+v", i, now)
		}
	}
	// A closed volume passes to a stand-by.
	volumetest.CloseVolume(t, volumes[0])
	volumes = volumes[1:]
	testkit.Eventually(t, "a stand-by owns the volume", func() bool { return owner() >= 0 })
	if info := volumes[owner()].Info(); info.Size != 1<<20 || info.UUID != (volume.UUID{1}) {
		t.Errorf("the volume is %+v", info)
	}
	if owners, _ := image.Owners(); owners != 2 {
		t.Errorf("the volume has had %d owners", owners)
	}
	for _, v := range volumes {
		volumetest.CloseVolume(t, v)
	}
}

// A stopped owner with writes in flight continues after the take-over: nothing of it arrives, it
// says why, and it becomes a stand-by that can take over again.
func TestAStoppedOwnerWritesNothingAfterATakeOver(t *testing.T) {
	defer volume.SetContendPause(time.Millisecond)()
	image := volumetest.NewSharedImage(1 << 20)
	programs := [2]*volumetest.Program{{Image: image}, {Image: image}}
	volumes := [2]volume.Volume{openProgram(t, programs[0]), openProgram(t, programs[1])}
	const inFlight = 64
	for round := range 6 {
		former, next := round%2, (round+1)%2
		queue := volumetest.NewQueue(t, volumes[former], inFlight)
		programs[former].Stop()
		requests := make([]volume.Request, inFlight)
		ghost := bytes.Repeat([]byte{0xee}, 4096)
		for i := range requests {
			requests[i] = volume.Request{Operation: iomsg.OpWrite, Offset: uint64(i) * 4096,
				Length: 4096, Buffer: ghost}
			if err := queue.Submit(&requests[i]); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Eventually(t, "the stand-by owns the volume",
			func() bool { return standBy(volumes[next]) == nil })
		programs[former].Continue()
		done := make([]*volume.Request, inFlight)
		for count := 0; count < inFlight; {
			for _, r := range done[:queue.Poll(done)] {
				if !errors.Is(r.Err, status.Shutdown) {
					t.Errorf("a ghost was acknowledged: %v", r.Err)
				}
				count++
			}
		}
		if bytes.Contains(image.Content(), ghost[:16]) {
			t.Fatal("a former owner has written")
		}
		testkit.Eventually(t, "the former owner is a stand-by", func() bool {
			err := standBy(volumes[former])
			return errors.Is(err, status.NoLock) &&
				strings.Contains(err.Error(), "taken the image over")
		})
		volumetest.CloseQueue(t, queue)
	}
	for _, v := range volumes {
		volumetest.CloseVolume(t, v)
	}
}

// guardedDriver completes requests when the test says so.
type guardedDriver struct {
	started atomic.Int32
	last    atomic.Pointer[volume.Request]
	asked   chan struct{} // unless nil, receives a value at the beginning of CheckOwner
	verdict chan error    // of CheckOwner
	volume  *volume.Driven
}

func (d *guardedDriver) Start(v *volume.Driven) { d.volume = v }
func (d *guardedDriver) Reserve(int) error      { return nil }
func (d *guardedDriver) Release(int)            {}
func (d *guardedDriver) Resize(uint64) error    { return status.NotSupported }
func (d *guardedDriver) Inspect()               {}
func (d *guardedDriver) Close() error           { return nil }

func (d *guardedDriver) CheckOwner() error {
	if d.asked != nil {
		d.asked <- struct{}{}
	}
	return <-d.verdict
}

func (d *guardedDriver) Submit(r *volume.Request) {
	d.last.Store(r)
	d.started.Add(1)
}

func TestAFormerOwnerLearnsThatItIsNoneWhenItIsAsked(t *testing.T) {
	defer volume.SetContendPause(time.Millisecond)()
	defer volume.SetPauseClock(func() time.Duration { return 0 }, time.Second)()
	image := volumetest.NewSharedImage(1 << 20)
	programs := [2]*volumetest.Program{{Image: image}, {Image: image}}
	former, next := openProgram(t, programs[0]), openProgram(t, programs[1])
	defer volumetest.CloseVolume(t, former)
	defer volumetest.CloseVolume(t, next)
	if err := former.CheckOwner(t.Context()); err != nil {
		t.Errorf("the owner: %v", err)
	}
	if err := next.CheckOwner(t.Context()); !errors.Is(err, status.NoLock) {
		t.Errorf("a stand-by: %v", err)
	}
	programs[0].Stop()
	testkit.Eventually(t, "the stand-by takes over", func() bool { return standBy(next) == nil })
	if standBy(former) != nil {
		t.Fatal("the former owner knows already")
	}
	if err := former.CheckOwner(t.Context()); !errors.Is(err, status.Shutdown) {
		t.Errorf("the former owner: %v", err)
	}
	testkit.Eventually(t, "the former owner is a stand-by", func() bool { return standBy(former) != nil })
	programs[0].Continue()
	if err := next.CheckOwner(t.Context()); err != nil {
		t.Errorf("the new owner: %v", err)
	}
}

// A check that began before the call says nothing about the time since, and a cluster that does not
// answer keeps one check waiting, not one for each call.
func TestACheckOfTheOwnerIsBounded(t *testing.T) {
	defer volume.SetPauseClock(func() time.Duration { return 0 }, time.Second)()
	d := &guardedDriver{asked: make(chan struct{}), verdict: make(chan error)}
	v := volume.NewDriven(&volume.Spec{Name: "disk", BlockSize: 4096, Logger: zap.NewNop()},
		volume.Info{Name: "disk", Size: 1 << 20, BlockSize: 4096}, d)
	short, cancel := context.WithCancel(t.Context())
	results := make(chan error)
	go func() { results <- v.CheckOwner(short) }()
	testkit.Receive(t, "the driver is asked", d.asked)
	for range 2 {
		go func() { results <- v.CheckOwner(short) }()
	}
	cancel()
	for range 3 {
		if err := testkit.Receive(t, "a result", results); !errors.Is(err, status.TimeOut) {
			t.Errorf("the check ends with %v", err)
		}
	}
	go func() { results <- v.CheckOwner(t.Context()) }()
	select {
	case <-d.asked:
		t.Error("the driver is asked a second time at once")
	case d.verdict <- nil: // of the first check
	}
	testkit.Receive(t, "the driver is asked anew", d.asked)
	d.verdict <- status.Errorf(status.Shutdown, "lost")
	if err := testkit.Receive(t, "a result", results); !errors.Is(err, status.Shutdown) {
		t.Errorf("the second check: %v", err)
	}
	volumetest.CloseVolume(t, v)
}

func TestAfterAPauseNothingHappensBeforeTheOwnerIsKnown(t *testing.T) {
	var now atomic.Int64
	const bound = 160 * time.Millisecond
	defer volume.SetPauseClock(func() time.Duration { return time.Duration(now.Load()) }, bound)()
	pause := func() { now.Add(int64(bound) + 1) }
	d := &guardedDriver{verdict: make(chan error)}
	v := volume.NewDriven(&volume.Spec{Name: "disk", BlockSize: 4096, Logger: zap.NewNop()},
		volume.Info{Name: "disk", Size: 1 << 20, BlockSize: 4096}, d)
	queue := volumetest.NewQueue(t, v, 8)
	submit := func() *volume.Request {
		t.Helper()
		r := &volume.Request{Operation: iomsg.OpRead, Length: 4096, Buffer: make([]byte, 4096)}
		if err := queue.Submit(r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	completed := make([]*volume.Request, 8)
	poll := func(want int) {
		t.Helper()
		got := 0
		testkit.Eventually(t, "the requests complete", func() bool {
			got += queue.Poll(completed)
			return got >= want
		})
	}
	submit()
	d.last.Load().Complete(nil)
	poll(1)
	submit()
	before := d.last.Load()
	pause()
	submit() // is parked
	before.Complete(nil)
	time.Sleep(bound) // some beats, whose check waits
	if n := d.started.Load(); n != 2 || queue.Poll(completed) != 0 {
		t.Fatalf("%d requests were started, or one completed, before the check", n)
	}
	d.verdict <- nil
	poll(1)
	testkit.Eventually(t, "the parked request is started", func() bool { return d.started.Load() == 3 })
	last := d.last.Load()
	pause()
	parked := submit()
	last.Complete(nil)
	d.verdict <- status.Errorf(status.IOFailed, "somebody else")
	poll(2)
	if d.started.Load() != 3 || !errors.Is(parked.Err, status.IOFailed) || last.Err == nil {
		t.Errorf("after the loss, %d requests were started, and the errors are %v and %v",
			d.started.Load(), parked.Err, last.Err)
	}
	late := submit()
	poll(1)
	if !errors.Is(late.Err, status.IOFailed) || d.started.Load() != 3 {
		t.Errorf("a later request: %v", late.Err)
	}
	close(d.verdict)
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}

func TestACheckDuringWhichTheProgramStandsStillProvesNothing(t *testing.T) {
	var now atomic.Int64
	const bound = 160 * time.Millisecond
	defer volume.SetPauseClock(func() time.Duration { return time.Duration(now.Load()) }, bound)()
	d := &guardedDriver{asked: make(chan struct{}), verdict: make(chan error)}
	v := volume.NewDriven(&volume.Spec{Name: "disk", BlockSize: 4096, Logger: zap.NewNop()},
		volume.Info{Name: "disk", Size: 1 << 20, BlockSize: 4096}, d)
	queue := volumetest.NewQueue(t, v, 1)
	now.Add(int64(bound) + 1)
	r := &volume.Request{Operation: iomsg.OpRead, Length: 4096, Buffer: make([]byte, 4096)}
	if err := queue.Submit(r); err != nil {
		t.Fatal(err)
	}
	<-d.asked
	now.Add(int64(bound) + 1)
	d.verdict <- nil
	asked := false
	testkit.Eventually(t, "the owner is checked again, or the request is started", func() bool {
		select {
		case <-d.asked:
			asked = true
		default:
		}
		return asked || d.started.Load() > 0
	})
	if !asked || d.started.Load() > 0 {
		t.Fatal("a request was started after a check that was interrupted")
	}
	d.verdict <- nil
	testkit.Eventually(t, "the request is started", func() bool { return d.started.Load() == 1 })
	r.Complete(nil)
	volumetest.Await(t, queue, 1)
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}
