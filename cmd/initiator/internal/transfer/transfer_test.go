// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/client/queuetest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testBlock  = 512
	testSize   = 100 * testBlock
	testBuffer = 4 * testBlock
)

// testVolume adds WriteAt and Flush to a volume in memory.
type testVolume struct {
	*queuetest.Volume
	flushes int
	// late makes holes begin and end as many bytes late, and extentsError fails all requests for
	// extents.
	late         uint64
	extentsError error
}

func (v *testVolume) Info() client.Info { return v.Volume.Info }
func (v *testVolume) Memory() []byte    { return v.Volume.Memory }

func (v *testVolume) WriteAt(p []byte, off int64) (int, error) {
	return copy(v.Data()[off:], p), nil
}

func (v *testVolume) Flush() error {
	v.flushes++
	return nil
}

func (v *testVolume) ExtentsContext(_ context.Context, off, length int64) ([]iomsg.Extent,
	error) {
	var found []iomsg.Extent
	for end := off + length; off < end; off += testBlock {
		e := iomsg.Extent{Length: testBlock}
		if isZero(v.Data()[off:][:testBlock]) {
			e.Flags = iomsg.Hole
		}
		if len(found) > 0 && found[len(found)-1].Flags != e.Flags {
			found[len(found)-1].Length += v.late
			e.Length -= v.late
		}
		found = append(found, e)
	}
	return found, v.extentsError
}

func newTestVolume(queues, depth int) (*testVolume, Config) {
	v := &testVolume{Volume: queuetest.New(testSize, testBlock, queues, depth, testBuffer)}
	if _, err := rand.NewChaCha8([32]byte{1}).Read(v.Data()); err != nil {
		panic(err)
	}
	config := Config{Volume: v, Depth: depth, BufferSize: testBuffer, DrainTimeout: time.Minute}
	for i := range queues {
		config.Queues = append(config.Queues, v.Queue(i))
	}
	return v, config
}

// memoryFile is a file that can be written in any order.
type memoryFile struct {
	mu   sync.Mutex
	data []byte
}

func (f *memoryFile) Write([]byte) (int, error) { panic("written in order") }

func (f *memoryFile) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return copy(f.data[off:], p), nil
}

func TestAnyPartOfAVolumeComesBackAsItIs(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		v, config := newTestVolume(rapid.IntRange(1, 4).Draw(t, "queues"),
			rapid.IntRange(1, 5).Draw(t, "depth"))
		v.Queue(0).RefuseEvery = rapid.SampledFrom([]int{0, 2, 3}).Draw(t, "refuse every")
		offset := rapid.IntRange(0, testSize).Draw(t, "offset")
		want := v.Data()[offset:][:rapid.IntRange(0, testSize-offset).Draw(t, "length")]
		file := &memoryFile{data: make([]byte, len(want))}
		if n, err := Get(context.Background(), config, file, uint64(offset),
			uint64(len(want))); err != nil || n != uint64(len(want)) || !bytes.Equal(file.data,
			want) {
			t.Fatalf("a file got %d bytes, error %v", n, err)
		}
		var stream bytes.Buffer
		if _, err := Get(context.Background(), config, &stream, uint64(offset),
			uint64(len(want))); err != nil || !bytes.Equal(stream.Bytes(), want) {
			t.Fatalf("a stream got %d bytes, error %v", stream.Len(), err)
		}
	})
}

func TestAnyStreamPutAnywhereChangesNothingElse(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		v, config := newTestVolume(rapid.IntRange(1, 4).Draw(t, "queues"),
			rapid.IntRange(1, 5).Draw(t, "depth"))
		v.Queue(0).RefuseEvery = rapid.SampledFrom([]int{0, 2, 3}).Draw(t, "refuse every")
		offset := rapid.IntRange(0, testSize).Draw(t, "offset")
		data := bytes.Repeat([]byte("data"), testSize)[:rapid.IntRange(0, testSize-offset).Draw(t,
			"length")]
		want := bytes.Clone(v.Data())
		copy(want[offset:], data)
		size := uint64(len(data))
		if rapid.Bool().Draw(t, "unknown size") {
			size = UnknownSize
		}
		n, err := Put(context.Background(), config, onlyReader{bytes.NewReader(data)}, size,
			uint64(offset))
		if err != nil || n != uint64(len(data)) || !bytes.Equal(v.Data(), want) {
			t.Fatalf("%d bytes put, error %v", n, err)
		}
		if v.flushes != 1 {
			t.Fatalf("the volume was flushed %d times", v.flushes)
		}
	})
}

