// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/client/queuetest"
	"github.com/zc-relay/zc-relay/pkg/gateway"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	volumeSize = 1 << 20
	block      = 512
	buffer     = 16 << 10
	depth      = 8
)

// volume makes the volume of package queuetest one for exports.
type volume struct {
	*queuetest.Volume
	reopened *atomic.Int64
}

func (v volume) Info() client.Info { return v.Volume.Info }
func (v volume) Memory() []byte    { return v.Volume.Memory }

// Err returns why the volume is lost for good.
func (v volume) Err() error { return v.Lost() }

// Reopen begins another session.
func (v volume) Reopen(error) error {
	v.reopened.Add(1)
	v.Restart(false)
	return nil
}

func newVolume(queues int) volume {
	v := volume{queuetest.New(volumeSize, block, queues, depth, buffer), new(atomic.Int64)}
	v.Volume.Info.CanTrim, v.Volume.Info.CanWriteZeroes = true, true
	v.Volume.Info.CanReportExtents = true
	v.Intercept = v.apply
	return v
}

// apply does what queuetest does, and the operations that it does not know.
func (v volume) apply(r *client.Request) status.Code {
	switch r.Type {
	case client.Trim, client.WriteZeroes:
		if r.Offset%block != 0 || r.Length%block != 0 {
			return status.InvalidValue
		}
		clear(v.Data()[r.Offset:][:r.Length])
		return status.Success
	case client.Extents:
		if r.Offset%block != 0 || r.Range%block != 0 || r.Range == 0 ||
			r.Offset+r.Range > volumeSize || r.Length%iomsg.ExtentSize != 0 {
			return status.InvalidValue
		}
		var extents []iomsg.Extent
		for ; r.Range > 0; r.Offset, r.Range = r.Offset+block, r.Range-block {
			flags := iomsg.ExtentFlags(0)
			if bytes.Equal(v.Data()[r.Offset:][:block], make([]byte, block)) {
				flags = iomsg.Hole
			}
			if n := len(extents); n > 0 && extents[n-1].Flags == flags {
				extents[n-1].Length += block
			} else {
				extents = append(extents, iomsg.Extent{Length: block, Flags: flags})
			}
		}
		iomsg.EncodeExtents(v.Memory()[r.Memory:][:r.Length], extents)
		return status.Success
	}
	return v.Apply(r)
}

// thread is a worker's thread with a disk.
type thread struct {
	t       testing.TB
	engine  *progress.Engine
	disk    blockio.Disk
	session blockio.Session
	stop    atomic.Bool
	running sync.WaitGroup

	mu        sync.Mutex
	completed map[*blockio.Operation]chan blockio.Errno
	madeRoom  chan struct{} // gets a value when MadeRoom is called
}

// start runs a thread with a session on queue i of the export.
func start(t testing.TB, e *gateway.Export, i int) *thread {
	t.Helper()
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	th := &thread{t: t, engine: engine, completed: make(map[*blockio.Operation]chan blockio.Errno),
		madeRoom: make(chan struct{}, 1)}
	disk, err := e.Attach(i, engine)
	if err != nil {
		t.Fatal(err)
	}
	th.disk = disk
	if th.session, err = disk.Open(th); err != nil {
		t.Fatal(err)
	}
	if err := engine.Add(disk); err != nil {
		t.Fatal(err)
	}
	th.running.Go(func() {
		for !th.stop.Load() {
			if engine.Progress() == 0 {
				time.Sleep(20 * time.Microsecond) // the queues of the test wake nobody
			}
		}
	})
	t.Cleanup(func() {
		th.stop.Store(true)
		engine.Wake()
		th.running.Wait()
		if err := errors.Join(disk.Close(), engine.Close()); err != nil {
			t.Error(err)
		}
	})
	return th
}

