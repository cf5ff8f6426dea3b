// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"iter"
)

// extentsAtOnce is how many extents one request of Extents returns.
const extentsAtOnce = 256

// longestExtents is the most bytes that one request describes, so that none takes long.
const longestExtents = 64 << 30

// Extents describes a range of whole blocks by its extents, in order: where data is, and where
// holes are, which read as zeroes. Neighbors may be of the same kind. If the volume does not know
// (see Info.CanReportExtents), everything is data. What is written meanwhile may be missing.
func (v *blocking) Extents(off, length int64) ([]Extent, error) {
	return v.extents(nil, off, length)
}

// ExtentsContext is Extents, except that it also returns when ctx ends, with the cause of that.
func (v *blocking) ExtentsContext(ctx context.Context, off, length int64) ([]Extent, error) {
	var found []Extent
	_, err := callUntil(ctx, func(c *call) (int, error) {
		var err error
		found, err = v.extents(c, off, length)
		return 0, err
	})
	if err != nil {
		return nil, err // the call may still go on
	}
	return found, nil
}

func (v *blocking) extents(c *call, off, length int64) ([]Extent, error) {
	var all []Extent
	for {
		found, err := v.someExtents(c, off, length)
		if err != nil {
			return nil, err
		}
		for _, e := range found {
			off, length = off+int64(e.Length), length-int64(e.Length)
		}
		if all = append(all, found...); length == 0 {
			return all, nil
		}
	}
}

// PlacedExtent is an Extent at an offset of a volume, in bytes.
type PlacedExtent struct {
	Offset int64
	Extent
}

// AllExtents returns an iterator over the extents of a range of whole blocks, in order: see
// Extents. It asks for a bounded number at a time, while the loop runs, so the loop may use the
// volume, and be left at any time. If a request fails, or ctx ends, the last element is an error,
// which has no extent.
func (v *blocking) AllExtents(
	ctx context.Context, off, length int64,
) iter.Seq2[PlacedExtent, error] {
	return func(yield func(PlacedExtent, error) bool) {
		for off, length := off, length; ; {
			var found []Extent
			_, err := callUntil(ctx, func(c *call) (int, error) {
				var err error
				found, err = v.someExtents(c, off, length)
				return 0, err
			})
			if err != nil {
				yield(PlacedExtent{}, err)
				return
			}
			for _, e := range found {
				if !yield(PlacedExtent{Offset: off, Extent: e}, nil) {
					return
				}
				off, length = off+int64(e.Length), length-int64(e.Length)
			}
			if length == 0 {
				return
			}
		}
	}
}

// someExtents returns the extents at the beginning of a range, as many as one request reports. It
// returns none for an empty range.
func (v *blocking) someExtents(c *call, off, length int64) ([]Extent, error) {
	s, err := v.acquireSync()
	if err != nil {
		return nil, err
	}
	defer v.releaseSync()
	if err := v.terms.checkBlocks(Extents, off, length); err != nil || length == 0 {
		return nil, err
	}
	if !v.terms.info.CanReportExtents {
		return []Extent{{Length: uint64(length)}}, nil
	}
	r, err := s.beginRead(c, uint64(off), uint64(off)+uint64(length))
	if err != nil {
		return nil, err
	}
	defer s.endRead(c, r)
	slot, err := s.acquire(c)
	if err != nil {
		return nil, err
	}
	defer func() {
		slot.request.Range = 0
		s.release(c, slot)
	}()
	if err := c.err(); err != nil {
		return nil, err
	}
	slot.request.Range = uint64(min(length, longestExtents))
	size := min(extentsAtOnce*ExtentSize, v.terms.info.BufferSize)
	slot.start(c, Extents, 0, uint64(off), size)
	if err := slot.wait(); err != nil {
		return nil, err
	}
	found, err := DecodeExtents(nil, slot.buffer[:size], slot.request.Range)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", slot, err)
	}
	return found, nil
}
