package volumetest

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func testWriteZeroes(t *testing.T, v volume.Volume) {
	testClearing(t, v, volume.WriteZeroes, volume.CanWriteZeroes, func(b, _ []byte) bool {
		return bytes.Equal(b, make([]byte, len(b)))
	})
}

func testTrim(t *testing.T, v volume.Volume) {
	testClearing(t, v, volume.Trim, volume.CanTrim, func(b, before []byte) bool {
		return bytes.Equal(b, make([]byte, len(b))) || bytes.Equal(b, before)
	})
}

// testClearing checks that an operation changes its range, block by block, to
// something acceptable and nothing else.
func testClearing(t *testing.T, v volume.Volume, operation volume.Operation, needs volume.Capability, acceptable func(b, before []byte) bool) {
	info := v.Info()
	block := uint64(info.BlockSize)
	lane := newLane(t, v, 1)
	defer closeLane(t, lane)
	clearing := volume.Request{Operation: operation, Offset: 3 * block, Length: (MinBlocks - 7) * block}
	if !info.Capabilities.Has(needs) {
		if err := lane.Submit(&clearing); !errors.Is(err, status.NotSupported) {
			t.Errorf("an operation that is not offered gave %v", err)
		}
		return
	}
	before := pattern(MinBlocks*block, 0x5a)
	w := volume.Request{Operation: volume.Write, Length: uint64(len(before)), Buffer: before}
	Do(t, lane, &w)
	Do(t, lane, &clearing)
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
	lane := newLane(t, v, 8)
	defer closeLane(t, lane)
	requests := []*volume.Request{{Operation: volume.Flush}, {Operation: volume.Flush}}
	if v.Info().Capabilities.Has(volume.CanFUA) {
		requests = append(requests, &volume.Request{
			Operation: volume.Write, ForceUnitAccess: true, Length: block, Buffer: pattern(block, 1),
		}, &volume.Request{Operation: volume.WriteZeroes, ForceUnitAccess: true, Offset: block, Length: block})
	}
	Do(t, lane, requests...)
	for _, r := range requests {
		if r.Err != nil {
			t.Errorf("%v, forced %v: %v", r.Operation, r.ForceUnitAccess, r.Err)
		}
	}
}

// testWake makes a lane sleep for each of many single requests. It may wake up
// too often, never too late.
func testWake(t *testing.T, v volume.Volume) {
	lane := newLane(t, v, 1)
	defer closeLane(t, lane)
	if lane.Descriptor() < 0 {
		t.Skip("requests are always done when Submit returns")
	}
	if !lane.Arm() || !lane.Arm() {
		t.Fatal("an idle lane could not be armed, or not twice")
	}
	lane.Disarm()
	block := uint64(v.Info().BlockSize)
	operations := []volume.Operation{volume.Write, volume.Flush, volume.Read, volume.WriteZeroes}
	for i := range 400 {
		r := volume.Request{Operation: operations[i%len(operations)], Length: block, Buffer: pattern(block, byte(i))}
		if err := lane.Submit(&r); err != nil {
			t.Fatal(err)
		}
		sleep(t, lane) // fails if nothing ever wakes it
		if done := Await(t, lane, 1); done[0] != &r || r.Err != nil {
			t.Fatalf("request %d: %v", i, r.Err)
		}
	}
}

func testClose(t *testing.T, v volume.Volume) {
	lane := newLane(t, v, 1)
	if err := v.Close(context.Background()); !errors.Is(err, status.InUse) {
		t.Errorf("volume with an open lane: Close returned %v", err)
	}
	r := volume.Request{Operation: volume.Flush}
	if err := lane.Submit(&r); err != nil {
		t.Fatal(err)
	}
	if err := lane.Close(); !errors.Is(err, status.InUse) {
		t.Errorf("lane with a running request: Close returned %v", err)
	}
	Await(t, lane, 1)
	if err := errors.Join(lane.Close(), lane.Close()); err != nil {
		t.Errorf("idle lane: Close returned %v", err)
	}
	closeVolume(t, v)
}