// another returns another session on the thread's disk.
func (th *thread) another() *thread {
	th.t.Helper()
	second := &thread{t: th.t, engine: th.engine, disk: th.disk,
		completed: make(map[*blockio.Operation]chan blockio.Errno)}
	var err error
	th.do(func() { second.session, err = th.disk.Open(second) })
	if err != nil {
		th.t.Fatal(err)
	}
	return second
}

// Completed passes the outcome to the test that submitted the operation.
func (th *thread) Completed(op *blockio.Operation) {
	th.mu.Lock()
	done := th.completed[op]
	delete(th.completed, op)
	th.mu.Unlock()
	done <- op.Error
}

// MadeRoom tells the test that waits for it.
func (th *thread) MadeRoom() {
	select {
	case th.madeRoom <- struct{}{}:
	default:
	}
}

// do runs f on the thread.
func (th *thread) do(f func()) {
	done := make(chan struct{})
	th.engine.Do(func() { f(); close(done) })
	<-done
}

// submit starts an operation on the range, or on the start of it. It returns nil if there is no
// room. data is what to write.
func (th *thread) submit(command blockio.Command, flags blockio.CommandFlags, offset, length uint64,
	data []byte) (op *blockio.Operation, outcome chan blockio.Errno) {
	outcome = make(chan blockio.Errno, 1)
	th.do(func() {
		if op = th.session.Claim(command, flags, offset, length); op == nil {
			return
		}
		if command == blockio.Write {
			copy(op.Data, data)
		}
		th.mu.Lock()
		th.completed[op] = outcome
		th.mu.Unlock()
		th.session.Submit(op)
		th.disk.Ring()
	})
	return op, outcome
}

// call carries out a command on a range, in as many operations as it takes. data is what to write,
// or receives what is read.
func (th *thread) call(command blockio.Command, flags blockio.CommandFlags, offset, length uint64,
	data []byte) blockio.Errno {
	for first := true; first || length > 0; first = false {
		var op *blockio.Operation
		var outcome chan blockio.Errno
		testkit.Eventually(th.t, "there is room for an operation", func() bool {
			op, outcome = th.submit(command, flags, offset, length, data)
			return op != nil
		})
		failure := <-outcome
		n := op.Length
		th.do(func() {
			if command == blockio.Read {
				copy(data, op.Data)
			}
			th.session.Release(op)
		})
		if failure != blockio.Success {
			return failure
		}
		offset, length = offset+n, length-n
		if data != nil {
			data = data[n:]
		}
	}
	return blockio.Success
}

