// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// openBlocking opens a volume of a relay that answers no request.
func openBlocking(t *testing.T) *client.Volume {
	t.Helper()
	r := newFakeRelay(t)
	v, err := client.Open(context.Background(), client.Config{
		Provider: r.provider, Device: emulated.DefaultHostDevice, SyncDepth: testDepth,
		BufferSize: testBlock, ControlTimeout: testkit.Patience, IOTimeout: testkit.Patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Abort)
	return v
}

func TestCallersLeaveWhenTheirContextEnds(t *testing.T) {
	v := openBlocking(t)
	reason := errors.New("the user has gone home")
	buffer := make([]byte, 3*testBlock)
	for name, call := range map[string]func(ctx context.Context) error{
		"read": func(ctx context.Context) error {
			n, err := v.ReadAtContext(ctx, buffer, 0)
			if n != 0 {
				t.Errorf("read %d bytes", n)
			}
			return err
		},
		"write": func(ctx context.Context) error {
			n, err := v.WriteAtContext(ctx, buffer, testBlock)
			if n != 0 {
				t.Errorf("wrote %d bytes", n)
			}
			return err
		},
		"write a part": func(ctx context.Context) error {
			_, err := v.WriteAtContext(ctx, buffer[:10], 7)
			return err
		},
		"flush": v.FlushContext,
		"trim":  func(ctx context.Context) error { return v.TrimContext(ctx, 0, testBlock) },
		"write zeroes": func(ctx context.Context) error {
			return v.WriteZeroesContext(ctx, 0, testBlock)
		},
		"punch a hole": func(ctx context.Context) error {
			return v.PunchHoleContext(ctx, 0, testBlock)
		},
	} {
		ctx, cancel := context.WithCancelCause(context.Background())
		ended := make(chan error)
		go func() { ended <- call(ctx) }()
		select {
		case err := <-ended:
			t.Errorf("%s ended without an answer of the relay: %v", name, err)
		case <-time.After(10 * time.Millisecond):
		}
		cancel(reason)
		if err := <-ended; !errors.Is(err, reason) {
			t.Errorf("%s: %v", name, err)
		}
		if err := call(ctx); !errors.Is(err, reason) {
			t.Errorf("%s with a context that has ended: %v", name, err)
		}
	}
}

// openRepeating opens a volume that repeats what a lost session has left unfinished.
func openRepeating(t *testing.T) (*fakeRelay, *client.Volume) {
	t.Helper()
	r := newFakeRelay(t)
	v, err := client.Open(context.Background(), client.Config{
		Provider: r.provider, Device: emulated.DefaultHostDevice, SyncDepth: 2 * testDepth,
		BufferSize: 2 * testBlock, ControlTimeout: testkit.Patience, IOTimeout: testkit.Patience,
		Reconnect: &retry.Policy{Total: retry.Within(testkit.Patience),
			FirstPause: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Abort)
	<-r.started
	return r, v
}

// giveUp makes a call whose caller leaves while its request is in progress. It returns the request.
func giveUp(t *testing.T, r *fakeRelay, call func(ctx context.Context) error) iomsg.Message {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- call(ctx) }()
	request := r.request()
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call that was given up ended with %v", err)
	}
	return request
}

func TestARequestThatWasGivenUpIsNotRepeated(t *testing.T) {
	block := make([]byte, testBlock)
	for name, call := range map[string]func(v *client.Volume, ctx context.Context) error{
		"write": func(v *client.Volume, ctx context.Context) error {
			_, err := v.WriteAtContext(ctx, make([]byte, 2*testBlock), 0)
			return err
		},
		"write of a part": func(v *client.Volume, ctx context.Context) error {
			_, err := v.WriteAtContext(ctx, block[:7], 5)
			return err
		},
		"read": func(v *client.Volume, ctx context.Context) error {
			_, err := v.ReadAtContext(ctx, make([]byte, 2*testBlock), 0)
			return err
		},
		"trim": func(v *client.Volume, ctx context.Context) error {
			return v.TrimContext(ctx, 0, 2*testBlock)
		},
		"zeroes": func(v *client.Volume, ctx context.Context) error {
			return v.WriteZeroesContext(ctx, 0, 2*testBlock)
		},
		"flush": func(v *client.Volume, ctx context.Context) error { return v.FlushContext(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			r, v := openRepeating(t)
			giveUp(t, r, func(ctx context.Context) error { return call(v, ctx) })
			r.cut()
			<-r.started
			_, _ = r.consumers[0].Close(), r.producers[0].Close()
			r.consumers, r.producers = r.consumers[1:], r.producers[1:]
			written := make(chan error, 1)
			go func() {
				_, err := v.WriteAt(block, 0)
				written <- errors.Join(err, v.Flush())
			}()
			for _, want := range []iomsg.Type{iomsg.Write, iomsg.Flush} {
				m := r.request()
				if m.Type != want || m.Type == iomsg.Write && m.IOSize != testBlock {
					t.Fatalf("the next session begins with %v of %d bytes", m.Type, m.IOSize)
				}
				r.respond(m)
			}
			select {
			case err := <-written:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(testkit.Patience):
				t.Error("the relay has got another flush than that of the caller who waits")
			}
		})
	}
}

// A write is given up, and stays in progress. Nothing overtakes it, except calls that do not
// overlap it.
func TestNothingOvertakesARequestThatWasGivenUp(t *testing.T) {
	r, v := openRepeating(t)
	block := make([]byte, testBlock)
	former := giveUp(t, r, func(ctx context.Context) error {
		_, err := v.WriteAtContext(ctx, make([]byte, 2*testBlock), 0)
		return err
	})
	calls := []func() error{
		func() error { _, err := v.WriteAt(block, testBlock); return err },
		func() error { _, err := v.WriteAt(block[:1], 7); return err },
		func() error { _, err := v.ReadAt(make([]byte, testBlock), 0); return err },
		func() error { return v.Trim(0, testBlock) },
		func() error { return v.WriteZeroes(testBlock, testBlock) },
		v.Flush,
	}
	outcomes := make(chan error, len(calls))
	for _, call := range calls {
		go func() { outcomes <- call() }()
	}
	const rounds, elsewhere = 40, 8 * testBlock
	for range rounds {
		written := make(chan error, 1)
		go func() {
			_, err := v.WriteAt(block, elsewhere)
			written <- err
		}()
		m := r.request()
		if m.StorageOffset != elsewhere {
			t.Fatalf("%v at %d overtakes", m.Type, m.StorageOffset)
		}
		r.respond(m)
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}
	r.respond(former)
	for range len(calls) + 1 { // the part of a block is read first
		r.respond(r.request())
	}
	for range calls {
		if err := <-outcomes; err != nil {
			t.Error(err)
		}
	}
}

// A part of a block is being written: the block has been requested. Nobody else changes that block
// before it has been written back.
func TestPartsOfABlockAreWrittenOneAfterTheOther(t *testing.T) {
	r, v := openRepeating(t)
	outcomes := make(chan error, 2)
	writePart := func(off int64) {
		_, err := v.WriteAt([]byte("part"), off)
		outcomes <- err
	}
	go writePart(3)
	first := r.request()
	go writePart(30)
	const rounds, elsewhere = 40, 8 * testBlock
	for range rounds {
		written := make(chan error, 1)
		go func() {
			_, err := v.WriteAt(make([]byte, testBlock), elsewhere)
			written <- err
		}()
		m := r.request()
		if m.StorageOffset != elsewhere {
			t.Fatalf("%v at %d comes between the parts of a change", m.Type, m.StorageOffset)
		}
		r.respond(m)
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}
	r.respond(first)
	for _, want := range []iomsg.Type{iomsg.Write, iomsg.Read, iomsg.Write} {
		m := r.request()
		if m.Type != want {
			t.Errorf("the relay has got %v, want %v", m.Type, want)
		}
		r.respond(m)
	}
	for range 2 {
		if err := <-outcomes; err != nil {
			t.Error(err)
		}
	}
}
