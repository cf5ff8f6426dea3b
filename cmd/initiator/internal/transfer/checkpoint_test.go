// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestTheFrontierEndsAtTheFirstGap(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.Uint32Range(1, 9), 1, 40).Draw(t, "lengths")
		start := rapid.Uint64Range(0, 100).Draw(t, "start")
		var extents []extent
		offset := start
		for _, length := range lengths {
			extents = append(extents, extent{offset: offset, length: length})
			offset += uint64(length)
		}
		order := rapid.Permutation(extents).Draw(t, "order")
		f, moved := newFrontier(start), make(map[uint64]bool)
		for _, e := range order {
			f.add(e.offset, e.end())
			moved[e.offset] = true
			want := start
			for _, e := range extents {
				if !moved[e.offset] {
					break
				}
				want = e.offset + uint64(e.length)
			}
			if got := f.position(); got != want {
				t.Fatalf("after %v the frontier is at %d, want %d", e, got, want)
			}
		}
		if len(f.beyond) > 0 {
			t.Fatalf("%d extents are remembered", len(f.beyond))
		}
	})
}

func TestAFailedTransferCanGoOnFromItsLastCheckpoint(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		v, config := newTestVolume(rapid.IntRange(1, 3).Draw(t, "queues"),
			rapid.IntRange(1, 5).Draw(t, "depth"))
		offset := rapid.IntRange(0, testSize/2).Draw(t, "offset")
		length := rapid.IntRange(0, testSize-offset).Draw(t, "length")
		fails := uint64(rapid.IntRange(0, testSize/testBuffer).Draw(t, "failing request"))
		v.Intercept = func(r *client.Request) status.Code {
			if fails--; fails == 0 {
				return status.IOFailed
			}
			return v.Apply(r)
		}
		content := make([]byte, length)
		for i := range content {
			content[i] = byte(i>>9 ^ i | 1)
		}
		checkpoints, done := 0, uint64(0)
		isPut := rapid.Bool().Draw(t, "put")
		config.Checkpoint = func(bytes uint64) error {
			checkpoints++
			done = bytes
			if isPut && v.flushes != checkpoints {
				t.Fatalf("%d flushes before checkpoint %d", v.flushes, checkpoints)
			}
			return nil
		}
		got := make([]byte, length)
		move := func(from uint64) error {
			start, rest := uint64(offset)+from, uint64(length)-from
			if isPut {
				_, err := Put(t.Context(), config, bytes.NewReader(content[from:]), rest, start)
				copy(got, v.Data()[offset:])
				return err
			}
			copy(v.Data()[offset:], content)
			_, err := Get(t.Context(), config, &memoryFile{data: got[from:]}, start, rest)
			return err
		}
		err := move(0)
		if (err != nil) != (checkpoints == 1) || err != nil && !errors.Is(err, status.IOFailed) {
			t.Fatalf("error %v, %d checkpoints", err, checkpoints)
		}
		if err == nil {
			return
		}
		if !bytes.Equal(got[:done], content[:done]) {
			t.Fatalf("the checkpoint claims %d bytes that are not there", done)
		}
		if err := move(done); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("after %d bytes: error %v", done, err)
		}
	})
}

func TestACheckpointThatFailsFailsTheTransfer(t *testing.T) {
	v, config := newTestVolume(1, 2)
	full := errors.New("no space")
	config.Checkpoint = func(uint64) error { return full }
	v.Intercept = func(r *client.Request) status.Code {
		if r.Type == client.Write {
			return status.IOFailed
		}
		return v.Apply(r)
	}
	if _, err := Put(t.Context(), config, bytes.NewReader(make([]byte, testSize)), testSize,
		0); !errors.Is(err, full) || !errors.Is(err, status.IOFailed) {
		t.Errorf("error is %v", err)
	}
}