func newExport(t testing.TB, v volume, queues, sessions int) *gateway.Export {
	t.Helper()
	config := gateway.Config{Volume: v, Sessions: sessions, Repeat: true,
		RepeatFor: retry.Within(testkit.Patience)}
	for i := range queues {
		config.Queues = append(config.Queues, v.Queue(i))
	}
	e, err := gateway.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Operations of any offset and length have the effect that they have on a plain array.
func TestOperationsOfAnyAlignmentDoWhatTheyDoToAnArray(t *testing.T) {
	v := newVolume(1)
	th := start(t, newExport(t, v, 1, 1), 0)
	model := make([]byte, volumeSize)
	seedtest.Check(t, func(t *rapid.T) {
		command := rapid.SampledFrom([]blockio.Command{blockio.Read, blockio.Write,
			blockio.WriteZeroes,
			blockio.Trim, blockio.Cache, blockio.Flush}).Draw(t, "command")
		longest := rapid.SampledFrom([]uint64{3, block, 3 * block, 5 * buffer}).Draw(t, "longest")
		length := rapid.Uint64Range(1, longest).Draw(t, "length")
		offset := rapid.Uint64Range(0, volumeSize-length).Draw(t, "offset")
		flags := rapid.SampledFrom([]blockio.CommandFlags{0, blockio.FUA}).Draw(t, "flags")
		data := make([]byte, length)
		switch command {
		case blockio.Write:
			content := rand.NewChaCha8([32]byte{rapid.Byte().Draw(t, "content")})
			_, _ = content.Read(data)
			copy(model[offset:], data)
		case blockio.WriteZeroes:
			clear(model[offset:][:length])
		case blockio.Trim: // whole blocks
			from, to := (offset+block-1)/block*block, (offset+length)/block*block
			if from < to {
				clear(model[from:to])
			}
		case blockio.Flush:
			offset, length = 0, 0
		}
		if failure := th.call(command, flags, offset, length, data); failure != blockio.Success {
			t.Fatalf("%v of %d bytes at %d: %v", command, length, offset, failure)
		}
		if command == blockio.Read && !bytes.Equal(data, model[offset:][:length]) {
			t.Fatalf("read of %d bytes at %d returns other data", length, offset)
		}
		if !bytes.Equal(v.Data(), model) {
			t.Fatalf("%v of %d bytes at %d has another effect", command, length, offset)
		}
	})
}

// What a write reads of the blocks that it changes in part goes to its own buffer. Its data and
// that scratch space often need more than the size of the data alone, rounded up, would give them.
func TestAWriteLeavesTheBuffersOfOthersAlone(t *testing.T) {
	for _, test := range []struct{ offset, length uint64 }{
		{0, 8 * block}, {0, 8*block - 7}, {7, 8*block - 7}, {7, 8*block - 14},
	} {
		v := newVolume(1)
		for i := range v.Data() {
			v.Data()[i] = byte(i/block + 1)
		}
		th := start(t, newExport(t, v, 1, 1), 0)
		var write, neighbor *blockio.Operation
		written, read := make(chan blockio.Errno, 1), make(chan blockio.Errno, 1)
		th.do(func() {
			write = th.session.Claim(blockio.Write, 0, test.offset, test.length)
			neighbor = th.session.Claim(blockio.Read, 0, volumeSize/2, 8*block)
			th.mu.Lock()
			th.completed[write], th.completed[neighbor] = written, read
			th.mu.Unlock()
			th.session.Submit(neighbor)
		})
		if failure := <-read; failure != blockio.Success {
			t.Fatal(failure)
		}
		th.do(func() { th.session.Submit(write) })
		if failure := <-written; failure != blockio.Success {
			t.Fatal(failure)
		}
		if !bytes.Equal(neighbor.Data, v.Data()[volumeSize/2:][:8*block]) {
			t.Errorf("a write of %d bytes at %d has changed the buffer of a read", test.length,
				test.offset)
		}
	}
}

func TestFlagsReachTheVolume(t *testing.T) {
	v := newVolume(1)
	var got []string
	v.Intercept = func(r *client.Request) status.Code {
		got = append(got, fmt.Sprintf("%v %d+%d flags %d", r.Type, r.Offset, r.Length, r.Flags))
		return v.apply(r)
	}
	th := start(t, newExport(t, v, 1, 1), 0)
	request := func(kind client.RequestType, offset, length int, flags client.Flags) string {
		return fmt.Sprintf("%v %d+%d flags %d", kind, offset, length, flags)
	}
	for _, test := range []struct {
		command        blockio.Command
		flags          blockio.CommandFlags
		offset, length uint64
		want           []string
	}{
		{blockio.Write, 0, block, block, []string{request(client.Write, block, block, 0)}},
		{blockio.Write, blockio.FUA, block, block,
			[]string{request(client.Write, block, block, client.FUA)}},
		{blockio.Write, blockio.FUA, 1, 1, []string{request(client.Read, 0, block, 0),
			request(client.Write, 0, block, client.FUA)}},
		{blockio.Trim, blockio.FUA, 0, block, []string{request(client.Trim, 0, block, client.FUA)}},
		{blockio.WriteZeroes, 0, 0, block, []string{
			request(client.WriteZeroes, 0, block, client.Deallocate)}},
		{blockio.WriteZeroes, blockio.FastZero, 0, block, []string{
			request(client.WriteZeroes, 0, block, client.Deallocate)}},
		{blockio.WriteZeroes, blockio.NoHole, 0, block, []string{
			request(client.WriteZeroes, 0, block, 0)}},
		{blockio.WriteZeroes, blockio.FUA, 0, block + 1, []string{
			request(client.WriteZeroes, 0, block, client.FUA|client.Deallocate),
			request(client.Read, block, block, 0),
			request(client.Write, block, block, client.FUA)}},
		{blockio.Read, blockio.FUA, 0, block, []string{request(client.Read, 0, block, 0)}},
		{blockio.Flush, 0, 0, 0, []string{request(client.Flush, 0, 0, 0)}},
		{blockio.Cache, 0, block + 1, 2 * buffer, []string{request(client.Read, block, buffer, 0),
			request(client.Read, block+buffer, buffer, 0),
			request(client.Read, block+2*buffer, block, 0)}},
	} {
		got = nil
		failure := th.call(test.command, test.flags, test.offset, test.length,
			make([]byte, test.length))
		if failure != blockio.Success || !slices.Equal(got, test.want) {
			t.Errorf("%v with flags %d of %d bytes at %d: %v, requests %q, want %q", test.command,
				test.flags, test.length, test.offset, failure, got, test.want)
		}
	}
}

// status carries out a block status, which may describe less than the range.
func (th *thread) status(flags blockio.CommandFlags, offset,
	length uint64) ([]blockio.Extent, blockio.Errno) {
	op, outcome := th.submit(blockio.BlockStatus, flags, offset, length, nil)
	failure := <-outcome
	var extents []blockio.Extent
	th.do(func() {
		extents = slices.Clone(op.Extents)
		th.session.Release(op)
	})
	return extents, failure
}

func TestBlockStatusDescribesTheRangeAndNothingElse(t *testing.T) {
	v := newVolume(1)
	th := start(t, newExport(t, v, 1, 1), 0)
	seedtest.Check(t, func(t *rapid.T) {
		clear(v.Data())
		for range rapid.IntRange(0, 600).Draw(t, "blocks with data") {
			v.Data()[rapid.IntRange(0, volumeSize/block-1).Draw(t, "block")*block] = 1
		}
		longest := rapid.SampledFrom([]uint64{3, 3 * block, volumeSize}).Draw(t, "longest")
		length := rapid.Uint64Range(1, longest).Draw(t, "length")
		offset := rapid.Uint64Range(0, volumeSize-length).Draw(t, "offset")
		flags := rapid.SampledFrom([]blockio.CommandFlags{0, blockio.RequestOne}).Draw(t, "flags")
		for length > 0 {
			extents, failure := th.status(flags, offset, length)
			if failure != blockio.Success || len(extents) == 0 ||
				len(extents) > 1 && flags == blockio.RequestOne {
				t.Fatalf("status of %d bytes at %d with flags %d: %v, %v", length, offset, flags,
					extents, failure)
			}
			for _, e := range extents {
				if e.Length == 0 || e.Length > length {
					t.Fatalf("extents %v of %d bytes at %d", extents, length, offset)
				}
				for end := offset + e.Length; offset < end; {
					hole := v.Data()[offset/block*block] == 0
					if hole != e.Hole {
						t.Fatalf("byte %d is told to be a hole: %v", offset, e.Hole)
					}
					n := min(end, offset/block*block+block) - offset
					offset, length = offset+n, length-n
				}
			}
		}
	})
}

func TestATableOfExtentsThatCannotBeTrueIsAnError(t *testing.T) {
	for name, extents := range map[string][]iomsg.Extent{
		"empty":               nil,
		"more than the range": {{Length: block}, {Length: 2 * block}},
		"only what is before": {{Length: 5}},
	} {
		v := newVolume(1)
		v.Intercept = func(r *client.Request) status.Code {
			iomsg.EncodeExtents(v.Memory()[r.Memory:][:r.Length], extents)
			return status.Success
		}
		th := start(t, newExport(t, v, 1, 1), 0)
		if got, failure := th.status(0, block+5, block); failure != blockio.IOError {
			t.Errorf("%s: %v, %v", name, got, failure)
		}
	}
}

// The change of a part of a block reads the block and writes it back, and no other change of that
// block may come in between.
func TestAChangeOfAPartOfABlockIsAlone(t *testing.T) {
	type change struct {
		command        blockio.Command
		offset, length uint64
	}
	for name, c := range map[string]struct {
		first, second change
		waits         bool
	}{
		"end of a block, the block": {
			change{blockio.Write, 7, block - 7}, change{blockio.Write, 0, block}, true},
		"start of a block, the block": {
			change{blockio.Write, 0, 7}, change{blockio.Write, 0, block}, true},
		"the block, start of a block": {
			change{blockio.Write, 0, block}, change{blockio.Write, 0, 7}, true},
		"both halves": {
			change{blockio.Write, 0, block / 2}, change{blockio.Write, block / 2, block / 2}, true},
		"part, zeroes": {
			change{blockio.Write, 0, 7}, change{blockio.WriteZeroes, 0, block}, true},
		"zeroes, part": {
			change{blockio.WriteZeroes, 0, block}, change{blockio.Write, 0, 7}, true},
		"a part with zeroes, the block": {
			change{blockio.WriteZeroes, 0, block + 7}, change{blockio.Write, block, block}, true},
		"part, trim": {
			change{blockio.Write, block, 7}, change{blockio.Trim, 0, 3 * block}, true},
		"trim, part": {
			change{blockio.Trim, 0, 3 * block}, change{blockio.Write, block, 7}, true},
		"part, neighbor": {
			change{blockio.Write, 0, 7}, change{blockio.Write, block, block}, false},
		"part, a trim that covers it in part": {
			change{blockio.Write, 0, 7}, change{blockio.Trim, 5, 2 * block}, false},
		"the block twice": {
			change{blockio.Write, 0, block}, change{blockio.Write, 0, block}, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(2)
			v.Stalled.Store(true)
			e := newExport(t, v, 2, 2)
			var outcomes [2]chan blockio.Errno
			for i, o := range []change{c.first, c.second} {
				th := start(t, e, i)
				_, outcomes[i] = th.submit(o.command, 0, o.offset, o.length,
					bytes.Repeat([]byte{byte(i + 1)}, int(o.length)))
			}
			if waits := v.Queue(1).Submitted.Load() == 0; waits != c.waits {
				t.Errorf("the second waits for the first: %v", waits)
			}
			v.Stalled.Store(false)
			for i, outcome := range outcomes {
				if failure := <-outcome; failure != blockio.Success {
					t.Errorf("change %d: %v", i, failure)
				}
			}
		})
	}
}

