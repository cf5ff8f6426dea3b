// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/examples/internal/daemontest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testkit.Main(m)) }

// fill writes random bytes to all of a volume, and returns them.
func fill(t *testing.T, config client.Config) []byte {
	t.Helper()
	content := make([]byte, daemontest.Size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	v := use(t, config)
	if _, err := v.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	closeVolume(t, v)
	return content
}

func use(t *testing.T, config client.Config) *client.Volume {
	t.Helper()
	v, err := client.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func closeVolume(t *testing.T, v *client.Volume) {
	t.Helper()
	if err := v.Close(t.Context()); err != nil && !errors.Is(err, client.ErrWritesLost) {
		t.Error(err)
	}
}

// expectCopy fails the test unless a volume has a content.
func expectCopy(t *testing.T, config client.Config, want []byte) {
	t.Helper()
	v := use(t, config)
	got, err := io.ReadAll(io.NewSectionReader(v, 0, v.Size()))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy is not the original, error %v", err)
	}
	closeVolume(t, v)
}

func TestACopyThatIsInterruptedGoesOnWhereItHasEnded(t *testing.T) {
	c := daemontest.Start(t, "original", "copy")
	want := fill(t, c.Config(0))
	next, runs := int64(0), 0
	for next < daemontest.Size {
		runs++
		copying, err := open(t.Context(), c.Config(0), c.Config(1))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var watcher sync.WaitGroup
		if runs <= 3 {
			cancel() // before it begins, or in the middle
			if runs > 1 {
				ctx, cancel = context.WithCancel(t.Context())
				watcher.Go(func() {
					testkit.Eventually(t, "something is copied", func() bool {
						return copying.to.volume.Stats().BytesWritten > 0
					})
					cancel()
				})
			}
		}
		before := next
		next, err = copying.run(ctx, next)
		watcher.Wait()
		cancel()
		if isOver := next == daemontest.Size; err == nil != isOver ||
			err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("the run from %d to %d ended with %v", before, next, err)
		}
		if copying.copied != next-before {
			t.Errorf("%d bytes are copied from %d to %d", copying.copied, before, next)
		}
		if err := copying.close(t.Context()); err != nil && !errors.Is(err, client.ErrWritesLost) {
			t.Error(err)
		}
	}
	expectCopy(t, c.Config(1), want)
}

func TestACopyOutlivesFailures(t *testing.T) {
	c := daemontest.Start(t, "original", "copy")
	want := fill(t, c.Config(0))
	var rounds atomic.Int64
	var stopping atomic.Bool
	copying, err := open(t.Context(), c.Config(0), c.Config(1))
	if err != nil {
		t.Fatal(err)
	}
	var worker sync.WaitGroup
	worker.Go(func() {
		for !stopping.Load() || rounds.Load() == 0 {
			if _, err := copying.run(t.Context(), 0); err != nil {
				t.Error(err)
				return
			}
			rounds.Add(1)
		}
	})
	c.Fail(func() {
		before := copying.to.volume.Stats().BytesWritten
		testkit.Eventually(t, "more is copied", func() bool {
			return copying.to.volume.Stats().BytesWritten > before+2*depth*pieceSize || t.Failed()
		})
	}, copying.from.volume, copying.to.volume)
	stopping.Store(true)
	worker.Wait()
	t.Logf("%d copies, %+v", rounds.Load(), copying.from.volume.Reconnections())
	if err := copying.close(t.Context()); err != nil && !errors.Is(err, client.ErrWritesLost) {
		t.Error(err)
	}
	expectCopy(t, c.Config(1), want)
}
