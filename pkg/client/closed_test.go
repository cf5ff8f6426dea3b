// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// isClosed reports whether an error says in each way that something was closed.
func isClosed(err error) bool {
	return errors.Is(err, os.ErrClosed) && errors.Is(err, client.ErrClosed) &&
		errors.Is(err, status.Shutdown)
}

func TestEverythingAfterTheEndFailsWithErrClosed(t *testing.T) {
	provider, stop := chain()
	t.Cleanup(stop)
	for name, config := range map[string]client.Config{
		"one session": {}, "reopened": {Reconnect: &retry.Policy{}},
	} {
		for end, call := range map[string]func(*client.Volume) error{
			"Close": func(v *client.Volume) error { return v.Close(context.Background()) },
			"Abort": func(v *client.Volume) error { v.Abort(); return nil },
		} {
			t.Run(name+", "+end, func(t *testing.T) {
				config.Provider, config.Device = provider, emulated.DefaultHostDevice
				config.Queues = 1
				v, err := client.Open(t.Context(), config)
				if err != nil {
					t.Fatal(err)
				}
				queue, user := v.Queue(0), v.NewFlusher()
				if err := call(v); err != nil {
					t.Fatal(err)
				}
				expectClosed(t, v, queue, user)
				if err := v.Close(t.Context()); err != nil {
					t.Errorf("the second Close returns %v", err)
				}
				v.Abort()
			})
		}
	}
}

// expectClosed tries everything on a closed volume.
func expectClosed(t *testing.T, v *client.Volume, queue *client.Queue, user *client.Flusher) {
	t.Helper()
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	block, ctx := make([]byte, 4096), t.Context()
	for name, call := range map[string]func() error{
		"ReadAt":        func() error { _, err := v.ReadAt(block, 0); return err },
		"ReadAtContext": func() error { _, err := v.ReadAtContext(ctx, block, 0); return err },
		"WriteAt":       func() error { _, err := v.WriteAt(block, 0); return err },
		"Flush":         v.Flush,
		"Flusher.Flush": user.Flush,
		"a new Flusher": v.NewFlusher().Flush,
		"Trim":          func() error { return v.Trim(0, 4096) },
		"Trim nothing":  func() error { return v.Trim(0, 0) },
		"WriteZeroes":   func() error { return v.WriteZeroes(0, 4096) },
		"PunchHole":     func() error { return v.PunchHole(0, 4096) },
		"Extents":       func() error { _, err := v.Extents(0, 4096); return err },
		"Err":           v.Err,
		"Submit": func() error {
			return queue.Submit(&client.Request{Type: client.Read, Length: 4096})
		},
		"Attach": func() error { return queue.Attach(engine) },
	} {
		if err := call(); !isClosed(err) {
			t.Errorf("%s: %v", name, err)
		} else if errors.Is(err, status.ConnectionReset) {
			t.Errorf("%s reports a loss: %v", name, err)
		}
	}
	if v.Memory() != nil || queue.Memory() != nil || queue.SwitchMemory() != nil {
		t.Error("there is memory")
	}
	if n := queue.Poll(make([]client.Result, 4)); n != 0 {
		t.Errorf("Poll returns %d results", n)
	}
	queue.Ring()
	queue.Detach(engine)
	select {
	case <-v.Done():
	default:
		t.Error("Done is open")
	}
	if v.Info().Size == 0 || v.Size() == 0 || v.Queue(0) != queue || v.Quarantined() != 0 ||
		v.Reconnections().Count != 0 {
		t.Errorf("it is described as %+v", v.Info())
	}
}

// TestEveryCloseWaitsForTheFirst closes a volume whose relay does not respond.
func TestEveryCloseWaitsForTheFirst(t *testing.T) {
	r := newSilentRelay(t)
	v := r.openForBlocking(client.Config{SyncDepth: 1, IOTimeout: testkit.Patience})
	read := make(chan error, 1)
	go func() {
		_, err := v.ReadAt(make([]byte, testBlock), 0)
		read <- err
	}()
	r.request()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, second, aborted := make(chan error, 1), make(chan error, 1), make(chan struct{})
	go func() { first <- v.Close(ctx) }()
	<-v.Done()
	go func() { second <- v.Close(context.Background()) }()
	go func() {
		defer close(aborted)
		v.Abort()
	}()
	awaitGoroutinesIn(t, "(*Volume).awaitClosed", 1)
	awaitGoroutinesIn(t, "(*Volume).Abort", 1)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := v.Close(ended); !errors.Is(err, status.TimeOut) || !errors.Is(err, context.Canceled) {
		t.Errorf("a Close that does not wait returns %v", err)
	}
	select {
	case err := <-second:
		t.Errorf("the second Close returns %v before the first", err)
	case <-aborted:
		t.Error("Abort returns before Close")
	case err := <-first:
		t.Errorf("Close returns %v without a response", err)
	default:
	}
	cancel()
	if one, two := <-first, <-second; one == nil || one != two {
		t.Errorf("Close returns %v, and then %v", one, two)
	}
	<-aborted
	if err := <-read; !isClosed(err) {
		t.Errorf("a call that Close has cut off fails with %v", err)
	}
}