// onlyReader returns few bytes at a time, like a pipe.
type onlyReader struct{ r io.Reader }

func (o onlyReader) Read(p []byte) (int, error) { return o.r.Read(p[:min(len(p), 777)]) }

func TestWhatDoesNotFitIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		size, offset uint64
		readOnly     bool
		want         status.Code
	}{
		"too large":        {testSize + 1, 0, false, status.TooBig},
		"too far":          {testBlock + 1, testSize - testBlock, false, status.TooBig},
		"past the end":     {0, testSize + 1, false, status.InvalidValue},
		"read-only volume": {1, 0, true, status.NotPermitted},
	} {
		v, config := newTestVolume(1, 2)
		v.Volume.Info.ReadOnly = c.readOnly
		before := bytes.Clone(v.Data())
		_, err := Put(context.Background(), config, bytes.NewReader(make([]byte, 2*testSize)),
			c.size, c.offset)
		if !errors.Is(err, c.want) || program.ExitCode(err) != program.ExitUsage ||
			!bytes.Equal(v.Data(), before) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

func TestAStreamThatGoesOnPastTheEndFailsWhenTheVolumeIsFull(t *testing.T) {
	v, config := newTestVolume(2, 2)
	data := bytes.Repeat([]byte{7}, testSize)
	n, err := Put(context.Background(), config, bytes.NewReader(data), UnknownSize, testBlock+1)
	if !errors.Is(err, status.TooBig) || n != testSize-testBlock-1 ||
		!bytes.Equal(v.Data()[testBlock+1:], data[:n]) {
		t.Errorf("%d bytes put, error %v", n, err)
	}
}

func TestAFileThatEndsBeforeItsSizeFails(t *testing.T) {
	_, config := newTestVolume(1, 2)
	if _, err := Put(context.Background(), config, bytes.NewReader(make([]byte, 5000)), 6000,
		0); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error is %v", err)
	}
}

func TestAnInputThatFailsFailsThePut(t *testing.T) {
	_, config := newTestVolume(2, 2)
	broken := errors.New("broken tape")
	source := io.MultiReader(bytes.NewReader(make([]byte, 5000)), failingReader{broken})
	if _, err := Put(context.Background(), config, source, UnknownSize, 100); !errors.Is(err,
		broken) {
		t.Errorf("error is %v", err)
	}
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

func TestAnOutputThatFailsFailsTheGet(t *testing.T) {
	_, config := newTestVolume(2, 2)
	broken := errors.New("broken pipe")
	if _, err := Get(context.Background(), config, failingWriter{broken}, 0,
		testSize); !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
}

type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }

func TestAFailedRequestFailsTheTransfer(t *testing.T) {
	v, config := newTestVolume(2, 4)
	v.Intercept = func(r *client.Request) status.Code {
		if r.Offset <= testSize/2 && r.Offset+uint64(r.Length) > testSize/2 {
			return status.IOFailed
		}
		return v.Apply(r)
	}
	if _, err := Get(context.Background(), config, io.Discard, 0, testSize); !errors.Is(err,
		status.IOFailed) {
		t.Errorf("get: error is %v", err)
	}
	if _, err := Put(context.Background(), config, bytes.NewReader(make([]byte, testSize)),
		testSize, 0); !errors.Is(err, status.IOFailed) || v.flushes > 0 {
		t.Errorf("put: error is %v, %d flushes", err, v.flushes)
	}
}

