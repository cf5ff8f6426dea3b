// SPDX-License-Identifier: Apache-2.0

package chaintest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func testWhatIsWrittenIsRead(t *testing.T) {
	Parallel(t)
	for _, o := range []struct {
		name string
		Options
	}{
		{"memory", Options{}},
		{"memory with CRC", Options{CRC: true}},
		{"file", Options{Spec: VolumeName + "=file:" + t.TempDir() + "/disk.img,size=8MiB"}},
	} {
		t.Run(o.name, func(t *testing.T) {
			c := Start(t, o.Options)
			v := c.Open(c.Config())
			if got := v.Info().Size; got != VolumeSize {
				t.Fatalf("the volume has %d bytes, want %d", got, VolumeSize)
			}
			for i, piece := range []struct{ offset, length int }{
				{0, BlockSize}, {BlockSize, 3 << 20}, {5<<20 + 1, 1},
				{5<<20 + 4095, 2}, {5<<20 + 100, 2<<20 + 333},
				{VolumeSize - 1, 1}, {VolumeSize - 100, 100}, {7, 0},
			} {
				want := RandomBytes(piece.length, byte(i))
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

func testReadsStopAtTheEndOfTheVolumeAndWritesFailThere(t *testing.T) {
	Parallel(t)
	c := Start(t, Options{})
	v := c.Open(c.Config())
	buffer := make([]byte, 200)
	if n, err := v.ReadAt(buffer, VolumeSize-50); n != 50 || !errors.Is(err, io.EOF) {
		t.Errorf("read across the end: %d, %v", n, err)
	}
	if n, err := v.ReadAt(buffer, VolumeSize); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	if n, err := v.WriteAt(buffer, VolumeSize-50); n != 0 || !errors.Is(err, status.InvalidValue) {
		t.Errorf("write across the end: %d, %v", n, err)
	}
	if _, err := v.ReadAt(buffer, -1); !errors.Is(err, status.InvalidValue) {
		t.Errorf("read at -1: %v", err)
	}
}

func testZeroesAndTrimWorkOnWholeBlocks(t *testing.T) {
	Parallel(t)
	c := Start(t, Options{})
	v := c.Open(c.Config())
	if _, err := v.WriteAt(RandomBytes(4*BlockSize, 0), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.WriteZeroes(BlockSize, 2*BlockSize); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2*BlockSize)
	if _, err := v.ReadAt(got, BlockSize); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, make([]byte, 2*BlockSize)) {
		t.Error("zeroes were not written")
	}
	if err := v.Trim(0, 4*BlockSize); err != nil {
		t.Errorf("trim: %v", err)
	}
	if err := v.Trim(1, BlockSize); !errors.Is(err, status.InvalidValue) {
		t.Errorf("trim inside a block: %v", err)
	}
}

// testBadRequestsFailAndTheSessionContinues submits requests that a client of ours would not send.
func testBadRequestsFailAndTheSessionContinues(t *testing.T) {
	Parallel(t)
	c := Start(t, Options{})
	config := c.QueueConfig(8)
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
	v := c.Open(config)
	q := v.Queue(0)
	for i, message := range []iomsg.Message{
		{Type: iomsg.Type(77), IOSize: BlockSize},
		{Type: iomsg.Read, IOSize: BlockSize, StorageOffset: VolumeSize},
		{Type: iomsg.Read, IOSize: 100},
		{Type: iomsg.Read, IOSize: 2 * BlockSize},
		{Type: iomsg.Write, IOSize: BlockSize, RequesterOffset: 1 << 40},
	} {
		want := status.InvalidValue
		if message.IOSize == 2*BlockSize {
			want = status.TooBig
		}
		bad = &message
		SubmitRead(t, q, uint64(i))
		if got := Collect(t, q, 1)[uint64(i)]; got[0] != want {
			t.Errorf("request %d ended with %v, want %v", i, got, want)
		}
	}
	bad = nil
	SubmitReads(t, q, 8)
	ExpectOnce(t, Collect(t, q, 8), 8, status.Success)
}

func testNoIOAllocatesAnywhereInTheChain(t *testing.T) {
	// Not parallel: it counts the allocations of this process.
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1 // every allocation
	t.Cleanup(func() { runtime.MemProfileRate = rate })
	for _, spec := range []string{VolumeName + "=memory:8MiB",
		VolumeName + "=file:" + t.TempDir() + "/disk.img,size=8MiB"} {
		for _, kind := range []client.RequestType{client.Read, client.Write} {
			t.Run(fmt.Sprintf("%v %v", spec[:10], kind), func(t *testing.T) {
				c := Start(t, Options{Spec: spec})
				v := c.Open(c.QueueConfig(32))
				engine := NewEngine(t, v.Queue(0))
				TransferAll(t, v, engine, kind, BlockSize, 32, 500) // warm up
				const count = 2000
				// A contended lock allocates now and then; an IO must not. The best of three tells
				// them apart.
				fewest := int64(count)
				for range 3 {
					before := dataPathAllocations()
					TransferAll(t, v, engine, kind, BlockSize, 32, count)
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
