package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// queueConfig returns the configuration of a client with one queue and no synchronous requests.
func (c *chain) queueConfig(depth int) client.Config {
	config := c.config()
	config.Queues, config.Depth, config.BufferSize, config.SyncDepth = 1, depth, blockSize, -1
	return config
}

// submitReads submits depth reads of whole blocks, tagged from 0.
func submitReads(t *testing.T, q *client.Queue, depth int) {
	t.Helper()
	for i := range uint64(depth) {
		err := q.Submit(&client.Request{Type: iomsg.Read, Length: blockSize, Offset: i * blockSize,
			Memory: i * blockSize, Tag: i})
		if err != nil {
			t.Fatalf("submit %d: %v", i, err)
		}
	}
	q.Flush()
}

// collect polls until count results have arrived, and a moment longer for unexpected ones.
func collect(t *testing.T, q *client.Queue, count int) map[uint64][]status.Code {
	t.Helper()
	codes := map[uint64][]status.Code{}
	results := make([]client.Result, 32)
	deadline := time.Now().Add(testkit.Patience)
	for total := 0; total < count; {
		n := q.Poll(results)
		for _, r := range results[:n] {
			codes[r.Tag] = append(codes[r.Tag], r.Code)
		}
		if total += n; n == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d results arrived", total, count)
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	time.Sleep(10 * time.Millisecond)
	if n := q.Poll(results); n != 0 {
		t.Errorf("%d results too many", n)
	}
	return codes
}

// expectOnce checks that each of the count requests completed exactly once, with code.
func expectOnce(t *testing.T, codes map[uint64][]status.Code, count int, code status.Code) {
	t.Helper()
	for tag := range uint64(count) {
		if got := codes[tag]; len(got) != 1 || got[0] != code {
			t.Errorf("request %d ended with %v, want %v once", tag, got, code)
		}
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

// randomBytes returns bytes that differ from place to place, and from those of another seed.
func randomBytes(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	parallel(t)
	for _, o := range []struct {
		name string
		options
	}{
		{"memory", options{}},
		{"memory with CRC", options{crc: true}},
		{"file", options{spec: volumeName + "=file:" + t.TempDir() + "/disk.img,size=8MiB"}},
	} {
		t.Run(o.name, func(t *testing.T) {
			c := start(t, o.options)
			v := c.open(c.config())
			if got := v.Info().Size; got != volumeSize {
				t.Fatalf("the volume has %d bytes, want %d", got, volumeSize)
			}
			for i, piece := range []struct{ offset, length int }{
				{0, blockSize}, {blockSize, 3 << 20}, {5<<20 + 1, 1},
				{5<<20 + 4095, 2}, {5<<20 + 100, 2<<20 + 333},
				{volumeSize - 1, 1}, {volumeSize - 100, 100}, {7, 0},
			} {
				want := randomBytes(piece.length, byte(i))
				if n, err := v.WriteAt(want, int64(piece.offset)); n != piece.length || err != nil {
					t.Fatalf("write %d bytes at %d: %d, %v", piece.length, piece.offset, n, err)
				}
				got := make([]byte, piece.length)
				if n, err := v.ReadAt(got, int64(piece.offset)); n != piece.length || err != nil {
					t.Fatalf("read %d bytes at %d: %d, %v", piece.length, piece.offset, n, err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%d bytes at %d are not what was written", piece.length, piece.offset)
				}
			}
			if err := v.Flush(); err != nil {
				t.Errorf("flush: %v", err)
			}
		})
	}
}

// TestTheMemoryOfACallerThatHasLeftIsNotTouched uses a buffer as soon as a call has returned. The
// race detector sees what else does.
func TestTheMemoryOfACallerThatHasLeftIsNotTouched(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	v := c.open(c.config())
	buffer := make([]byte, 8*blockSize)
	left, stayed := 0, 0
	for i := 0; left < 50 || stayed < 50; i++ {
		ctx, cancel := context.WithTimeout(c.context(), time.Duration(i%40)*10*time.Microsecond)
		var err error
		if i%2 == 0 {
			_, err = v.ReadAtContext(ctx, buffer, 100)
		} else {
			_, err = v.WriteAtContext(ctx, buffer, 100)
		}
		cancel()
		switch {
		case err == nil:
			stayed++
		case errors.Is(err, context.DeadlineExceeded):
			left++
		default:
			t.Fatal(err)
		}
		if i%40 == 0 {
			if _, err := v.ReadAtContext(c.context(), buffer, 100); err != nil {
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

func TestReadsStopAtTheEndOfTheVolumeAndWritesFailThere(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	v := c.open(c.config())
	buffer := make([]byte, 200)
	if n, err := v.ReadAt(buffer, volumeSize-50); n != 50 || !errors.Is(err, io.EOF) {
		t.Errorf("read across the end: %d, %v", n, err)
	}
	if n, err := v.ReadAt(buffer, volumeSize); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	if n, err := v.WriteAt(buffer, volumeSize-50); n != 0 || !errors.Is(err, status.InvalidValue) {
		t.Errorf("write across the end: %d, %v", n, err)
	}
	if _, err := v.ReadAt(buffer, -1); !errors.Is(err, status.InvalidValue) {
		t.Errorf("read at -1: %v", err)
	}
}

func TestZeroesAndTrimWorkOnWholeBlocks(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	v := c.open(c.config())
	if _, err := v.WriteAt(randomBytes(4*blockSize, 0), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.WriteZeroes(blockSize, 2*blockSize); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2*blockSize)
	if _, err := v.ReadAt(got, blockSize); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, make([]byte, 2*blockSize)) {
		t.Error("zeroes were not written")
	}
	if err := v.Trim(0, 4*blockSize); err != nil {
		t.Errorf("trim: %v", err)
	}
	if err := v.Trim(1, blockSize); !errors.Is(err, status.InvalidValue) {
		t.Errorf("trim inside a block: %v", err)
	}
}

func TestPunchedHolesFreeSpaceAndZeroesKeepIt(t *testing.T) {
	parallel(t)
	path := t.TempDir() + "/disk.img"
	c := start(t, options{spec: volumeName + "=file:" + path + ",size=8MiB"})
	v := c.open(c.config())
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
		if _, err := v.WriteAt(randomBytes(3*blockSize, 0), 0); err != nil {
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
	parallel(t)
	hole := func(n uint64) iomsg.Extent {
		return iomsg.Extent{Length: n * blockSize, Flags: iomsg.Hole}
	}
	const blocks = volumeSize / blockSize
	for _, isolation := range []relay.Isolation{relay.Direct, relay.Staged} {
		c := start(t, options{channel: func(c *relay.ChannelConfig) { c.Isolation = isolation }})
		v := c.open(c.config())
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
	parallel(t)
	c := start(t, options{})
	v := c.open(c.config())
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
	parallel(t)
	c := start(t, options{})
	v := c.open(c.config())
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
	c.await("reads succeed", func() bool { return reads.Load() >= 20 })
	if err := v.Close(c.context()); err != nil {
		t.Errorf("close: %v", err)
	}
	reading.Wait()
	if err := v.Close(c.context()); err != nil {
		t.Errorf("second close: %v", err)
	}
	v.Abort()
	if _, err := v.ReadAt(make([]byte, 1), 0); err == nil {
		t.Error("a closed volume can be read")
	}
}

func TestTheDepthLimitsASubmitter(t *testing.T) {
	parallel(t)
	c := start(t, options{gated: true})
	gate := c.gate
	gate.closed.Store(true)
	v := c.open(c.queueConfig(4))
	q := v.Queue(0)
	submitReads(t, q, 4)
	err := q.Submit(&client.Request{Type: iomsg.Read, Length: blockSize})
	if !errors.Is(err, status.Again) {
		t.Errorf("submit beyond the depth: %v", err)
	}
	gate.closed.Store(false)
	expectOnce(t, collect(t, q, 4), 4, status.Success)
}

// TestBadRequestsFailAndTheSessionContinues submits requests that a client of ours would not send.
func TestBadRequestsFailAndTheSessionContinues(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	config := c.queueConfig(8)
	var bad *iomsg.Message // what to send in place of the next request
	config.Provider = comchtest.Tamper(config.Provider, func(message []byte) {
		if bad == nil {
			return
		}
		var original iomsg.Message
		iomsg.Decode(message, &original)
		bad.UserData = original.UserData
		iomsg.Encode(message, bad)
	})
	v := c.open(config)
	q := v.Queue(0)
	for i, message := range []iomsg.Message{
		{Type: iomsg.Type(77), IOSize: blockSize},
		{Type: iomsg.Read, IOSize: blockSize, StorageOffset: volumeSize},
		{Type: iomsg.Read, IOSize: 100},
		{Type: iomsg.Read, IOSize: 2 * blockSize},
		{Type: iomsg.Write, IOSize: blockSize, RequesterOffset: 1 << 40},
	} {
		want := status.InvalidValue
		if message.IOSize == 2*blockSize {
			want = status.TooBig
		}
		bad = &message
		submitRead(t, q, uint64(i))
		if got := collect(t, q, 1)[uint64(i)]; got[0] != want {
			t.Errorf("request %d ended with %v, want %v", i, got, want)
		}
	}
	bad = nil
	submitReads(t, q, 8)
	expectOnce(t, collect(t, q, 8), 8, status.Success)
}

// transferAll keeps depth requests outstanding until count have completed. It must not allocate.
func transferAll(tb testing.TB, v *client.Volume, engine *progress.Engine, kind iomsg.Type,
	size uint32, depth, count int) {
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

func TestNoIOAllocatesAnywhereInTheChain(t *testing.T) {
	// Not parallel: it counts the allocations of this process.
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1 // every allocation
	t.Cleanup(func() { runtime.MemProfileRate = rate })
	for _, spec := range []string{volumeName + "=memory:8MiB",
		volumeName + "=file:" + t.TempDir() + "/disk.img,size=8MiB"} {
		for _, kind := range []iomsg.Type{iomsg.Read, iomsg.Write} {
			t.Run(fmt.Sprintf("%v %v", spec[:10], kind), func(t *testing.T) {
				c := start(t, options{spec: spec})
				v := c.open(c.queueConfig(32))
				engine := newEngine(t, v.Queue(0))
				transferAll(t, v, engine, kind, blockSize, 32, 500) // warm up
				const count = 2000
				// A contended lock allocates now and then; an IO must not. The best of three tells
				// them apart.
				fewest := int64(count)
				for range 3 {
					before := dataPathAllocations()
					transferAll(t, v, engine, kind, blockSize, 32, count)
					fewest = min(fewest, dataPathAllocations()-before)
				}
				if fewest > count/50 {
					t.Errorf("%d allocations in %d IOs", fewest, count)
				}
			})
		}
	}
}

// dataPathAllocations returns how many objects the goroutines that carry IO have allocated since
// the process has profiled memory: those of workers, of volumes, and of the application. Control
// connections and timers allocate as time passes, which says nothing about an IO.
func dataPathAllocations() (allocated int64) {
	runtime.GC() // the profile is that of the collection before the last
	runtime.GC()
	records, complete := make([]runtime.MemProfileRecord, 1<<10), false
	for n := len(records); !complete; {
		records = make([]runtime.MemProfileRecord, 2*n)
		n, complete = runtime.MemProfile(records, true)
		records = records[:min(n, len(records))]
	}
	for i := range records {
		frames := runtime.CallersFrames(records[i].Stack())
		for more := true; more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			if slices.ContainsFunc(dataPath, func(name string) bool {
				return strings.Contains(frame.Function, name)
			}) {
				allocated += records[i].AllocObjects
				break
			}
		}
	}
	return allocated
}

// dataPath names functions that are on the stacks of the goroutines that carry IO.
var dataPath = []string{"pkg/datapath.(*Worker).run", "pkg/volume.", "chain.transferAll"}

func TestGarbageCollectionDoesNotStopTheWorkers(t *testing.T) {
	// Not parallel: it changes how often this process collects garbage.
	c := start(t, options{})
	v := c.open(c.queueConfig(32))
	engine := newEngine(t, v.Queue(0))
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
	c.await("collections finish while the workers are busy", func() bool {
		transferAll(t, v, engine, iomsg.Read, blockSize, 32, 1000)
		return collections.Load() >= 10
	})
	close(stop)
	collecting.Wait()
}
