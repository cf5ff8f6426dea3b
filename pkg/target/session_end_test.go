// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/progress"
	rdmahook "github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestTheNextSessionBeginsWhenAStuckWorkerResumes(t *testing.T) {
	disk := volumetest.OpenMemory(t, "1MiB")
	var stuck sync.Mutex // held while the worker is stuck between two turns
	s, err := target.New(t.Context(), target.Config{
		RDMA: iwarp.New(iwarp.Options{}), Listen: loopback, RDMAListen: loopback,
		Volumes: map[string]target.Offer{"disk": {Volume: disk}}, CPUs: []int{datapath.NoCPU},
		Policy: progress.Policy{Mode: progress.Stepped, Step: func(work int) {
			if work == 0 {
				time.Sleep(50 * time.Microsecond)
			}
			stuck.Lock()
			defer stuck.Unlock()
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.SetReleaseTimeout(time.Millisecond)
	serve(t, s)

	former, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m := configuration(2, 4) // whose lanes have no connections
	if _, err := former.Call(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	stuck.Lock()
	resume := sync.OnceFunc(stuck.Unlock)
	t.Cleanup(resume)
	former.Close(nil)
	testkit.Eventually(t, "the session has ended", func() bool { return s.Sessions() == 0 })
	resume()
	next, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Epoch++
	if _, err := next.Call(t.Context(), m); err != nil {
		t.Errorf("the next epoch: %v", err)
	}
}

// isTooEarly reports whether an open has failed because of IO in flight: the target says so, unless
// a slow machine lets the request's time run out before.
func isTooEarly(err error) bool {
	return errors.Is(err, status.Again) || errors.Is(err, context.DeadlineExceeded)
}

// What a client that has gone had in flight cannot overwrite what the next one writes.
func TestTheNextClientBeginsWhenTheWritesOfTheFormerHaveEnded(t *testing.T) {
	stuck := &stuckVolume{Volume: volumetest.OpenMemory(t, "1MiB")}
	s := newTarget(t, func(config *target.Config) {
		config.Volumes = map[string]target.Offer{"disk": {Volume: stuck}}
	})
	s.SetReleaseTimeout(10 * time.Millisecond)
	serve(t, s)
	former := openVolumeOf(t, s)
	sessions := s.Sessions() // one of them is the relay's
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = former.WriteAt(make([]byte, 4096), 0) })
	testkit.Eventually(t, "the write is in flight", stuck.submitted.Load)
	former.Abort()
	writing.Wait()
	testkit.Eventually(t, "the former session has ended", func() bool { return s.Sessions() < sessions })

	open := func(ctx context.Context, m *controlmsg.ConfigureDataPath) error {
		next, err := relayTo(t, s.Address(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close(nil)
		takePart(next, m)
		_, err = next.Call(ctx, m)
		return err
	}
	m := configuration(1, 4)
	early, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := open(early, m); !isTooEarly(err) {
		t.Errorf("opened while the former client's write is in flight: %v", err)
	}
	m.ClientInstance[0]++
	stuck.completes.Store(true)
	if err := open(t.Context(), m); err != nil {
		t.Errorf("open: %v", err)
	}
}

// newOn returns a target whose device does what a rule says.
func newOn(t *testing.T, rule string) (*target.Target, *fault.Injector) {
	t.Helper()
	r, err := fault.Parse(rule)
	if err != nil {
		t.Fatal(err)
	}
	injector, err := fault.New([]fault.Rule{r}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return newTarget(t, func(config *target.Config) {
		config.RDMA = rdmahook.Wrap(config.RDMA, rdmahook.Config{Injector: injector})
	}), injector
}

// A device that does not let go of a session's memory keeps nobody from the volume.
func TestADeviceThatHangsKeepsNobodyFromAVolume(t *testing.T) {
	s, injector := newOn(t, "rdma:deregister:while=stuck:freeze")
	s.SetAnswerTimeout(10 * time.Millisecond)
	serve(t, s)
	m := configuration(1, 4)
	m.Exclusive = true
	open := func() *controlmsg.Requester {
		relay, err := relayTo(t, s.Address(), nil)
		if err != nil {
			t.Fatal(err)
		}
		m.ClientInstance[0]++
		m.Owner[0]++
		takePart(relay, m)
		if _, err := relay.Call(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		return relay
	}
	injector.TurnOn("stuck")
	open().Close(nil)
	testkit.Eventually(t, "the session has ended", func() bool { return s.Sessions() == 0 })
	second := open()
	if s.ReservedMemory() == 0 {
		t.Error("what the device has not let go of does not count")
	}
	injector.TurnOff("stuck")
	second.Close(nil)
	testkit.Eventually(t, "all memory is free", func() bool { return s.ReservedMemory() == 0 })
}

// A target ends although a device never answers.
func TestATargetEndsAlthoughADeviceKeepsARequest(t *testing.T) {
	s, injector := newOn(t, "rdma:register:while=stuck:freeze")
	s.SetAnswerTimeout(time.Millisecond)
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	injector.TurnOn("stuck")
	relay, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m := configuration(1, 4)
	takePart(relay, m)
	var configuring sync.WaitGroup
	configuring.Go(func() {
		if _, err := relay.Call(t.Context(), m); err == nil {
			t.Error("the data path is configured")
		}
	})
	testkit.Eventually(t, "the device keeps the request",
		func() bool { return injector.Rules()[0].Matches > 0 })
	stop()
	if err := testkit.Receive(t, "the end of the target", ran); err != nil {
		t.Error(err)
	}
	configuring.Wait()
	injector.TurnOff("stuck")
	testkit.Eventually(t, "everything is released", func() bool { return s.Sessions() == 0 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
