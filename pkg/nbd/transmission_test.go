// SPDX-License-Identifier: Apache-2.0

package nbd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/nbd"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var modes = []mode{simple, structured, extended}

// fill fills b with a pattern that differs from place to place.
func fill(b []byte, seed uint64) {
	random := rand.NewPCG(seed, 3)
	for len(b) >= 8 {
		binary.NativeEndian.PutUint64(b, random.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(seed)
	}
}

// Requests of every kind, of any offset and length, many at a time, have the effect that they have
// on a plain array. Requests in progress at the same time do not overlap.
func TestRequestsDoWhatTheyDoToAnArray(t *testing.T) {
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			export := newMemoryExport()
			_, path := startServer(t, nbd.Config{Workers: 2}, export)
			c := connect(t, path, m)
			model := make([]byte, testSize)
			seedtest.Check(t, func(t *rapid.T) {
				c.t = t
				checkRound(t, c, model)
			})
			c.t = t
			r := call{kind: blockio.Read, length: testSize}
			if o := c.do(r); o.failure != blockio.Success || !bytes.Equal(o.data, model) {
				t.Errorf("in the end the export differs from the model (%v)", o.failure)
			}
			testkit.Eventually(t, "all buffers are released", func() bool {
				export.mu.Lock()
				defer export.mu.Unlock()
				return export.used == 0
			})
		})
	}
}

