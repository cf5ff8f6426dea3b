// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// openForBlocking opens a volume with blocking methods and no other queue, with a configuration
// that it completes.
func (r *fakeRelay) openForBlocking(config client.Config) *client.Volume {
	r.t.Helper()
	config.Provider, config.Device = r.provider, emulated.DefaultHostDevice
	config.BufferSize, config.ControlTimeout = testBlock, testkit.Patience
	config.Policy = progress.Policy{Mode: progress.Event}
	v, err := client.Open(context.Background(), config)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(v.Abort)
	<-r.started
	return v
}

// respond completes a request with success.
func (r *fakeRelay) respond(request iomsg.Message) {
	r.t.Helper()
	var result [iomsg.Size]byte
	iomsg.Encode(result[:], &iomsg.Message{Type: iomsg.Result, UserData: request.UserData})
	r.send(result[:])
}

// TestRequestsWaitParkedForTheLeaseOfALostSession begins requests while another one waits for the
// relay to release the memory of a session that is lost.
func TestRequestsWaitParkedForTheLeaseOfALostSession(t *testing.T) {
	reconnect := &retry.Policy{Total: retry.Within(testkit.Patience)}
	for name, test := range map[string]struct {
		reconnect *retry.Policy
		end       func(*client.Volume)
	}{
		"Abort":            {nil, (*client.Volume).Abort},
		"Close":            {nil, func(v *client.Volume) { _ = v.Close(context.Background()) }},
		"Abort, reopening": {reconnect, (*client.Volume).Abort},
		"Close, reopening": {reconnect, func(v *client.Volume) { _ = v.Close(context.Background()) }},
	} {
		t.Run(name, func(t *testing.T) {
			const late = 3
			r := newSilentRelay(t)
			v := r.openForBlocking(client.Config{SyncDepth: 1 + late, IOTimeout: testkit.Patience,
				ReleaseTimeout: testkit.Patience, Reconnect: test.reconnect})
			outcomes := make(chan error, 1+late)
			read := func() {
				_, err := v.ReadAt(make([]byte, testBlock), 0)
				outcomes <- err
			}
			go read()
			r.request()
			r.cut()
			testkit.Eventually(t, "the client knows", v.HasLostSession)
			for range late {
				go read()
			}
			testkit.Eventually(t, "the later requests are parked", func() bool { return v.Parked() == late })
			slept := v.BlockingStats().Sleeps
			testkit.Eventually(t, "their thread sleeps", func() bool { return v.BlockingStats().Sleeps > slept })
			test.end(v)
			for range 1 + late {
				if err := <-outcomes; !errors.Is(err, status.Shutdown) {
					t.Errorf("a request ended with %v", err)
				}
			}
		})
	}
}

// TestRequestsWaitParkedForARelayThatTakesNone uses a relay that has room for one request.
func TestRequestsWaitParkedForARelayThatTakesNone(t *testing.T) {
	r := newFakeRelay(t)
	r.receives.Store(1)
	v := r.openForBlocking(client.Config{SyncDepth: 2, IOTimeout: testkit.Patience})
	outcomes := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := v.ReadAt(make([]byte, testBlock), 0)
			outcomes <- err
		}()
	}
	first := r.request()
	testkit.Eventually(t, "the other request is parked", func() bool { return v.Parked() == 1 })
	slept := v.BlockingStats().Sleeps
	testkit.Eventually(t, "their thread sleeps", func() bool { return v.BlockingStats().Sleeps > slept })
	if err := r.consumers[0].PostReceive(0, iomsg.Size, 0); err != nil {
		t.Fatal(err)
	}
	r.consumers[0].Flush()
	second := r.request()
	r.respond(first)
	r.respond(second)
	for range 2 {
		if err := <-outcomes; err != nil {
			t.Error(err)
		}
	}
	if late := v.BlockingStats().LateWakeups; late > 0 {
		t.Errorf("%d wake-ups were late", late)
	}
}

