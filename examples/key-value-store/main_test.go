// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/examples/internal/daemontest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testkit.Main(m)) }

// valueOf returns a value that fits no other key, some of which span blocks.
func valueOf(key int) []byte {
	return bytes.Repeat([]byte(strconv.Itoa(key)+" "), 1+key*37%300)
}

func TestWhatTheStoreHasSyncedOutlivesFailures(t *testing.T) {
	c := daemontest.Start(t, "disk")
	v, err := client.Open(t.Context(), c.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	s, err := openStore(v)
	if err != nil {
		t.Fatal(err)
	}
	var synced atomic.Int64 // keys below are durable
	var stopping atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		for key := 0; !stopping.Load(); key++ {
			if err := s.put(t.Context(), strconv.Itoa(key%500), valueOf(key)); err != nil {
				t.Error(err)
				return
			}
			if key%7 != 0 {
				continue
			}
			if err := s.sync(t.Context()); err != nil {
				t.Error(err)
				return
			}
			synced.Store(int64(key) + 1)
		}
	})
	c.Fail(func() {
		before := synced.Load()
		testkit.Eventually(t, "keys are synced", func() bool {
			return synced.Load() > before || t.Failed()
		})
	}, v)
	stopping.Store(true)
	writer.Wait()
	t.Logf("%d records, %+v", s.count, v.Reconnections())
	if err := v.Close(t.Context()); err != nil && !errors.Is(err, client.ErrWritesLost) {
		t.Error(err)
	}

	again, err := client.Open(t.Context(), c.Config(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	found, err := openStore(again)
	if err != nil {
		t.Fatal(err)
	}
	if int64(found.count) < synced.Load() {
		t.Errorf("the store has %d records, %d were synced", found.count, synced.Load())
	}
	last := int(found.count) - 1
	for key := max(0, last-499); key <= last; key++ {
		got, err := found.get(t.Context(), strconv.Itoa(key%500))
		if err != nil || !bytes.Equal(got, valueOf(key)) {
			t.Errorf("key %d has another value, error %v", key%500, err)
		}
	}
	if _, err := found.get(t.Context(), "nobody"); !errors.Is(err, errNotFound) {
		t.Errorf("a key that was never put: %v", err)
	}
}
