// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// TestTheMemoryOfACallerThatHasLeftIsNotTouched uses a buffer as soon as a call has returned. The
// race detector sees what else does.
func TestTheMemoryOfACallerThatHasLeftIsNotTouched(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	v := c.Open(c.Config())
	buffer := make([]byte, 8*blockSize)
	halves := [2][]byte{buffer[:5000], buffer[5000:]}
	left, stayed := 0, 0
	for i := 0; left < 50 || stayed < 50; i++ {
		ctx, cancel := context.WithTimeout(c.Context(), time.Duration(i%40)*10*time.Microsecond)
		var err error
		switch i % 4 {
		case 0:
			_, err = v.ReadAtContext(ctx, buffer, 100)
		case 1:
			_, err = v.WriteAtContext(ctx, buffer, 100)
		case 2:
			_, err = v.ReadVAtContext(ctx, halves[:], 100)
		case 3:
			_, err = v.WriteVAtContext(ctx, halves[:], 100)
		}
		cancel()
		halves[0], halves[1] = halves[1], halves[0]
		switch {
		case err == nil:
			stayed++
		case errors.Is(err, context.DeadlineExceeded):
			left++
		default:
			t.Fatal(err)
		}
		if i%40 == 0 {
			if _, err := v.ReadAtContext(c.Context(), buffer, 100); err != nil {
				t.Fatal(err)
			}
			stayed++
		}
		for j := range buffer {
			buffer[j] = byte(i)
		}
		if !bytes.Equal(buffer, bytes.Repeat([]byte{byte(i)}, len(buffer))) {
			t.Fatal("the buffer changed after its call had returned")
		}
	}
}

func TestPunchedHolesFreeSpaceAndZeroesKeepIt(t *testing.T) {
	chaintest.Parallel(t)
	path := t.TempDir() + "/disk.img"
	c := chaintest.Start(t, options{Spec: volumeName + "=file:" + path + ",size=8MiB"})
	v := c.Open(c.Config())
	allocated := func() int64 {
		if err := v.Flush(); err != nil {
			t.Fatal(err)
		}
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Blocks
	}
	for name, clearRange := range map[string]func(off, length int64) error{
		"hole": v.PunchHole, "zeroes": v.WriteZeroes,
	} {
		if _, err := v.WriteAt(chaintest.RandomBytes(3*blockSize, 0), 0); err != nil {
			t.Fatal(err)
		}
		before := allocated()
		if err := clearRange(blockSize, blockSize); err != nil {
			t.Fatal(err)
		}
		got, want := make([]byte, blockSize), make([]byte, blockSize)
		if _, err := v.ReadAt(got, blockSize); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the range does not read as zeroes (%v)", name, err)
		}
		if now := allocated(); (now < before) != (name == "hole") {
			t.Errorf("%s: the file has %d blocks, before %d", name, now, before)
		}
	}
}

func TestExtentsTellWhereTheVolumeHasHoles(t *testing.T) {
	chaintest.Parallel(t)
	hole := func(n uint64) iomsg.Extent {
		return iomsg.Extent{Length: n * blockSize, Flags: iomsg.Hole}
	}
	const blocks = volumeSize / blockSize
	for _, isolation := range []relay.Isolation{relay.Direct, relay.Staged} {
		c := chaintest.Start(t, options{
			Channel: func(c *relay.ChannelConfig) { c.Isolation = isolation }})
		v := c.Open(c.Config())
		if !v.Info().CanReportExtents {
			t.Fatal("a volume in memory does not know where its holes are")
		}
		var want []iomsg.Extent // more than one table has room for
		for i := int64(1); i < 800; i += 2 {
			if _, err := v.WriteAt([]byte{1}, i*blockSize); err != nil {
				t.Fatal(err)
			}
			want = append(want, hole(1), iomsg.Extent{Length: blockSize})
		}
		want = append(want, hole(blocks-800))
		got, err := v.Extents(0, volumeSize)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("isolation %v: extents are %v, %v, want %v", isolation, got, err, want)
		}
		got, err = v.ExtentsContext(t.Context(), 799*blockSize, 3*blockSize)
		want = []iomsg.Extent{{Length: blockSize}, hole(2)}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("isolation %v: extents are %v, %v, want %v", isolation, got, err, want)
		}
		for name, r := range map[string][2]int64{"inside a block": {1, blockSize},
			"beyond the end": {volumeSize, blockSize}, "negative": {-blockSize, blockSize}} {
			if got, err := v.Extents(r[0], r[1]); !errors.Is(err, status.InvalidValue) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	}
}

func TestPartsOfABlockAndWholeBlocksDoNotUndoEachOther(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	v := c.Open(c.Config())
	var writing sync.WaitGroup
	defer writing.Wait()
	for round := range byte(100) {
		whole, part := bytes.Repeat([]byte{round}, blockSize), []byte{^round}
		writing.Go(func() {
			if _, err := v.WriteAt(part, 100); err != nil {
				t.Errorf("write a part: %v", err)
			}
		})
		if _, err := v.WriteAt(whole, 0); err != nil {
			t.Fatal(err)
		}
		writing.Wait()
		got := make([]byte, blockSize)
		if _, err := v.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		got[100] = round // either write may come last
		if !bytes.Equal(got, whole) {
			t.Fatalf("round %d: a write of a part has undone a write of the block", round)
		}
	}
}

func TestCloseWaitsForCallersAndCanBeRepeated(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	v := c.Open(c.Config())
	var reading sync.WaitGroup
	var reads atomic.Int64
	for range 4 {
		reading.Go(func() {
			buffer := make([]byte, 3*blockSize)
			for {
				if _, err := v.ReadAt(buffer, 10); err != nil {
					return
				}
				reads.Add(1)
			}
		})
	}
	c.Await("reads succeed", func() bool { return reads.Load() >= 20 })
	if err := v.Close(c.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	reading.Wait()
	if err := v.Close(c.Context()); err != nil {
		t.Errorf("second close: %v", err)
	}
	v.Abort()
	if _, err := v.ReadAt(make([]byte, 1), 0); err == nil {
		t.Error("a closed volume can be read")
	}
}

func TestTheDepthLimitsASubmitter(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{Gated: true})
	gate := c.Gate
	gate.Closed.Store(true)
	v := c.Open(c.QueueConfig(4))
	q := v.Queue(0)
	chaintest.SubmitReads(t, q, 4)
	err := q.Submit(&client.Request{Type: client.Read, Length: blockSize})
	if !errors.Is(err, status.Again) {
		t.Errorf("submit beyond the depth: %v", err)
	}
	gate.Closed.Store(false)
	chaintest.ExpectOnce(t, chaintest.Collect(t, q, 4), 4, status.Success)
}

func TestGarbageCollectionDoesNotStopTheWorkers(t *testing.T) {
	// Not parallel: it changes how often this process collects garbage.
	c := chaintest.Start(t, options{})
	v := c.Open(c.QueueConfig(32))
	engine := chaintest.NewEngine(t, v.Queue(0))
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	var collections atomic.Int64
	var collecting sync.WaitGroup
	stop := make(chan struct{})
	collecting.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				runtime.GC()
				collections.Add(1)
			}
		}
	})
	// If a worker held up the collector, no collection would finish during the IO; if the collector
	// held up the workers, the IO would not finish.
	c.Await("collections finish while the workers are busy", func() bool {
		chaintest.TransferAll(t, v, engine, client.Read, blockSize, 32, 1000)
		return collections.Load() >= 10
	})
	close(stop)
	collecting.Wait()
}
