package chain

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

func TestEightClientsAtOnceKeepOutOfEachOthersWay(t *testing.T) {
	c := start(t, options{})
	const clients, share = 8, volumeSize / 8
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			v, err := client.Open(c.context(), c.config())
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
			if err := v.Close(c.context()); err != nil {
				t.Errorf("client %d: close: %v", i, err)
			}
		})
	}
	running.Wait()
}

// resources counts what a session must give back.
type resources struct{ descriptors, mappings, goroutines int }

func countResources(t *testing.T) resources {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return resources{len(descriptors), strings.Count(string(maps), "memfd:"), runtime.NumGoroutine()}
}

func TestSessionsOneAfterAnotherLeakNothing(t *testing.T) {
	c := start(t, options{})
	session := func() {
		v, err := client.Open(c.context(), c.config())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.WriteAt([]byte("x"), 5); err != nil {
			t.Fatal(err)
		}
		if err := v.Close(c.context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		session()
	}
	before := settle(t, c)
	for range sessionCount {
		session()
	}
	after := settle(t, c)
	if after.descriptors > before.descriptors || after.mappings > before.mappings || after.goroutines > before.goroutines {
		t.Errorf("after %d sessions %+v, before %+v", sessionCount, after, before)
	}
	if total := c.relay.SessionsTotal(); total < sessionCount {
		t.Errorf("the relay counted %d sessions", total)
	}
}

// settle waits until the last session is gone, and counts.
func settle(t *testing.T, c *chain) resources {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for c.relay.Sessions() > 0 || c.target.Sessions() > 1 { // the relay's standing one
		if time.Now().After(deadline) {
			t.Fatalf("%d relay and %d target sessions do not end", c.relay.Sessions(), c.target.Sessions())
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	return countResources(t)
}

func TestAClientThatVanishesIsReleasedWithinASecond(t *testing.T) {
	c := start(t, options{})
	v, err := client.Open(c.context(), c.queueConfig(8))
	if err != nil {
		t.Fatal(err)
	}
	other := c.open(c.config())
	submitReads(t, v.Queue(0), 8)
	v.Abort()
	deadline := time.Now().Add(testTimeout)
	for c.relay.Sessions() > 1 {
		if time.Now().After(deadline) {
			t.Fatal("the relay does not notice")
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := other.WriteAt([]byte("undisturbed"), 0); err != nil {
		t.Errorf("another client: %v", err)
	}
}

// transferAll keeps depth requests outstanding until count are done. It is
// the inner loop of every benchmark: it must not allocate.
func transferAll(tb testing.TB, v *client.Volume, engine *progress.Engine, kind iomsg.Type, size uint32, depth, count int) {
	q := v.Queue(0)
	blocks := v.Info().Size / uint64(size)
	var results [64]client.Result
	request := client.Request{Type: kind, Length: size}
	submitted, done := 0, 0
	submit := func(tag uint64) {
		request.Tag, request.Memory = tag, tag*uint64(size)
		request.Offset = uint64(submitted) * 7919 % blocks * uint64(size)
		if err := q.Submit(&request); err != nil {
			tb.Fatal(err)
		}
		submitted++
	}
	for tag := range uint64(min(depth, count)) {
		submit(tag)
	}
	q.Flush()
	for done < count {
		n := q.Poll(results[:])
		for _, r := range results[:n] {
			if r.Code != 0 {
				tb.Fatalf("request failed: %v", r.Code)
			}
			if done++; submitted < count {
				submit(r.Tag)
			}
		}
		q.Flush()
		engine.Idle(n)
	}
}

func newEngine(tb testing.TB, q *client.Queue) *progress.Engine {
	tb.Helper()
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		tb.Fatal(err)
	}
	if err := q.Attach(engine); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		q.Detach(engine)
		if err := engine.Close(); err != nil {
			tb.Error(err)
		}
	})
	return engine
}

func TestNoIOAllocatesAnywhereInTheChain(t *testing.T) {
	for _, spec := range []string{volumeName + "=memory:8MiB", volumeName + "=file:" + t.TempDir() + "/disk.img,size=8MiB"} {
		for _, kind := range []iomsg.Type{iomsg.Read, iomsg.Write} {
			t.Run(fmt.Sprintf("%v %v", spec[:10], kind), func(t *testing.T) {
				c := start(t, options{spec: spec})
				v := c.open(c.queueConfig(32))
				engine := newEngine(t, v.Queue(0))
				transferAll(t, v, engine, kind, blockSize, 32, 2000) // warm up
				const count = 20000
				// Keep-alives, tickers and contended locks allocate now and
				// then; an IO must not. The best of three tells them apart.
				fewest := uint64(count)
				for range 3 {
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					transferAll(t, v, engine, kind, blockSize, 32, count)
					runtime.ReadMemStats(&after)
					fewest = min(fewest, after.Mallocs-before.Mallocs)
				}
				if fewest > count/50 {
					t.Errorf("%d allocations in %d IOs", fewest, count)
				}
			})
		}
	}
}

func TestGarbageCollectionDoesNotStopTheWorkers(t *testing.T) {
	c := start(t, options{
		relay: nil,
	})
	v := c.open(c.queueConfig(32))
	engine := newEngine(t, v.Queue(0))
	stop := make(chan struct{})
	var collecting sync.WaitGroup
	collections := 0
	collecting.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				runtime.GC()
				collections++
			}
		}
	})
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	for start := time.Now(); time.Since(start) < 500*time.Millisecond; {
		transferAll(t, v, engine, iomsg.Read, blockSize, 32, 1000)
	}
	close(stop)
	collecting.Wait()
	if collections < 3 {
		t.Errorf("only %d collections finished while the workers were busy", collections)
	}
}