func TestRequestsThatNeverCompleteAreGivenUp(t *testing.T) {
	v, config := newTestVolume(1, 2)
	v.Stalled.Store(true)
	config.DrainTimeout = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Get(ctx, config, io.Discard, 0, testSize); !errors.Is(err, status.TimeOut) &&
		!errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestCancellingEndsATransferAsIncomplete(t *testing.T) {
	v, config := newTestVolume(1, 2)
	ctx, cancel := context.WithCancel(context.Background())
	v.Volume.Info.Size = 1 << 50
	v.Intercept = func(r *client.Request) status.Code {
		cancel()
		if r.Type != client.Write {
			return status.NotSupported
		}
		return status.Success
	}
	if _, err := Put(ctx, config, endlessReader{}, UnknownSize, 0); !errors.Is(err,
		context.Canceled) || v.flushes > 0 {
		t.Errorf("error is %v, %d flushes", err, v.flushes)
	}
}

type endlessReader struct{}

func (endlessReader) Read(p []byte) (int, error) { return len(p), nil }

func TestZeroesNeitherCrossTheNetworkNorTakeUpSpace(t *testing.T) {
	v, config := newTestVolume(2, 4)
	v.Volume.Info.CanWriteZeroes = true
	var written atomic.Uint64
	v.Intercept = func(r *client.Request) status.Code {
		if r.Type == client.Write {
			written.Add(uint64(r.Length))
		} else if r.Type == client.WriteZeroes && r.Flags != client.Deallocate {
			t.Errorf("a write of zeroes has the flags %v", r.Flags)
		}
		return v.Apply(r)
	}
	content := make([]byte, testSize)
	content[5*testBuffer] = 1
	moved, err := Put(t.Context(), config, bytes.NewReader(content), testSize, 0)
	if err != nil || moved != testSize || !bytes.Equal(v.Data(), content) ||
		written.Load() != testBuffer {
		t.Errorf("put moved %d bytes, %d of them as data, error %v", moved, written.Load(), err)
	}
	// The file that it is read back to is much larger than what it occupies.
	const size = 64 << 20
	large := &testVolume{Volume: queuetest.New(size, testBlock, 1, 4, 1<<20)}
	large.Data()[size/2] = 1
	config = Config{Volume: large, Queues: []Queue{large.Queue(0)}, Depth: 4, BufferSize: 1 << 20,
		DrainTimeout: time.Minute}
	file, err := os.Create(filepath.Join(t.TempDir(), "copy"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := Get(t.Context(), config, file, 0, size); err != nil {
		t.Fatal(err)
	}
	about, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if occupied := about.Sys().(*syscall.Stat_t).Blocks * 512; about.Size() != size ||
		occupied > 1<<20 {
		t.Errorf("the file has %d bytes and occupies %d", about.Size(), occupied)
	}
	if got, err := os.ReadFile(file.Name()); err != nil || !bytes.Equal(got, large.Data()) {
		t.Errorf("the copy differs, error %v", err)
	}
}

func TestHolesCrossNoNetwork(t *testing.T) {
	const size, buffer, data = 1 << 20, 64 << 10, 3
	for name, prepare := range map[string]func(v *testVolume){
		"extents":         func(v *testVolume) { v.Volume.Info.CanReportExtents = true },
		"parts of blocks": func(v *testVolume) { v.Volume.Info.CanReportExtents, v.late = true, 100 },
		"no extents":      func(*testVolume) {},
		"extents that all fail": func(v *testVolume) {
			v.Volume.Info.CanReportExtents, v.extentsError = true, status.IOFailed
		},
	} {
		v := &testVolume{Volume: queuetest.New(size, testBlock, 2, 4, buffer)}
		prepare(v)
		for i := range data { // with a short hole within
			copy(v.Data()[size/4*(i+1):], bytes.Repeat([]byte{1}, testBlock))
			copy(v.Data()[size/4*(i+1)+2*testBlock:], bytes.Repeat([]byte{2}, testBlock))
		}
		var read uint64
		v.Intercept = func(r *client.Request) status.Code {
			read += uint64(r.Length)
			return v.Apply(r)
		}
		config := Config{Volume: v, Queues: []Queue{v.Queue(0), v.Queue(1)}, Depth: 4,
			BufferSize: buffer, DrainTimeout: time.Minute}
		for _, c := range []struct{ offset, length uint64 }{
			{0, size}, {1, size - 2}, {1000, size/4 + 77}, {size/4 + 100, size / 2}, {5, 7},
		} {
			path := filepath.Join(t.TempDir(), "copy")
			file, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			var stream bytes.Buffer
			plain := &memoryFile{data: bytes.Repeat([]byte{9}, int(c.length))}
			for sink, content := range map[io.Writer]func() []byte{
				file: func() []byte {
					content, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					return content
				},
				&stream: stream.Bytes,
				plain:   func() []byte { return plain.data },
			} {
				read = 0
				moved, err := Get(t.Context(), config, sink, c.offset, c.length)
				if err != nil || moved != c.length ||
					!bytes.Equal(content(), v.Data()[c.offset:][:c.length]) {
					t.Errorf("%q, %+v: %T got %d bytes, error %v", name, c, sink, moved, err)
				}
				known := v.Volume.Info.CanReportExtents && v.extentsError == nil
				if known && read > data*4*testBlock || !known && read < c.length {
					t.Errorf("%q, %+v: for a %T, %d bytes were read", name, c, sink, read)
				}
			}
		}
	}
}

func TestACheckpointCountsHoles(t *testing.T) {
	const size, buffer = 4 << 20, 256 << 10
	v := &testVolume{Volume: queuetest.New(size, testBlock, 1, 2, buffer)}
	v.Volume.Info.CanReportExtents = true
	v.Data()[size/4*3] = 1
	v.Intercept = func(*client.Request) status.Code { return status.IOFailed }
	var reached uint64
	config := Config{Volume: v, Queues: []Queue{v.Queue(0)}, Depth: 2, BufferSize: buffer,
		DrainTimeout: time.Minute, Checkpoint: func(bytes uint64) error {
			reached = bytes
			return nil
		}}
	file, err := os.Create(filepath.Join(t.TempDir(), "copy"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if moved, err := Get(t.Context(), config, file, 10, size-10); !errors.Is(err,
		status.IOFailed) || moved != size-10-testBlock || reached != size/4*3-10 {
		t.Errorf("%d bytes were moved, %d without a gap, error %v", moved, reached, err)
	}
}

func TestATransferOutlastsTheLossOfTheVolume(t *testing.T) {
	for name, move := range map[string]func(c Config, content []byte) ([]byte, error){
		"put": func(c Config, content []byte) ([]byte, error) {
			_, err := Put(t.Context(), c, bytes.NewReader(content), testSize, 0)
			return c.Volume.(*testVolume).Data(), err
		},
		"get": func(c Config, content []byte) ([]byte, error) {
			copy(c.Volume.(*testVolume).Data(), content)
			file := &memoryFile{data: make([]byte, testSize)}
			_, err := Get(t.Context(), c, file, 0, testSize)
			return file.data, err
		},
	} {
		for _, reconnect := range []bool{true, false} {
			v, config := newTestVolume(2, 4)
			if reconnect {
				config.Reconnections = new(document.Reconnections)
			}
			served := 0
			v.Intercept = func(r *client.Request) status.Code {
				if served++; served == 5 {
					return status.ConnectionReset
				}
				return v.Apply(r)
			}
			content := bytes.Repeat([]byte("content!"), testSize/8)
			got, err := move(config, content)
			switch {
			case reconnect && (err != nil || !bytes.Equal(got, content) ||
				config.Reconnections.RepeatedRequests != 1):
				t.Errorf("%s with --reconnect: %+v, error %v", name, config.Reconnections, err)
			case !reconnect && !errors.Is(err, status.ConnectionReset):
				t.Errorf("%s without --reconnect: error %v", name, err)
			}
		}
	}
}