// Several threads change neighboring bytes of the same blocks, while sessions are lost and memory
// is replaced. No change undoes another.
func TestChangesOfPartsOfBlocksDoNotUndoEachOther(t *testing.T) {
	for name, quarantine := range map[string]bool{"memory stays": false,
		"memory is replaced": true} {
		t.Run(name, func(t *testing.T) {
			const queues = 3
			v := newVolume(queues)
			v.Quarantine = quarantine
			var requests atomic.Int64
			v.Intercept = func(r *client.Request) status.Code {
				if requests.Add(1)%97 == 0 {
					v.Restart(false)
					return status.ConnectionReset
				}
				return v.apply(r)
			}
			e := newExport(t, v, queues, queues)
			model := make([]byte, volumeSize)
			var writing sync.WaitGroup
			var threads [queues]*thread // all of them, before memory is replaced
			for i := range queues {
				threads[i] = start(t, e, i)
			}
			for i, th := range threads {
				writing.Go(func() { // byte i, i+queues, ... of the first blocks
					random := rand.New(rand.NewPCG(uint64(i), 1))
					for range 400 {
						place := uint64(random.IntN(8*block/queues)*queues + i)
						value := byte(random.Uint32())
						command, data := blockio.Write, []byte{value}
						if random.IntN(4) == 0 {
							command, data, value = blockio.WriteZeroes, nil, 0
						}
						failure := th.call(command, 0, place, 1, data)
						if failure != blockio.Success {
							t.Errorf("%v at %d: %v", command, place, failure)
							return
						}
						model[place] = value
					}
				})
			}
			writing.Wait()
			if !bytes.Equal(v.Data(), model) {
				t.Error("a change has undone another")
			}
		})
	}
}