func TestAFailedVolumeKeepsItsReasonWhenItIsClosed(t *testing.T) {
	r := newFakeRelay(t)
	v := r.open(testkit.Patience)
	r.cancel()
	<-v.Done()
	reason := v.Err()
	v.Abort()
	if err := v.Err(); !isClosed(err) || !errors.Is(err, reason) || reason == nil {
		t.Errorf("the volume failed with %v, and reports %v", reason, err)
	}
	if status.CodeOf(v.Err()) != status.CodeOf(reason) {
		t.Errorf("the code is %v", status.CodeOf(v.Err()))
	}
}

func TestACauseDoesNotHideThatTheTimeIsUp(t *testing.T) {
	cause := errors.New("the user is impatient")
	soon := func() context.Context {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, cause)
		t.Cleanup(cancel)
		return ctx
	}
	r := newSilentRelay(t)
	v := r.openForBlocking(client.Config{SyncDepth: 1, IOTimeout: testkit.Patience})
	nowhere := client.Config{Device: emulated.DefaultHostDevice,
		Provider: emulated.New(emulated.Options{Directory: t.TempDir()})}
	for name, call := range map[string]func(context.Context) error{
		"ReadAtContext": func(ctx context.Context) error {
			_, err := v.ReadAtContext(ctx, make([]byte, testBlock), 0)
			return err
		},
		"FlushContext": v.FlushContext,
		"Open": func(ctx context.Context) error {
			_, err := client.Open(ctx, nowhere)
			return err
		},
		"Describe": func(ctx context.Context) error {
			_, err := client.Describe(ctx, nowhere)
			return err
		},
	} {
		err := call(soon())
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s does not match context.DeadlineExceeded: %v", name, err)
		}
		if name == "ReadAtContext" && !errors.Is(err, cause) {
			t.Errorf("%s does not match the cause: %v", name, err)
		}
	}
}

func TestAChangeToAReadOnlyVolumeMatchesErrPermission(t *testing.T) {
	provider, stop := chain()
	t.Cleanup(stop)
	v, err := client.Open(t.Context(), client.Config{Provider: provider, ReadOnly: true,
		Device: emulated.DefaultHostDevice, Queues: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	block := make([]byte, 4096)
	_, writing := v.WriteAt(block, 0)
	_, part := v.WriteAt(block[:1], 1)
	result := carryOut(t, v.Queue(0), client.Request{Type: client.Write, Length: 4096})
	for name, err := range map[string]error{
		"WriteAt": writing, "WriteAt of a part": part, "WriteZeroes": v.WriteZeroes(0, 4096),
		"a queue": result.Err(),
	} {
		if !errors.Is(err, os.ErrPermission) || !errors.Is(err, status.NotPermitted) {
			t.Errorf("%s fails with %v", name, err)
		}
	}
}

func TestAnInstanceBelongsToOneOpenVolume(t *testing.T) {
	provider, stop := chain()
	t.Cleanup(stop)
	config := client.Config{Provider: provider, Device: emulated.DefaultHostDevice,
		Instance: client.NewInstance(), Reconnect: &retry.Policy{}}
	for range 2 {
		v, err := client.Open(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Open(t.Context(), config); !errors.Is(err, status.InUse) {
			t.Errorf("a second volume with the instance: %v", err)
		}
		if _, err := v.WriteAt([]byte("x"), 0); err != nil || v.Reconnections().Count != 0 {
			t.Errorf("the first volume: %v, %+v", err, v.Reconnections())
		}
		if err := v.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// An attempt that fails does not keep the instance.
	nowhere := config
	nowhere.Provider = emulated.New(emulated.Options{Directory: t.TempDir()})
	nowhere.ControlTimeout = time.Millisecond
	if _, err := client.Open(t.Context(), nowhere); err == nil {
		t.Fatal("a volume was opened without a relay")
	}
	v, err := client.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	v.Abort()
}

// A volume that has failed, and that nobody has closed yet, is in nobody's way.
func TestAnInstanceOfAFailedVolumeIsFree(t *testing.T) {
	r := newFakeRelay(t)
	instance := client.NewInstance()
	v := r.openWith(client.Config{Instance: instance})
	r.cut()
	<-v.Done()
	again := r.openWith(client.Config{Instance: instance})
	again.Abort()
}

func TestAQueueHasOneEngine(t *testing.T) {
	r := newFakeRelay(t)
	v := r.open(testkit.Patience)
	engines := [2]*progress.Engine{}
	for i := range engines {
		var err error
		if engines[i], err = progress.NewEngine(progress.Policy{}); err != nil {
			t.Fatal(err)
		}
		defer engines[i].Close()
	}
	q := v.Queue(0)
	if err := q.Attach(engines[0]); err != nil {
		t.Fatal(err)
	}
	q.Detach(engines[1]) // to which it is not attached
	for i, engine := range engines {
		if err := q.Attach(engine); !errors.Is(err, status.InUse) {
			t.Errorf("a queue was attached to engine %d: %v", i, err)
		}
	}
	q.Detach(engines[0])
	if err := q.Attach(engines[1]); err != nil {
		t.Error(err)
	}
	q.Detach(engines[1])
}
