// SPDX-License-Identifier: Apache-2.0

// Package volumetest is the conformance suite for volumes: every kind of volume must pass it.
package volumetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// MinBlocks is the smallest size, in blocks, of a volume that the suite can test.
const MinBlocks = 64

// Open opens a new, writable volume that reads as zeroes and has at least MinBlocks blocks. The
// suite closes it.
//
// If the error matches status.NotSupported, the test or benchmark is skipped, because this machine
// cannot open such a volume. Any other error fails it.
type Open func(testing.TB) (volume.Volume, error)

// Run tests one kind of volume. A test of an optional operation follows Info.Capabilities: a volume
// without the capability must reject the operation with status.NotSupported.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		test func(*testing.T, volume.Volume)
	}{
		{"InfoIsComplete", testInfo},
		{"NewVolumeReadsAsZeroes", testNew},
		{"WrittenBlocksReadBack", testReadBack},
		{"RequestsThatDoNotFitAreRejected", testRejected},
		{"DepthIsEnforced", testDepth},
		{"ZeroedBlocksReadAsZeroes", testWriteZeroes},
		{"TrimmedBlocksReadAsZeroesOrUnchanged", testTrim},
		{"HolesReadAsZeroes", testExtents},
		{"FlushAndForcedUnitAccessSucceed", testDurable},
		{"CompletionsWakeAnArmedQueue", testWake},
		{"NothingClosesWhileItIsInUse", testClose},
		{"BehavesLikeAnArrayOfBytes", testModel},
		{"QueuesOfSeveralThreadsKeepTheirBlocksApart", testConcurrency},
		{"RequestsDoNotAllocate", testAllocations},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := MustOpen(t, open)
			defer CloseVolume(t, v)
			c.test(t, v)
		})
	}
}

// MustOpen opens a volume for a test, and skips the test where this machine does not support the
// volume.
func MustOpen(t testing.TB, open Open) volume.Volume {
	t.Helper()
	v, err := open(t)
	if errors.Is(err, status.NotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// OpenMemory opens a volume in memory with blocks of 4 KiB, and closes it when the test ends. size
// is like that of a specification, for instance "1MiB".
func OpenMemory(t testing.TB, size string) volume.Volume {
	t.Helper()
	spec, err := volume.ParseSpec("disk=memory:"+size, 4096)
	if err != nil {
		t.Fatal(err)
	}
	v, err := volume.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close(context.Background()) })
	return v
}

// NewQueue opens a queue of the volume.
func NewQueue(t testing.TB, v volume.Volume, depth int) volume.Queue {
	t.Helper()
	queue, err := v.NewQueue(depth)
	if err != nil {
		t.Fatal(err)
	}
	return queue
}

// CloseQueue closes a queue, which must succeed.
func CloseQueue(t testing.TB, queue volume.Queue) {
	t.Helper()
	if err := queue.Close(); err != nil {
		t.Error(err)
	}
}

// CloseVolume closes a volume, which must succeed.
func CloseVolume(t testing.TB, v volume.Volume) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeoutMs*time.Millisecond)
	defer cancel()
	if err := v.Close(ctx); err != nil {
		t.Error(err)
	}
}

// pattern returns content that depends on the seed and on each byte's position.
func pattern(length uint64, seed byte) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = seed ^ byte(i) ^ byte(i>>8)*3
	}
	return b
}

// readAll reads the first MinBlocks blocks, which are all that the suite uses.
func readAll(t *testing.T, v volume.Volume) []byte {
	t.Helper()
	queue := NewQueue(t, v, 1)
	defer CloseQueue(t, queue)
	content := make([]byte, MinBlocks*uint64(v.Info().BlockSize))
	r := volume.Request{Operation: iomsg.OpRead, Length: uint64(len(content)), Buffer: content}
	Do(t, queue, &r)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return content
}