func TestARequestThatTheRelayDoesNotTakeTimesOut(t *testing.T) {
	r := newFakeRelay(t)
	r.receives.Store(0)
	v := r.openForBlocking(client.Config{SyncDepth: 1, IOTimeout: 100 * time.Millisecond})
	if err := v.Flush(); !errors.Is(err, status.TimeOut) {
		t.Errorf("a request without a receive of the relay ended with %v", err)
	}
}

// TestASlowBlockDoesNotStarveTheOthers lets callers give up a block that never responds, again and
// again, at first with all slots at once.
func TestASlowBlockDoesNotStarveTheOthers(t *testing.T) {
	const depth, attempts, rounds = 4, 100, 5
	for name, use := range map[string]func(v *client.Volume, ctx context.Context) error{
		"read": func(v *client.Volume, ctx context.Context) error {
			_, err := v.ReadAtContext(ctx, make([]byte, testBlock), 0)
			return err
		},
		"write": func(v *client.Volume, ctx context.Context) error {
			_, err := v.WriteAtContext(ctx, make([]byte, testBlock), 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFakeRelay(t)
			v := r.openForBlocking(client.Config{SyncDepth: depth, IOTimeout: testkit.Patience})
			goroutines := runtime.NumGoroutine()
			giveUpAll := func(count int, sent func()) {
				ctx, leave := context.WithCancel(t.Context())
				ended := make(chan error, count)
				for range count {
					go func() { ended <- use(v, ctx) }()
				}
				sent()
				leave()
				for range count {
					if err := <-ended; !errors.Is(err, context.Canceled) {
						t.Errorf("a call that was given up ended with %v", err)
					}
				}
			}
			var slow []iomsg.Message
			for range 2 { // the slots of the first round can be used for the second
				atOnce := depth
				if name == "write" {
					atOnce = 1 // the others wait for the lock on the range
				}
				giveUpAll(depth, func() {
					for range atOnce {
						slow = append(slow, r.request())
					}
				})
				giveUpAll(attempts, func() {
					testkit.Eventually(t, "all calls have begun", func() bool {
						return runtime.NumGoroutine() >= 2*attempts
					})
				})
				testkit.Eventually(t, "the calls that were given up have ended", func() bool {
					return runtime.NumGoroutine() <= goroutines+atOnce
				})
				patient := make(chan error, 1)
				go func() { patient <- use(v, context.Background()) }()
				for range rounds {
					others := make(chan error, depth)
					for i := range int64(depth) {
						go func() {
							_, err := v.ReadAt(make([]byte, testBlock), (1+i)*testBlock)
							others <- err
						}()
					}
					for range depth {
						request := r.request()
						if request.StorageOffset == 0 {
							t.Fatalf("the relay has received %+v", request)
						}
						r.respond(request)
					}
					for range depth {
						if err := <-others; err != nil {
							t.Error(err)
						}
					}
				}
				for _, request := range slow {
					r.respond(request)
				}
				slow = nil
				r.respond(r.request())
				if err := <-patient; err != nil {
					t.Error(err)
				}
				testkit.Eventually(t, "the slow block has been released", func() bool {
					return v.SpareSlots() == depth
				})
			}
		})
	}
}

func TestARelayNeedNotHaveRoomForSpareSlots(t *testing.T) {
	r := newFakeRelay(t, func(m *controlmsg.OpenVolumeReply) { m.MaxDepth = 4 })
	v := r.openForBlocking(client.Config{SyncDepth: 3, IOTimeout: testkit.Patience})
	if depth, spare := v.Info().Depth, v.SpareSlots(); depth != 4 || spare != 1 {
		t.Errorf("the depth is %d, and %d slots are spare", depth, spare)
	}
}

func TestADurableWriteNeedsAVolumeThatHasIt(t *testing.T) {
	v := newFakeRelay(t).openForBlocking(client.Config{SyncDepth: 1})
	_, err := v.WriteAtFUA(make([]byte, testBlock), 0)
	if !errors.Is(err, status.NotSupported) {
		t.Errorf("a durable write to a volume without it: %v", err)
	}
}