// checkRound sends requests whose ranges do not overlap, waits for all, and checks them.
func checkRound(t *rapid.T, c *client, model []byte) {
	slots := rapid.IntRange(1, 40).Draw(t, "requests")
	width := uint64(testSize / slots)
	calls := make(map[uint64]call)
	var order []call
	for i := range slots {
		longest := rapid.SampledFrom([]uint64{100, 70_000, 3 << 20}).Draw(t, "longest")
		length := rapid.Uint64Range(0, min(width, longest)).Draw(t, "length")
		r := call{
			kind: rapid.SampledFrom([]blockio.Command{blockio.Read, blockio.Write, blockio.Write,
				blockio.Flush,
				blockio.Trim, blockio.WriteZeroes, blockio.Cache}).Draw(t, "kind"),
			cookie: uint64(i)<<32 | rapid.Uint64Range(0, 1<<32-1).Draw(t, "cookie"),
			offset: uint64(i)*width + rapid.Uint64Range(0, width-length).Draw(t, "offset"),
			length: length, flags: rapid.Uint16Range(0, 1).Draw(t, "FUA"),
		}
		switch r.kind {
		case blockio.Flush:
			r.offset, r.length = 0, 0
		case blockio.Write:
			r.data = make([]byte, length)
			fill(r.data, rapid.Uint64().Draw(t, "data"))
		}
		calls[r.cookie] = r
		order = append(order, r)
	}
	step := rapid.IntRange(1, 1<<20).Draw(t, "step")
	sent := make(chan error, 1)
	go func() { // the server may stop to receive until its replies are read
		var all []byte
		for _, r := range order {
			all = append(all, c.encode(r)...)
		}
		for pieces := 0; len(all) > 0; pieces++ {
			n := min(len(all), step)
			if pieces == 200 {
				n = len(all)
			}
			if _, err := c.conn.Write(all[:n]); err != nil {
				sent <- err
				return
			}
			all = all[n:]
		}
		sent <- nil
	}()
	outcomes := make(map[uint64]*outcome)
	for left := len(calls); left > 0; {
		if _, done := c.receive(calls, outcomes); done {
			left--
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	for _, r := range order {
		o := outcomes[r.cookie]
		if o.failure != blockio.Success {
			t.Fatalf("%v fails with %v", r, o.failure)
		}
		part := model[r.offset:][:r.length]
		switch r.kind {
		case blockio.Read:
			if !bytes.Equal(o.data, part) {
				t.Fatalf("%v returns other data", r)
			}
		case blockio.Write:
			copy(part, r.data)
		case blockio.Trim, blockio.WriteZeroes:
			clear(part)
		}
	}
}

func TestRequestsAreRejectedAsTheSpecificationSays(t *testing.T) {
	big := make([]byte, nbd.MaxPayload+1)
	for _, test := range []struct {
		name     string
		readOnly bool
		r        call
		want     blockio.Errno
	}{
		{"read beyond the end", false, call{kind: blockio.Read, offset: testSize - 1, length: 2},
			blockio.Invalid},
		{"read far beyond", false, call{kind: blockio.Read, offset: 1<<64 - 1, length: 2}, blockio.Invalid},
		{"write beyond the end", false, call{kind: blockio.Write, offset: testSize, length: 1,
			data: []byte{1}}, blockio.NoSpace},
		{"zeroes beyond the end", false, call{kind: blockio.WriteZeroes, offset: testSize - 1,
			length: 2}, blockio.NoSpace},
		{"trim beyond the end", false, call{kind: blockio.Trim, offset: testSize, length: 2},
			blockio.Invalid},
		{"long read", false, call{kind: blockio.Read, length: nbd.MaxPayload + 1}, blockio.Invalid},
		{"long write", false, call{kind: blockio.Write, length: nbd.MaxPayload + 1, data: big},
			blockio.Invalid},
		{"unknown command", false, call{kind: 99, length: 5}, blockio.Invalid},
		{"unknown flag", false, call{kind: blockio.Flush, flags: 1 << 14}, blockio.Invalid},
		{"flag of another command", false, call{kind: blockio.Trim, flags: 1 << 1}, blockio.Invalid},
		{"write to a read-only export", true, call{kind: blockio.Write, length: 3,
			data: []byte("abc")}, blockio.NotPermitted},
		{"trim of a read-only export", true, call{kind: blockio.Trim, length: 3}, blockio.NotPermitted},
		{"zeroes to a read-only export", true, call{kind: blockio.WriteZeroes, length: 3},
			blockio.NotPermitted},
		{"flush of a read-only export", true, call{kind: blockio.Flush}, blockio.Success},
		{"read of a read-only export", true, call{kind: blockio.Read, length: 3}, blockio.Success},
		{"read of nothing", false, call{kind: blockio.Read, offset: 7}, blockio.Success},
		{"write of nothing", false, call{kind: blockio.Write, offset: 7}, blockio.Success},
	} {
		t.Run(test.name, func(t *testing.T) {
			export := newMemoryExport()
			export.info.ReadOnly = test.readOnly
			_, path := startServer(t, nbd.Config{}, export)
			for _, m := range modes {
				c := connect(t, path, m)
				if o := c.do(test.r); o.failure != test.want {
					t.Errorf("%v: %v, want %v", m, o.failure, test.want)
				}
				if o := c.do(call{kind: blockio.Flush, cookie: 9}); o.failure != blockio.Success {
					t.Errorf("%v: afterwards, flush fails with %v", m, o.failure)
				}
			}
		})
	}
}

func TestFlagsReachTheDisk(t *testing.T) {
	export := newMemoryExport()
	var got []string
	export.fail = func(op *blockio.Operation) blockio.Errno {
		got = append(got, fmt.Sprintf("%v of %d at %d, flags %d", op.Command, op.Length, op.Offset,
			op.Flags))
		return blockio.Success
	}
	_, path := startServer(t, nbd.Config{}, export)
	const fua, noHole, fastZero = 1 << 0, 1 << 1, 1 << 4
	for _, m := range modes {
		c := connect(t, path, m)
		for _, test := range []struct {
			r    call
			want string
		}{
			{call{kind: blockio.Write, offset: 3, length: 1, data: []byte("x")},
				"write of 1 at 3, flags 0"},
			{call{kind: blockio.Write, offset: 3, length: 1, data: []byte("x"), flags: fua},
				"write of 1 at 3, flags 1"},
			{call{kind: blockio.Trim, offset: 5, length: 2 << 20, flags: fua},
				"trim of 2097152 at 5, flags 1"},
			{call{kind: blockio.WriteZeroes, offset: 5, length: 2 << 20, flags: fua | noHole},
				"write_zeroes of 2097152 at 5, flags 3"},
			{call{kind: blockio.WriteZeroes, offset: 5, length: 2 << 20, flags: fastZero},
				"write_zeroes of 2097152 at 5, flags 16"},
			{call{kind: blockio.Cache, offset: 5, length: 2 << 20}, "cache of 2097152 at 5, flags 0"},
			{call{kind: blockio.Flush}, "flush of 0 at 0, flags 0"},
		} {
			export.set(func() { got = nil })
			o := c.do(test.r)
			export.set(func() {
				if o.failure != blockio.Success || !slices.Equal(got, []string{test.want}) {
					t.Errorf("%v: %v: %v, the disk gets %q, want %q", m, test.r, o.failure, got,
						test.want)
				}
			})
		}
	}
}

func TestBlockStatusIsOneAllocatedExtent(t *testing.T) {
	_, path := startServer(t, nbd.Config{}, newMemoryExport())
	for _, m := range modes {
		c := connect(t, path, m)
		o := c.do(call{kind: blockio.BlockStatus, offset: 5, length: 1 << 20, flags: 1 << 3})
		if m == simple {
			if o.failure != blockio.Invalid {
				t.Errorf("without the context: %v", o.failure)
			}
			continue
		}
		if len(o.extents) != 1 || o.extents[0] != (extent{1 << 20, 0}) {
			t.Errorf("%v: extents are %v, error %v", m, o.extents, o.failure)
		}
	}
}

func TestBlockStatusTellsWhatTheDiskKnows(t *testing.T) {
	export := newMemoryExport()
	export.info.CanReportExtents = true
	const unit = testSize / 1024
	for i := range 1024 {
		export.extents = append(export.extents, blockio.Extent{Length: unit, Hole: i%2 == 0})
	}
	_, path := startServer(t, nbd.Config{}, export)
	for _, m := range []mode{structured, extended} {
		c := connect(t, path, m)
		for _, test := range []struct {
			offset, length uint64
			flags          uint16
			want           []extent
		}{
			{0, 3 * unit, 0, []extent{{unit, 3}, {unit, 0}, {unit, 3}}},
			{unit - 5, 7, 0, []extent{{5, 3}, {2, 0}}},
			{unit - 5, 7, 1 << 3, []extent{{5, 3}}},
			{testSize - 1, 1, 0, []extent{{1, 0}}},
		} {
			o := c.do(call{kind: blockio.BlockStatus, offset: test.offset, length: test.length,
				flags: test.flags})
			if o.failure != blockio.Success || !slices.Equal(o.extents, test.want) {
				t.Errorf("%v: %d bytes at %d with flags %d: %v, %v, want %v", m, test.length,
					test.offset, test.flags, o.failure, o.extents, test.want)
			}
		}
		if o := c.do(call{kind: blockio.BlockStatus, length: testSize}); len(o.extents) != 1024 {
			t.Errorf("%v: %d extents of 1024", m, len(o.extents))
		}
		if o := c.do(call{kind: blockio.BlockStatus}); o.failure != blockio.Invalid {
			t.Errorf("%v: of nothing: %v", m, o.failure)
		}
	}
	export.set(func() {
		export.fail = func(*blockio.Operation) blockio.Errno { return blockio.IOError }
	})
	if o := connect(t, path, structured).do(call{kind: blockio.BlockStatus,
		length: 5}); o.failure != blockio.IOError {
		t.Errorf("a disk that fails: %v", o.failure)
	}
}

func TestAReadThatMustNotBeFragmentedIsOneChunk(t *testing.T) {
	export := newMemoryExport()
	fill(export.data, 1)
	_, path := startServer(t, nbd.Config{}, export)
	for _, m := range []mode{structured, extended} {
		c := connect(t, path, m)
		if o := c.do(call{kind: blockio.Read, length: 1 << 20}); o.chunks < 2 {
			t.Errorf("%v: a read of 1 MiB has %d chunks", m, o.chunks)
		}
		for length, want := range map[uint64]blockio.Errno{65536: blockio.Success,
			1 << 20: blockio.Success,
			2 << 20: blockio.Overflow} {
			o := c.do(call{kind: blockio.Read, offset: 3, length: length, flags: 1 << 2})
			if o.failure != want {
				t.Errorf("%v: %d bytes: %v, want %v", m, length, o.failure, want)
			}
			if want == blockio.Success && (o.chunks != 1 || !bytes.Equal(o.data,
				export.data[3:][:length])) {
				t.Errorf("%v: %d bytes in %d chunks", m, length, o.chunks)
			}
		}
	}
}

func TestAReadThatFailsIsReportedOrEndsTheConnection(t *testing.T) {
	export := newMemoryExport()
	_, path := startServer(t, nbd.Config{}, export)
	failAt := func(offset uint64) {
		export.set(func() {
			export.fail = func(op *blockio.Operation) blockio.Errno {
				if op.Offset <= offset && offset < op.Offset+op.Length {
					return blockio.IOError
				}
				return blockio.Success
			}
		})
	}
	for _, m := range modes {
		for _, length := range []uint64{512, 1 << 20, 3 << 20} {
			for _, offset := range []uint64{0, length - 1} {
				failAt(offset)
				t.Run(fmt.Sprintf("%v/%d/%d", m, length, offset), func(t *testing.T) {
					c := connect(t, path, m)
					r := call{kind: blockio.Read, length: length}
					if m == simple && length > export.room && offset > 0 {
						// The header has been sent when the error occurs.
						c.write(c.encode(r))
						c.read(16)
						for b := make([]byte, 1<<20); ; {
							if _, err := c.conn.Read(b); isTimeout(err) {
								t.Fatal("the server keeps the connection")
							} else if err != nil {
								break
							}
						}
						return
					}
					if o := c.do(r); o.failure != blockio.IOError || o.data[offset] != 0 {
						t.Errorf("read: %v, with byte %d", o.failure, o.data[offset])
					}
				})
			}
		}
	}
}

// A request that fails because it alone exceeds the session's room is followed by another that has
// arrived with it.
func TestWhatFollowsARequestWithoutRoomIsAnswered(t *testing.T) {
	export := newMemoryExport()
	export.fail = func(op *blockio.Operation) blockio.Errno {
		if op.Command == blockio.Read {
			return blockio.IOError
		}
		return blockio.Success
	}
	_, path := startServer(t, nbd.Config{}, export)
	for _, m := range modes {
		c := connect(t, path, m)
		calls := map[uint64]call{
			// Not to be fragmented.
			1: {kind: blockio.Read, cookie: 1, length: 3 << 20, flags: 1 << 2},
			2: {kind: blockio.Write, cookie: 2, length: 4, data: []byte("data")},
		}
		if m == simple {
			calls[1] = call{kind: blockio.Read, cookie: 1, length: 3 << 20}
		}
		c.write(append(c.encode(calls[1]), c.encode(calls[2])...))
		outcomes := c.awaitAll(calls)
		if outcomes[1].failure == blockio.Success || outcomes[2].failure != blockio.Success {
			t.Errorf("%v: the read ends with %v, the write with %v", m, outcomes[1].failure,
				outcomes[2].failure)
		}
	}
}

// starve sends a request to a disk that has no room for it, and waits until it is denied.
func starve(t *testing.T, export *memoryExport, c *client, r call) {
	t.Helper()
	denied := 0
	export.set(func() { export.kept, denied = export.room, export.starved })
	c.write(c.encode(r))
	testkit.Eventually(t, "the disk has denied room", func() bool {
		export.mu.Lock()
		defer export.mu.Unlock()
		return export.starved > denied
	})
}

func TestAConnectionGoesOnWhenTheDiskMakesRoom(t *testing.T) {
	export := newMemoryExport()
	_, path := startServer(t, nbd.Config{}, export)
	for _, m := range modes {
		c := connect(t, path, m)
		for _, r := range []call{{kind: blockio.Read, length: 5},
			{kind: blockio.Write, length: 4, data: []byte("data")}} {
			starve(t, export, c, r)
			export.set(func() { export.kept = 0 })
			if o := c.await(r); o.failure != blockio.Success {
				t.Errorf("%v: %v ends with %v", m, r, o.failure)
			}
		}
	}
}

// An export that ends may never have room again.
func TestTheEndOfAnExportDoesNotWaitForRoom(t *testing.T) {
	export := newMemoryExport()
	server, path := startServer(t, nbd.Config{}, export)
	c := connect(t, path, structured)
	starve(t, export, c, call{kind: blockio.Read, length: 5})
	server.EndExport("disk")
	c.expectEnd()
}

func TestTheEndOfAServerAnswersWhatItHasReceived(t *testing.T) {
	export := newMemoryExport()
	export.held = true
	server, path := startServer(t, nbd.Config{}, export)
	c := connect(t, path, simple)
	const inProgress, more = 256, 7
	calls := make(map[uint64]call)
	var sent []byte
	for cookie := range uint64(inProgress + more) {
		calls[cookie] = call{kind: blockio.Write, cookie: cookie, length: 1, data: []byte{1}}
		sent = append(sent, c.encode(calls[cookie])...)
	}
	c.write(sent) // in one piece, which is received as one
	testkit.Eventually(t, "requests are in progress", func() bool {
		return server.Status()[0].InFlight == inProgress
	})
	closed := make(chan error, 1)
	go func() { closed <- server.Close(t.Context()) }()
	testkit.Eventually(t, "the server has no exports", func() bool { return len(server.Status()) == 0 })
	impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := server.Close(impatient); !errors.Is(err, status.TimeOut) {
		t.Errorf("another Close ends with %v", err)
	}
	export.set(func() { export.held = false })
	for cookie, o := range c.awaitAll(calls) {
		if o.failure != blockio.Success {
			t.Errorf("write %d fails with %v", cookie, o.failure)
		}
	}
	c.expectEnd()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestAnExportEndsWhileTheServerCloses(t *testing.T) {
	var server *nbd.Server // Admit uses it
	asked, goOn := make(chan struct{}), make(chan struct{})
	var path string
	server, path = startServer(t, nbd.Config{Admit: func(net.Conn) (string, error) {
		close(asked)
		<-goOn
		server.EndExport("disk")
		return "", nil
	}}, newMemoryExport())
	dial(t, path)
	<-asked
	closed := make(chan error, 1)
	go func() { closed <- server.Close(t.Context()) }()
	testkit.Eventually(t, "the server has no exports", func() bool { return len(server.Status()) == 0 })
	close(goOn)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestAWriteFailsAsAWhole(t *testing.T) {
	export := newMemoryExport()
	export.fail = func(op *blockio.Operation) blockio.Errno {
		if op.Command == blockio.Write && op.Offset == 0 {
			return blockio.NoSpace
		}
		return blockio.Success
	}
	_, path := startServer(t, nbd.Config{}, export)
	for _, m := range modes {
		c := connect(t, path, m)
		data := make([]byte, 4<<20)
		o := c.do(call{kind: blockio.Write, length: uint64(len(data)), data: data})
		if o.failure != blockio.NoSpace {
			t.Errorf("%v: %v", m, o.failure)
		}
	}
}

func TestDisconnectAnswersWhatWasSentBefore(t *testing.T) {
	export := newMemoryExport()
	export.held = true
	server, path := startServer(t, nbd.Config{}, export)
	c := connect(t, path, simple)
	read := call{kind: blockio.Read, cookie: 7, length: 4096}
	c.write(append(c.encode(read), c.encode(call{kind: nbd.Disconnect})...))
	testkit.Eventually(t, "the read has arrived", func() bool { return server.Status()[0].InFlight == 1 })
	export.set(func() { export.held = false })
	if o := c.await(read); o.failure != blockio.Success {
		t.Errorf("read fails with %v", o.failure)
	}
	c.expectEnd()
}

func TestTheEndOfAServerAnswersWhatWasSentBefore(t *testing.T) {
	export := newMemoryExport()
	export.held = true
	server, err := nbd.NewServer(nbd.Config{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.AddExport("disk", export); err != nil {
		t.Fatal(err)
	}
	path := listen(t, server)
	c := connect(t, path, structured)
	data := make([]byte, 100<<10)
	w := c.encode(call{kind: blockio.Write, cookie: 7, length: uint64(len(data)), data: data})
	c.write(w[:50<<10]) // the rest follows after the server was told to end
	testkit.Eventually(t, "the write has arrived", func() bool { return server.Status()[0].InFlight == 1 })
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		closed <- server.Close(ctx)
	}()
	testkit.Eventually(t, "the server has no exports", func() bool { return len(server.Status()) == 0 })
	export.set(func() { export.held = false })
	c.write(w[50<<10:])
	if o := c.await(call{kind: blockio.Write, cookie: 7}); o.failure != blockio.Success {
		t.Errorf("write fails with %v", o.failure)
	}
	c.expectEnd()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestAServerThatEndsDoesNotWaitForEver(t *testing.T) {
	export := newMemoryExport()
	export.held = true
	server, err := nbd.NewServer(nbd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.AddExport("disk", export); err != nil {
		t.Fatal(err)
	}
	c := connect(t, listen(t, server), structured)
	c.write(c.encode(call{kind: blockio.Read, length: 1}))
	testkit.Eventually(t, "the read has arrived", func() bool { return server.Status()[0].InFlight == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := server.Close(ctx); err == nil {
		t.Error("Close does not report the connection that it aborted")
	}
	c.expectEnd()
}

func TestExportsAreAddedAndTheServerIsClosedFromAnyGoroutine(t *testing.T) {
	for range 20 {
		server, err := nbd.NewServer(nbd.Config{Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		var added atomic.Int32
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				if server.AddExport("disk", newMemoryExport()) == nil {
					added.Add(1)
				}
				server.EndExport("other")
			})
			group.Go(func() {
				if err := server.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if added.Load() > 1 {
			t.Errorf("%d exports have the same name", added.Load())
		}
		if err := server.AddExport("late", newMemoryExport()); !errors.Is(err, status.Shutdown) {
			t.Errorf("add an export to a closed server: %v", err)
		}
	}
}

func TestTheEndOfAnExportEndsItsConnectionsOnly(t *testing.T) {
	server, path := startServer(t, nbd.Config{}, newMemoryExport())
	if err := server.AddExport("other", newMemoryExport()); err != nil {
		t.Fatal(err)
	}
	if err := server.AddExport("other", newMemoryExport()); err == nil {
		t.Error("two exports have the same name")
	}
	disk := connect(t, path, simple)
	other := dial(t, path)
	other.greet()
	other.mustOption(optGo, append(text("other"), 0, 0))
	server.EndExport("disk")
	disk.expectEnd()
	if o := other.do(call{kind: blockio.Flush}); o.failure != blockio.Success {
		t.Errorf("flush of the other fails with %v", o.failure)
	}
	fresh := dial(t, path)
	fresh.greet()
	if list := fresh.mustOption(optList, nil); len(list) != 1 {
		t.Errorf("%d exports are listed", len(list))
	}
}

func TestAnExportThatEndsTakesNoConnectionThatIsNegotiating(t *testing.T) {
	export := newMemoryExport()
	export.info.Description = strings.Repeat("long", 1<<20) // fills the client's socket
	server, path := startServer(t, nbd.Config{}, export)
	c := dial(t, path)
	c.greet()
	data := append(text("disk"), 0, 1, 0, 2) // with the description
	c.write(append(optionHeader(optGo, len(data)), data...))
	testkit.Eventually(t, "the client has a place", func() bool {
		return server.Status()[0].Connections == 1
	})
	server.EndExport("disk")
	c.answers(optGo)
	c.expectEnd()
}

func TestRequestsAreCounted(t *testing.T) {
	server, path := startServer(t, nbd.Config{}, newMemoryExport())
	c := connect(t, path, structured)
	c.do(call{kind: blockio.Read, length: 1000})
	c.do(call{kind: blockio.Read, offset: testSize, length: 1000})
	c.do(call{kind: blockio.Write, length: 3, data: []byte("abc")})
	s := server.Status()[0]
	want := []blockio.RequestCount{{Command: blockio.Read, Count: 1},
		{Command: blockio.Read, Error: blockio.Invalid, Count: 1},
		{Command: blockio.Write, Count: 1}}
	if fmt.Sprint(s.Requests) != fmt.Sprint(want) || s.BytesRead != 1000 || s.BytesWritten != 3 ||
		s.Connections != 1 || s.Accepted != 1 {
		t.Errorf("status is %+v", s)
	}
	testkit.Eventually(t, "nothing is in flight", func() bool { return server.Status()[0].InFlight == 0 })
}
