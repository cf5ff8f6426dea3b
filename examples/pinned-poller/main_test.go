// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/examples/internal/daemontest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testkit.Main(m)) }

// writeNumbers gives each block of a volume its number.
func writeNumbers(t *testing.T, config client.Config) {
	t.Helper()
	v, err := client.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, v.Size())
	for i := range uint64(len(content) / 4096) {
		binary.BigEndian.PutUint64(content[i*4096:], i)
	}
	if _, err := v.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := v.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// firstCore returns a core that this process may use.
func firstCore(t *testing.T) int {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	core := 0
	for !set.IsSet(core) {
		core++
	}
	return core
}

func TestEveryReadOfThePollerIsRightThroughFailures(t *testing.T) {
	c := daemontest.Start(t, "disk")
	writeNumbers(t, c.Config(0))
	p, err := open(t.Context(), c.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	defer p.volume.Abort()
	p.check = hasNumber
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	core := firstCore(t)
	var polling sync.WaitGroup
	polling.Go(func() {
		if err := p.poll(ctx, core); err != nil {
			t.Error(err)
		}
	})
	c.Fail(func() {
		before := p.volume.Stats().BytesRead
		testkit.Eventually(t, "more is read", func() bool {
			return p.volume.Stats().BytesRead > before+10*depth*4096 || t.Failed()
		})
	}, p.volume)
	cancel()
	polling.Wait()
	s := p.volume.Stats()
	t.Logf("%+v, %+v", s, p.volume.Reconnections())
	if s.Submitted != s.Completed || s.BytesRead != (s.Completed-s.Failed)*4096 {
		t.Errorf("the counters are %+v", s)
	}
	if err := p.volume.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
