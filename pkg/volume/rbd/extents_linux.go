// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// maxObjectsPerSearch bounds how long a request for extents takes. The table then describes less
// than it has room for.
const maxObjectsPerSearch = 128

// searcher answers requests for extents, one after the other, on a goroutine of its own: librbd has
// no asynchronous call for them.
type searcher struct {
	image *image
	// span is the most bytes of a search.
	span uint64
	// wake has an element when there are requests or the searcher stops.
	wake    chan struct{}
	running sync.WaitGroup

	mu       sync.Mutex // guards what follows
	waiting  []*volume.Request
	stopping bool
}

func newSearcher(i *image) (*searcher, error) {
	objectSize, err := i.objectSize()
	return &searcher{image: i, span: objectSize * maxObjectsPerSearch,
		wake: make(chan struct{}, 1)}, err
}

// submit makes the searcher answer a request.
func (s *searcher) submit(r *volume.Request) {
	s.mu.Lock()
	s.waiting = append(s.waiting, r)
	s.mu.Unlock()
	s.signal()
}

func (s *searcher) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run answers requests for a volume until stop, and passes on their errors as explain returns them.
func (s *searcher) run(blockSize uint64, explain func(*volume.Request, error) error) {
	buffer := newRanges()
	defer buffer.free()
	for range s.wake {
		s.mu.Lock()
		requests, stopping := s.waiting, s.stopping
		s.waiting = nil
		s.mu.Unlock()
		for _, r := range requests {
			err := s.search(r, blockSize, buffer)
			if err != nil {
				err = explain(r, err)
			}
			r.Complete(err)
		}
		if stopping {
			return
		}
	}
}

// stop waits until run has returned. No request follows.
func (s *searcher) stop() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.signal()
	s.running.Wait()
}

// search describes the range of a request as far as the bounds allow.
func (s *searcher) search(r *volume.Request, blockSize uint64, buffer ranges) error {
	length := min(r.Length, max(s.span, blockSize))
	parts, complete, err := s.image.findData(r.Offset, length, buffer,
		len(r.Buffer)/iomsg.ExtentSize)
	if errors.Is(err, unix.EDOM) {
		parts, complete, err = []part{{r.Offset, length}}, true, nil
	}
	if err != nil {
		return err
	}
	extents, err := describe(r.Offset, length, blockSize, parts, complete)
	if err != nil {
		return err
	}
	iomsg.EncodeExtents(r.Buffer, extents)
	return nil
}

// part is a part of an image that has data, in bytes.
type part struct{ offset, length uint64 }

// describe returns the extents of a range, in whole blocks, whose parts with data are given in
// ascending order. A block that has data only in part counts as data. Unless the parts are
// complete, nothing is known behind the last one.
func describe(
	offset, length, blockSize uint64, parts []part, complete bool,
) ([]iomsg.Extent, error) {
	end := offset + length
	position := offset
	var extents []iomsg.Extent
	add := func(to uint64, flags iomsg.ExtentFlags) {
		if to <= position {
			return
		}
		if n := len(extents); n > 0 && extents[n-1].Flags == flags {
			extents[n-1].Length += to - position
		} else {
			extents = append(extents, iomsg.Extent{Length: to - position, Flags: flags})
		}
		position = to
	}
	for _, p := range parts {
		if p.offset < offset || p.length > length || p.offset > end-p.length {
			return nil, status.Errorf(status.Unexpected,
				"librbd found data at offset %d, %d bytes, outside of what it was asked for", p.offset,
				p.length)
		}
		add(p.offset&^(blockSize-1), iomsg.Hole)
		add((p.offset+p.length+blockSize-1)&^(blockSize-1), 0)
	}
	if complete {
		add(end, iomsg.Hole)
	}
	return extents, nil
}
