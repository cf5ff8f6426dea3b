package volumetest

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func testWriteZeroes(t *testing.T, v volume.Volume) {
	testClearing(t, v, iomsg.OpWriteZeroes, volume.CanWriteZeroes, func(b, _ []byte) bool {
		return bytes.Equal(b, make([]byte, len(b)))
	})
}

func testTrim(t *testing.T, v volume.Volume) {
	testClearing(t, v, iomsg.OpTrim, volume.CanTrim, func(b, before []byte) bool {
		return bytes.Equal(b, make([]byte, len(b))) || bytes.Equal(b, before)
	})
}

// testClearing checks that an operation changes its range, block by block, to
// something acceptable and nothing else.
func testClearing(t *testing.T, v volume.Volume, operation iomsg.Operation, needs volume.Capability, acceptable func(b, before []byte) bool) {
	info := v.Info()
	block := uint64(info.BlockSize)
	queue := newQueue(t, v, 1)
	defer closeQueue(t, queue)
	clearing := volume.Request{Operation: operation, Offset: 3 * block, Length: (MinBlocks - 7) * block}
	if !info.Capabilities.Has(needs) {
		if err := queue.Submit(&clearing); !errors.Is(err, status.NotSupported) {
			t.Errorf("an operation that is not offered gave %v", err)
		}
		return
	}
	before := pattern(MinBlocks*block, 0x5a)
	w := volume.Request{Operation: iomsg.OpWrite, Length: uint64(len(before)), Buffer: before}
	Do(t, queue, &w)
	Do(t, queue, &clearing)
	if w.Err != nil || clearing.Err != nil {
		t.Fatalf("write gave %v, %v gave %v", w.Err, operation, clearing.Err)
	}
	after := readAll(t, v)
	for i := uint64(0); i < uint64(len(after)); i += block {
		got, was := after[i:i+block], before[i:i+block]
		inside := i >= clearing.Offset && i < clearing.Offset+clearing.Length
		if inside && !acceptable(got, was) || !inside && !bytes.Equal(got, was) {
			t.Fatalf("block %d, inside the range: %v, holds %x... after %v", i/block, inside, got[:8], operation)
		}
	}
}

func testDurable(t *testing.T, v volume.Volume) {
	block := uint64(v.Info().BlockSize)
	queue := newQueue(t, v, 8)
	defer closeQueue(t, queue)
	requests := []*volume.Request{{Operation: iomsg.OpFlush}, {Operation: iomsg.OpFlush}}
	if v.Info().Capabilities.Has(volume.CanFUA) {
		requests = append(requests, &volume.Request{
			Operation: iomsg.OpWrite, ForceUnitAccess: true, Length: block, Buffer: pattern(block, 1),
		}, &volume.Request{Operation: iomsg.OpWriteZeroes, ForceUnitAccess: true, Offset: block, Length: block})
	}
	Do(t, queue, requests...)
	for _, r := range requests {
		if r.Err != nil {
			t.Errorf("%v, forced %v: %v", r.Operation, r.ForceUnitAccess, r.Err)
		}
	}
}

// testWake makes a queue sleep for each of many single requests. It may wake up
// too often, never too late.
func testWake(t *testing.T, v volume.Volume) {
	queue := newQueue(t, v, 1)
	defer closeQueue(t, queue)
	if !queue.Arm() || !queue.Arm() {
		t.Fatal("an idle queue could not be armed, or not twice")
	}
	queue.Disarm()
	block := uint64(v.Info().BlockSize)
	operations := []iomsg.Operation{iomsg.OpWrite, iomsg.OpFlush, iomsg.OpRead, iomsg.OpWriteZeroes}
	for i := range 400 {
		r := volume.Request{Operation: operations[i%len(operations)], Length: block, Buffer: pattern(block, byte(i))}
		if err := queue.Submit(&r); err != nil {
			t.Fatal(err)
		}
		sleep(t, queue) // fails if nothing ever wakes it
		if done := Await(t, queue, 1); done[0] != &r || r.Err != nil {
			t.Fatalf("request %d: %v", i, r.Err)
		}
	}
}

func testClose(t *testing.T, v volume.Volume) {
	queue := newQueue(t, v, 1)
	if err := v.Close(context.Background()); !errors.Is(err, status.InUse) {
		t.Errorf("volume with an open queue: Close returned %v", err)
	}
	r := volume.Request{Operation: iomsg.OpFlush}
	if err := queue.Submit(&r); err != nil {
		t.Fatal(err)
	}
	if err := queue.Close(); !errors.Is(err, status.InUse) {
		t.Errorf("queue with a running request: Close returned %v", err)
	}
	Await(t, queue, 1)
	if err := errors.Join(queue.Close(), queue.Close()); err != nil {
		t.Errorf("idle queue: Close returned %v", err)
	}
	closeVolume(t, v)
}