func TestLostWritesAreReportedToEachConnectionOnce(t *testing.T) {
	forQueues(t, func(t *testing.T, v volume, e *gateway.Export, x, y *thread) {
		if failure := x.call(blockio.Flush, 0, 0, 0, nil); failure != blockio.Success {
			t.Fatalf("flush: %v", failure)
		}
		v.Intercept = func(r *client.Request) status.Code {
			v.Restart(true)
			v.Intercept = v.apply
			return status.ConnectionReset
		}
		if failure := y.call(blockio.Write, 0, 0, 3, []byte("abc")); failure != blockio.Success {
			t.Fatalf("write: %v", failure)
		}
		for name, session := range map[string]*thread{"first": x, "second": y} {
			for i, want := range []blockio.Errno{blockio.IOError, blockio.Success} {
				if failure := session.call(blockio.Flush, 0, 0, 0, nil); failure != want {
					t.Errorf("flush %d of the %s connection: %v, want %v", i+1, name, failure, want)
				}
			}
		}
		x.leave()
		if failure := x.another().call(blockio.Flush, 0, 0, 0, nil); failure != blockio.Success {
			t.Errorf("flush of a connection that has begun after the loss: %v", failure)
		}
	})
}

func TestTheCauseOfAFailureDecidesWhatTheClientSees(t *testing.T) {
	for cause, want := range map[status.Cause]blockio.Errno{
		status.CauseUnknown: blockio.IOError, status.CauseTruncated: blockio.IOError,
		status.Cause(syscall.EIO): blockio.IOError, status.Cause(syscall.ENOSPC): blockio.NoSpace,
		status.Cause(syscall.EDQUOT): blockio.NoSpace,
		status.Cause(syscall.EROFS):  blockio.NotPermitted,
		status.Cause(syscall.ENOMEM): blockio.NoMemory,
	} {
		v := newVolume(1)
		v.Cause = cause
		v.Intercept = func(*client.Request) status.Code { return status.IOFailed }
		th := start(t, newExport(t, v, 1, 1), 0)
		if got := th.call(blockio.Write, 0, 0, 512, make([]byte, 512)); got != want {
			t.Errorf("a write that fails with %v is answered with %v, want %v", cause, got, want)
		}
	}
}

