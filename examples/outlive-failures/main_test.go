// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/examples/internal/daemontest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testkit.Main(m)) }

func TestTheProgramOutlivesFailures(t *testing.T) {
	c := daemontest.Start(t, "disk")
	v, err := client.Open(t.Context(), configure(c.Config(0)))
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	w := newWriter(v)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.loop(ctx); err != nil {
			t.Error(err)
		}
	})
	c.Fail(func() {
		before := w.rounds.Load()
		testkit.Eventually(t, "more rounds are complete", func() bool {
			return w.rounds.Load() > before+2 || t.Failed()
		})
	}, v)
	cancel()
	running.Wait()
	t.Logf("%d rounds, %+v", w.rounds.Load(), v.Reconnections())
	if err := v.Close(t.Context()); err != nil && !errors.Is(err, client.ErrWritesLost) {
		t.Error(err)
	}
}
