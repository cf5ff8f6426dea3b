// SPDX-License-Identifier: Apache-2.0

package chaintest

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
)

func testASessionCanBeDestroyedAtEveryStep(t *testing.T) {
	Parallel(t)
	c := Start(t, Options{})
	epoch := uint64(0)
	steps := []func(*RawClient) error{
		func(r *RawClient) error { return r.Call(&controlmsg.OpenVolume{}) },
		func(r *RawClient) error { epoch++; return r.Call(r.Configuration(epoch)) },
		func(r *RawClient) error {
			consumer, err := r.connection.NewConsumer(c.Context(),
				comch.ConsumerConfig{Receives: 8, MemorySize: 512})
			if err != nil {
				return err
			}
			r.t.Cleanup(func() { _ = consumer.Close() })
			return r.Call(&controlmsg.StartDataPathConnections{
				ConsumerIDs: []uint32{uint32(consumer.ID())},
			})
		},
		func(r *RawClient) error { return r.Call(&controlmsg.StartStorage{}) },
	}
	for count := range len(steps) + 1 {
		for _, vanish := range []bool{false, true} {
			r := c.Raw(t)
			for _, step := range steps[:count] {
				if err := step(r); err != nil {
					t.Fatalf("step %d: %v", count, err)
				}
			}
			if vanish {
				r.connection.Abort()
			} else if err := r.Call(&controlmsg.DestroyObjects{}); err != nil {
				t.Errorf("destroy after %d steps: %v", count, err)
			}
			c.AwaitRelease()
		}
	}
}

func testConcurrentClientsDoNotInterfere(t *testing.T) {
	Parallel(t)
	c := Start(t, Options{})
	const clients, share = 8, VolumeSize / 8
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			v, err := client.Open(c.Context(), c.Config())
			if err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			want := bytes.Repeat([]byte{byte(i + 1)}, share)
			got := make([]byte, share)
			for range 3 {
				if _, err := v.WriteAt(want, int64(i*share)); err != nil {
					t.Errorf("client %d: write: %v", i, err)
				}
				if _, err := v.ReadAt(got, int64(i*share)); err != nil {
					t.Errorf("client %d: read: %v", i, err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("client %d does not read what it wrote", i)
				}
			}
			if err := v.Close(c.Context()); err != nil {
				t.Errorf("client %d: close: %v", i, err)
			}
		})
	}
	running.Wait()
}

// resources counts what a session has to release.
type resources struct{ descriptors, mappings, goroutines, threads int }

func countResources(t testing.TB) resources {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return resources{len(descriptors), strings.Count(string(maps), "memfd:"),
		runtime.NumGoroutine(), len(threads)}
}

// sessionCount is how many sessions the leak test opens and closes.
var sessionCount uint64 = 60

func testConsecutiveSessionsLeakNothing(t *testing.T) {
	// Not parallel: it counts what this process has.
	c := Start(t, Options{})
	config := c.Config()
	config.BufferSize = BlockSize // to map and release larger ones would take most of the time
	session := func() {
		v, err := client.Open(c.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.WriteAt([]byte("x"), 5); err != nil {
			t.Fatal(err)
		}
		if err := v.Close(c.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		session()
	}
	before := settle(c)
	for range sessionCount {
		session()
	}
	c.Await(fmt.Sprintf("no more than %+v is in use", before), func() bool {
		after := countResources(t)
		return after.descriptors <= before.descriptors && after.mappings <= before.mappings &&
			after.goroutines <= before.goroutines
	})
	// The runtime keeps idle threads.
	if after := countResources(t); after.threads > before.threads+int(sessionCount)/4 {
		t.Errorf("%d threads have become %d", before.threads, after.threads)
	}
	if total := c.Relay.SessionsTotal(); total < sessionCount {
		t.Errorf("the relay counted %d sessions", total)
	}
}

// settle waits until no more resources are being released, and counts those in use.
func settle(c *Chain) resources {
	c.T.Helper()
	c.AwaitRelease()
	const readings = 20 // of the same counts, one after another
	counted, same := resources{}, 0
	c.Await("no more resources are released", func() bool {
		if now := countResources(c.T); now != counted {
			counted, same = now, 0
		}
		same++
		time.Sleep(2 * time.Millisecond)
		return same > readings
	})
	return counted
}

func testAClientThatVanishesIsReleasedAndOthersContinue(t *testing.T) {
	Parallel(t)
	c := Start(t, Options{})
	v, err := client.Open(c.Context(), c.QueueConfig(8))
	if err != nil {
		t.Fatal(err)
	}
	other := c.Open(c.Config())
	SubmitReads(t, v.Queue(0), 8)
	v.Abort()
	c.Await("the relay releases the session", func() bool { return c.Relay.Sessions() == 1 })
	if _, err := other.WriteAt([]byte("undisturbed"), 0); err != nil {
		t.Errorf("another client: %v", err)
	}
}
