// Package volumetest is the conformance suite for volumes: what every kind
// must do alike.
package volumetest

import (
	"context"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// MinBlocks is how many blocks the volumes under test must have.
const MinBlocks = 64

// Run tests a kind of volume. open makes a new volume that can be written to,
// reads as zeroes and has at least MinBlocks blocks; Run closes it.
func Run(t *testing.T, open func(testing.TB) volume.Volume) {
	for _, c := range []struct {
		name string
		test func(*testing.T, volume.Volume)
	}{
		{"InfoIsComplete", testInfo},
		{"NewVolumeReadsAsZeroes", testNew},
		{"WrittenBlocksReadBack", testReadBack},
		{"RequestsThatDoNotFitAreRefused", testRefused},
		{"DepthIsEnforced", testDepth},
		{"ZeroedBlocksReadAsZeroes", testWriteZeroes},
		{"TrimmedBlocksReadAsZeroesOrUnchanged", testTrim},
		{"FlushAndForcedUnitAccessSucceed", testDurable},
		{"CompletionsWakeAnArmedQueue", testWake},
		{"NothingClosesWhileItIsInUse", testClose},
		{"BehavesLikeAnArrayOfBytes", testModel},
		{"QueuesOfSeveralThreadsKeepTheirBlocksApart", testConcurrency},
		{"RequestsDoNotAllocate", testAllocations},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := open(t)
			defer closeVolume(t, v)
			c.test(t, v)
		})
	}
}

// Run tests a kind of volume. open makes a new volume that can be written to,
// reads as zeroes and has at least MinBlocks blocks; Run closes it.

func newQueue(t testing.TB, v volume.Volume, depth int) volume.Queue {
	t.Helper()
	queue, err := v.NewQueue(depth)
	if err != nil {
		t.Fatal(err)
	}
	return queue
}

func closeQueue(t testing.TB, queue volume.Queue) {
	t.Helper()
	if err := queue.Close(); err != nil {
		t.Error(err)
	}
}

func closeVolume(t testing.TB, v volume.Volume) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patienceMs*time.Millisecond)
	defer cancel()
	if err := v.Close(ctx); err != nil {
		t.Error(err)
	}
}

// pattern is content that differs by seed and by position.
func pattern(length uint64, seed byte) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = seed ^ byte(i) ^ byte(i>>8)*3
	}
	return b
}

// readAll reads the part of a volume that the suite uses.
func readAll(t *testing.T, v volume.Volume) []byte {
	t.Helper()
	queue := newQueue(t, v, 1)
	defer closeQueue(t, queue)
	content := make([]byte, MinBlocks*uint64(v.Info().BlockSize))
	r := volume.Request{Operation: iomsg.OpRead, Length: uint64(len(content)), Buffer: content}
	Do(t, queue, &r)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return content
}
