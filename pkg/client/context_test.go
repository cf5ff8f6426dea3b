package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
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
