// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// configuration returns a request for queues of a depth whose requests carry one block.
func configuration(queues, depth uint32) *controlmsg.ConfigureDataPath {
	return &controlmsg.ConfigureDataPath{
		QueueCount: queues, Depth: depth, BufferSize: 4096, Epoch: 1,
		Export: controlmsg.Export{
			Access: memory.RemoteRead | memory.RemoteWrite, Length: 1 << 20,
			RDMA: &controlmsg.RDMAExport{Transport: "iwarp"},
		},
	}
}

func TestTheMemoryForMessagesCountsTowardsTheLimit(t *testing.T) {
	const depth = 1024
	staging := uint64(depth * 4096)
	all := datapath.TargetLaneMemory(depth, 4096)
	if all < staging+depth*64*10 { // a receive for eight messages per slot, and sends
		t.Fatalf("a lane with %d bytes of staging occupies only %d", staging, all)
	}
	s := startTarget(t, func(config *target.Config) { config.StagingLimit = 2*all - 1 })
	configure := func(instance byte, queues uint32) (*controlmsg.Requester, error) {
		r, err := relayTo(t, s.Address(), nil)
		if err != nil {
			t.Fatal(err)
		}
		m := configuration(queues, depth)
		m.ClientInstance[0] = instance
		_, err = r.Call(t.Context(), m)
		return r, err
	}
	if _, err := configure(1, 2); !errors.Is(err, status.NoMemory) {
		t.Errorf("two queues, although their memory exceeds the limit: %v", err)
	}
	// What was rejected, and what was released, is free again.
	for i := range byte(3) {
		r, err := configure(2+i, 1)
		if err != nil {
			t.Fatalf("one queue, attempt %d: %v", i, err)
		}
		if _, err := configure(100, 1); !errors.Is(err, status.NoMemory) {
			t.Errorf("one queue of another session: %v", err)
		}
		if _, err := r.Call(t.Context(), &controlmsg.DestroyObjects{}); err != nil {
			t.Fatal(err)
		}
	}
}

// stuckVolume completes no request until the test says so.
type stuckVolume struct {
	volume.Volume
	submitted, completes atomic.Bool
}

type stuckQueue struct {
	volume.Queue
	volume *stuckVolume
}

// Memory returns nil, so that requests go through the queues.
func (*stuckVolume) Memory() *memory.Region { return nil }

func (v *stuckVolume) NewQueue(depth int) (volume.Queue, error) {
	queue, err := v.Volume.NewQueue(depth)
	return stuckQueue{queue, v}, err
}

func (q stuckQueue) Submit(r *volume.Request) error {
	defer q.volume.submitted.Store(true)
	return q.Queue.Submit(r)
}

func (q stuckQueue) Poll(completed []*volume.Request) int {
	if !q.volume.completes.Load() {
		return 0
	}
	return q.Queue.Poll(completed)
}

func TestATargetRunsUntilItsVolumesHaveCompletedEverything(t *testing.T) {
	disk := volumetest.OpenMemory(t, "1MiB")
	stuck := &stuckVolume{Volume: disk}
	core, logged := observer.New(zap.ErrorLevel)
	s, err := target.New(t.Context(), target.Config{
		RDMA: iwarp.New(iwarp.Options{}), Listen: loopback, RDMAListen: loopback,
		Volumes: map[string]target.Offer{"disk": {Volume: stuck}}, CPUs: []int{datapath.NoCPU},
		ControlTimeout: testkit.Patience, KeepAlive: quiet, DrainTimeout: retry.Within(0),
		Logger: zap.New(core),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.SetReleaseTimeout(10 * time.Millisecond)
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()

	v := openVolumeOf(t, s)
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = v.WriteAt(make([]byte, 4096), 0) })
	testkit.Eventually(t, "the write is in flight", stuck.submitted.Load)
	stop()
	testkit.Eventually(t, "the release has timed out", func() bool { return logged.Len() > 0 })
	select {
	case err := <-ran:
		t.Errorf("Run returned while a volume was using a session's memory: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	stuck.completes.Store(true)
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	writing.Wait()
}

// openVolumeOf opens the volume of a target, through a relay that runs until the test ends.
func openVolumeOf(t *testing.T, s *target.Target) *client.Volume {
	t.Helper()
	provider := emulated.New(emulated.Options{Directory: filepath.Join(t.TempDir(), "comch")})
	r, err := relay.New(t.Context(), relay.Config{
		Comch: provider, RDMA: iwarp.New(iwarp.Options{}), CPUs: []int{datapath.NoCPU},
		Settings: relay.Settings{Channels: []relay.ChannelConfig{{
			ChannelID: relay.ChannelID{Device: emulated.DefaultDevice,
				Representor: emulated.DefaultRepresentor, Name: client.DefaultChannelName},
			Targets: []netip.AddrPort{s.Address()}, Volume: "disk", ControlTimeout: testkit.Patience,
			KeepAlive: quiet,
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	v, err := client.Open(t.Context(),
		client.Config{Provider: provider, Device: emulated.DefaultHostDevice,
			ControlTimeout: testkit.Patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close(context.Background()) })
	return v
}
