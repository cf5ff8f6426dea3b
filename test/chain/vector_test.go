// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// vector returns slices of n bytes in all, some of which are empty.
func vector(random *rand.Rand, n int, content []byte) (slices [][]byte) {
	for n > 0 {
		length := min(random.IntN(3*blockSize), n)
		if random.IntN(4) == 0 {
			length = 0
		}
		piece := make([]byte, length)
		content = content[copy(piece, content):]
		slices, n = append(slices, piece), n-length
	}
	return append(slices, nil)
}

func TestSlicesAreWrittenAndReadOneAfterTheOther(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	config := c.Config()
	config.BufferSize, config.SyncDepth = 4*blockSize, 2
	v := c.Open(config)
	random := seedtest.Random(t, 1)
	want := chaintest.RandomBytes(volumeSize, 1)
	if _, err := v.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		n := random.IntN(20 * blockSize)
		off := random.IntN(volumeSize - n)
		data := chaintest.RandomBytes(n, byte(i))
		copy(want[off:], data)
		wrote, err := v.WriteVAt(vector(random, n, data), int64(off))
		if err != nil || wrote != n {
			t.Fatalf("write %d bytes at %d: %d, %v", n, off, wrote, err)
		}
		n = random.IntN(20 * blockSize)
		off = random.IntN(volumeSize - n)
		found := vector(random, n, nil)
		read, err := v.ReadVAtContext(c.Context(), found, int64(off))
		if err != nil || read != n {
			t.Fatalf("read %d bytes at %d: %d, %v", n, off, read, err)
		}
		if !bytes.Equal(slices.Concat(found...), want[off:off+n]) {
			t.Fatalf("%d bytes at %d are not what was written", n, off)
		}
	}
	found := make([]byte, volumeSize)
	if _, err := v.ReadAt(found, 0); err != nil || !bytes.Equal(found, want) {
		t.Errorf("the volume is not as it was written: %v", err)
	}
	ends := [][]byte{make([]byte, 30), make([]byte, 30)}
	if n, err := v.ReadVAt(ends, volumeSize-50); n != 50 || !errors.Is(err, io.EOF) ||
		!bytes.Equal(slices.Concat(ends...), append(want[volumeSize-50:], make([]byte, 10)...)) {
		t.Errorf("read across the end: %d, %v", n, err)
	}
	if n, err := v.WriteVAt(ends, volumeSize-50); n != 0 || !errors.Is(err, status.InvalidValue) {
		t.Errorf("write across the end: %d, %v", n, err)
	}
}

// Many small slices take as few requests as one large slice.
func TestSlicesShareRequests(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{Gated: true})
	v := c.Open(c.Config())
	many := make([][]byte, 2*blockSize)
	for i := range many {
		many[i] = []byte{byte(i)}
	}
	for name, call := range map[string]func([][]byte, int64) (int, error){
		"write": v.WriteVAt, "read": v.ReadVAt,
	} {
		before := c.Gate.Submitted.Load()
		if n, err := call(many, blockSize); n != len(many) || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		if n := c.Gate.Submitted.Load() - before; n != 1 {
			t.Errorf("%s: %d slices took %d requests, want 1", name, len(many), n)
		}
	}
}

func TestSegmentsAreScatteredAndGathered(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	config := c.QueueConfig(4)
	config.BufferSize, config.SyncDepth = 4*blockSize, 2
	v := c.Open(config)
	q, memory := v.Queue(0), v.Memory()
	want := chaintest.RandomBytes(5*blockSize, 1)
	request := client.Request{Type: client.Write, Offset: 3 * blockSize, Length: 5 * blockSize}
	blocks := []uint64{9, 1, 4} // of the memory; the second segment has 3
	lengths := []uint64{1, 3, 1}
	fill := func(f func(segment, data []byte)) {
		data := want
		for i, block := range blocks {
			n := lengths[i] * blockSize
			f(memory[block*blockSize:][:n], data[:n])
			data = data[n:]
		}
	}
	for i, block := range blocks {
		request.Segments = append(request.Segments, client.Segment{Memory: block * blockSize,
			Length: uint32(lengths[i] * blockSize)})
	}
	fill(func(segment, data []byte) { copy(segment, data) })
	transfer := func(tag uint64) {
		request.Tag = tag
		if err := q.Submit(&request); err != nil {
			t.Fatal(err)
		}
		q.Ring()
		codes := chaintest.Collect(t, q, 1)
		if got := codes[tag]; len(got) != 1 || got[0] != status.Success {
			t.Fatalf("request %d ended with %v", tag, got)
		}
	}
	transfer(1)
	clear(memory)
	request.Type = client.Read
	transfer(2)
	fill(func(segment, data []byte) {
		if !bytes.Equal(segment, data) {
			t.Error("a segment is not what was written")
		}
	})
	found := make([]byte, len(want))
	if _, err := v.ReadAt(found, 3*blockSize); err != nil || !bytes.Equal(found, want) {
		t.Errorf("the volume is not as it was written: %v", err)
	}
}

// forcedVolume counts writes with force unit access.
type forcedVolume struct {
	volume.Volume
	forced, others atomic.Int64
}

func (*forcedVolume) Memory() *memory.Region { return nil }

func (v *forcedVolume) NewQueue(depth int) (volume.Queue, error) {
	q, err := v.Volume.NewQueue(depth)
	return &forcedQueue{q, v}, err
}

type forcedQueue struct {
	volume.Queue
	volume *forcedVolume
}