func TestAnOperationOutlastsManyLossesButNotItsOwn(t *testing.T) {
	const losses = 100
	for _, test := range []struct {
		within time.Duration
		want   blockio.Errno
	}{{testkit.Patience, blockio.Success}, {0, blockio.IOError}} {
		v := newVolume(1)
		lost := 0
		v.Intercept = func(r *client.Request) status.Code {
			if lost == losses {
				return v.apply(r)
			}
			lost++
			v.Restart(false)
			return status.ConnectionReset
		}
		e, err := gateway.New(gateway.Config{Volume: v, Queues: []gateway.Queue{v.Queue(0)},
			Sessions: 1, Repeat: true, RepeatFor: retry.Within(test.within)})
		if err != nil {
			t.Fatal(err)
		}
		th := start(t, e, 0)
		if got := th.call(blockio.Write, 0, 0, block, make([]byte, block)); got != test.want {
			t.Errorf("a write that loses its session %d times, within %v, ends with %v, want %v",
				losses, test.within, got, test.want)
		}
	}
}

func TestAVolumeThatIsLostFailsItsOperations(t *testing.T) {
	for reason, want := range map[error]blockio.Errno{
		status.Errorf(status.NotConnected, "lost"): blockio.IOError,
		client.ErrPreempted:                        blockio.Shutdown,
	} {
		v := newVolume(1)
		th := start(t, newExport(t, v, 1, 1), 0)
		v.Disconnect(reason)
		for _, command := range []blockio.Command{blockio.Read, blockio.Write, blockio.Flush} {
			length := uint64(7)
			if command == blockio.Flush {
				length = 0
			}
			if got := th.call(command, 0, 0, length, make([]byte, length)); got != want {
				t.Errorf("%v after %v: %v, want %v", command, reason, got, want)
			}
		}
	}
}