func (q *forcedQueue) Submit(r *volume.Request) error {
	if r.Operation == iomsg.OpWrite && r.ForceUnitAccess {
		q.volume.forced.Add(1)
	} else if r.Operation == iomsg.OpWrite {
		q.volume.others.Add(1)
	}
	return q.Queue.Submit(r)
}

func TestEveryPartOfADurableWriteIsForced(t *testing.T) {
	chaintest.Parallel(t)
	var counted *forcedVolume
	c := chaintest.Start(t, options{Target: func(config *target.Config) {
		counted = &forcedVolume{Volume: config.Volumes[volumeName].Volume}
		config.Volumes = map[string]target.Offer{volumeName: {Volume: counted}}
	}})
	v := c.Open(c.Config())
	data := chaintest.RandomBytes(2*blockSize, 1)
	for name, write := range map[string]func() (int, error){
		"without a context": func() (int, error) { return v.WriteAtFUA(data, blockSize-1) },
		"with a context": func() (int, error) {
			return v.WriteAtFUAContext(c.Context(), data, 5*blockSize-1)
		},
	} {
		before := counted.forced.Load()
		if n, err := write(); n != len(data) || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		if n := counted.forced.Load() - before; n != 3 { // both ends, and the block in between
			t.Errorf("%s: %d writes were forced, want 3", name, n)
		}
	}
	if n := counted.others.Load(); n != 0 {
		t.Errorf("%d writes were not forced", n)
	}
	found := make([]byte, len(data))
	if _, err := v.ReadAt(found, blockSize-1); err != nil || !bytes.Equal(found, data) {
		t.Errorf("what was written is not read: %v", err)
	}
	if _, err := v.WriteAt(data, 0); err != nil || counted.others.Load() == 0 {
		t.Errorf("a write that is not durable was forced, error %v", err)
	}
}

func TestAnIteratorReportsTheExtentsWithTheirOffsets(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	config := c.Config()
	config.SyncDepth = 1 // a loop uses the volume: the iterator must not hold what it needs
	v := c.Open(config)
	for i := int64(1); i < 800; i += 2 { // more extents than one request reports
		if _, err := v.WriteAt([]byte{1}, i*blockSize); err != nil {
			t.Fatal(err)
		}
	}
	want, err := v.Extents(0, volumeSize)
	if err != nil {
		t.Fatal(err)
	}
	next, count := int64(0), 0
	for e, err := range v.AllExtents(c.Context(), 0, volumeSize) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Offset != next || count >= len(want) || e.Extent != want[count] {
			t.Fatalf("extent %d is %+v, want %+v at %d", count, e, want[min(count, len(want)-1)],
				next)
		}
		next, count = next+int64(e.Length), count+1
	}
	if next != volumeSize || count != len(want) {
		t.Errorf("%d extents up to %d, want %d", count, next, len(want))
	}
	for e := range v.AllExtents(c.Context(), 0, volumeSize) {
		if _, err := v.WriteAt(make([]byte, 1), e.Offset+blockSize); err != nil {
			t.Fatal(err)
		}
		break
	}
	for range v.AllExtents(c.Context(), blockSize, 0) {
		t.Error("an empty range has an extent")
	}
	ended, cancel := context.WithCancel(c.Context())
	defer cancel()
	seen := 0
	var last error
	for _, err := range v.AllExtents(ended, 0, volumeSize) {
		if last != nil {
			t.Error("something follows an error")
		}
		if seen++; seen == 10 {
			cancel()
		}
		last = err
	}
	if !errors.Is(last, context.Canceled) || seen < 10 || seen >= len(want) {
		t.Errorf("after the end of its context, the iterator went on to element %d, error %v",
			seen, last)
	}
	for _, err := range v.AllExtents(c.Context(), 1, blockSize) {
		last = err
	}
	if !errors.Is(last, status.InvalidValue) {
		t.Errorf("the extents of a part of a block: %v", last)
	}
}

// TestTwoVolumesCopyThroughTheMemoryOfTheApplication reads from one volume, and writes the same
// memory to another.
func TestTwoVolumesCopyThroughTheMemoryOfTheApplication(t *testing.T) {
	chaintest.Parallel(t)
	from, to := chaintest.Start(t, options{}), chaintest.Start(t, options{})
	const size = 16 * blockSize
	shared, err := memory.Alloc("copy", size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := shared.Close(); err != nil {
			t.Error(err)
		}
	}()
	open := func(c *chaintest.Chain) *client.Volume {
		config := c.QueueConfig(1)
		config.BufferSize, config.Memory = size, shared
		v, err := client.Open(c.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	want := chaintest.RandomBytes(size, 1)
	v := from.Open(from.Config())
	if _, err := v.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	source, sink := open(from), open(to)
	for i, v := range []*client.Volume{source, sink} {
		q, kind := v.Queue(0), []client.RequestType{client.Read, client.Write}[i]
		err := q.Submit(&client.Request{Type: kind, Length: size, Tag: 1})
		if err != nil {
			t.Fatal(err)
		}
		q.Ring()
		chaintest.ExpectOnce(t, map[uint64][]status.Code{0: chaintest.Collect(t, q, 1)[1]}, 1,
			status.Success)
	}
	if !bytes.Equal(shared.Bytes(), want) {
		t.Error("the application does not find the data in its memory")
	}
	if err := errors.Join(source.Closer().Close(), sink.Closer().Close()); err != nil {
		t.Error(err)
	}
	shared.Bytes()[0]++ // the memory is still there, and nobody else's
	found := make([]byte, size)
	if _, err := to.Open(to.Config()).ReadAt(found, 0); err != nil || !bytes.Equal(found, want) {
		t.Errorf("the copy is not the original: %v", err)
	}
}