func TestAnOperationOfAPreemptedVolumeIsNotRepeated(t *testing.T) {
	v := newVolume(1)
	failed := false
	v.Intercept = func(r *client.Request) status.Code {
		if failed {
			return v.apply(r)
		}
		failed = true
		return status.InUse
	}
	e, err := gateway.New(gateway.Config{Volume: v, Queues: []gateway.Queue{v.Queue(0)},
		Sessions: 1, Repeat: true, RepeatFor: retry.Within(testkit.Patience)})
	if err != nil {
		t.Fatal(err)
	}
	th := start(t, e, 0)
	if got := th.call(blockio.Write, 0, 0, block, make([]byte, block)); got != blockio.Shutdown {
		t.Errorf("a write to a volume that has been given to another owner ends with %v", got)
	}
}

func TestASessionIsUsedAgainWhenItsOperationsHaveEnded(t *testing.T) {
	v := newVolume(1)
	v.Stalled.Store(true)
	th := start(t, newExport(t, v, 1, 1), 0)
	th.do(func() {
		th.session.Submit(th.session.Claim(blockio.Write, 0, 1, 700))
		th.session.Claim(blockio.Write, 0, 1, buffer) // not submitted
		th.session.Close()
		if _, err := th.disk.Open(th); !errors.Is(err, status.Full) {
			t.Errorf("a session with operations in progress is used again: %v", err)
		}
	})
	v.Stalled.Store(false)
	testkit.Eventually(t, "the session is free", func() (free bool) {
		th.do(func() {
			var err error
			th.session, err = th.disk.Open(th)
			free = err == nil
		})
		return free
	})
	data := make([]byte, 2*buffer)
	if failure := th.call(blockio.Read, 0, 3, uint64(len(data)), data); failure != blockio.Success {
		t.Error(failure)
	}
}

// A client has left while a silent relay kept all of its session's memory. The next one must not
// use that, and learns when there is other memory without a request to ask for it.
func TestASessionWhoseMemoryIsInQuarantineGetsNewMemory(t *testing.T) {
	v := newVolume(1)
	v.Quarantine = true
	v.Stalled.Store(true)
	th := start(t, newExport(t, v, 1, 1), 0)
	th.do(func() {
		for range cap(v.Memory()) / buffer {
			th.session.Submit(th.session.Claim(blockio.Read, 0, 0, buffer))
		}
		th.session.Close()
		v.Restart(false)
		v.Stalled.Store(false)
		for err := error(status.Full); err != nil; {
			th.disk.Poll()
			th.session, err = th.disk.Open(th)
		}
		if th.session.Claim(blockio.Read, 0, 0, 1) != nil {
			t.Error("memory that the relay may still use is used again")
		}
	})
	testkit.Receive(t, "the session is told that there is room", th.madeRoom)
	data := make([]byte, 2*buffer)
	if failure := th.call(blockio.Read, 0, 3, uint64(len(data)), data); failure != blockio.Success {
		t.Error(failure)
	}
}

func TestMemoryThatDoesNotSufficeIsRefused(t *testing.T) {
	v := newVolume(1)
	_, err := gateway.New(gateway.Config{Volume: v, Queues: []gateway.Queue{v.Queue(0)},
		Sessions: 100})
	if !errors.Is(err, status.InvalidValue) {
		t.Errorf("error is %v", err)
	}
}
