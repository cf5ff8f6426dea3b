// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Get reads length bytes of the volume, starting at offset, and writes them to sink. Neither number
// needs to be a multiple of the block size. If sink is an io.WriterAt, several threads write to it,
// in any order, at offsets counted from the first byte of the transfer. Otherwise only the first
// queue is used. Get returns the number of bytes moved.
func Get(ctx context.Context, config Config, sink io.Writer, offset,
	length uint64) (uint64, error) {
	info := config.Volume.Info()
	if err := document.CheckRange(&info, offset, length); err != nil {
		return 0, status.Errorf(status.InvalidValue, "%w", err)
	}
	block := uint64(info.BlockSize)
	g := &get{offset: offset, end: offset + length, sink: sink, size: uint64(config.BufferSize),
		block: block}
	if info.CanReportExtents {
		g.extents = func(offset, length uint64) ([]iomsg.Extent, error) {
			return config.Volume.ExtentsContext(ctx, int64(offset), int64(length))
		}
	}
	g.start, g.limit = offset&^(block-1), (offset+length+block-1)&^(block-1)
	if length == 0 {
		g.limit = g.start
	}
	g.frontier = newFrontier(g.start)
	g.position, g.known = g.start, g.start
	g.random, _ = sink.(io.WriterAt)
	if file, ok := sink.(sparseFile); ok {
		if err := makeSparse(file, length); err != nil {
			return 0, fmt.Errorf("prepare output: %w", err)
		}
		g.sparse = true
	}
	if g.random == nil {
		config.Queues = config.Queues[:1] // one queue writes in order
	}
	if err := config.execute(ctx, g, &g.moved); err != nil {
		return g.moved.Load(), incomplete(fmt.Sprintf("read volume %q", info.Name), &g.moved, err)
	}
	return g.moved.Load(), nil
}

// get is a range of the volume in transfer to a file or a stream.
type get struct {
	offset, end  uint64 // of the wanted bytes in the volume
	start, limit uint64 // of the blocks around them
	size         uint64 // of an extent
	block        uint64
	moved        atomic.Uint64
	frontier     *frontier

	sink   io.Writer
	random io.WriterAt // sink, if it can be written in any order
	sparse bool        // what is not written to random is zeroes

	mu       sync.Mutex // guards the fields below
	position uint64     // of the next extent
	known    uint64     // the holes up to here are known
	holes    []hole     // from position to known, in order
	// extents finds the holes of a range; nil if the volume does not know them.
	extents func(offset, length uint64) ([]iomsg.Extent, error)
}

// hole is a range of whole blocks that reads as zeroes.
type hole struct{ start, end uint64 }

// sparseFile is a file that can have holes.
type sparseFile interface {
	io.WriterAt
	Truncate(size int64) error
}

// makeSparse makes a file one hole of a length.
func makeSparse(file sparseFile, length uint64) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	return file.Truncate(int64(length))
}

// holeSize is the length of the pieces that become holes if they are zeroes, and of the shortest
// holes of the volume that are not read.
const holeSize = 64 << 10

// writeSparse writes what is not zeroes.
func (g *get) writeSparse(data []byte, offset int64) (int, error) {
	done := 0
	for done < len(data) {
		piece := data[done:min(done+holeSize, len(data))]
		if !isZero(piece) {
			if n, err := g.random.WriteAt(piece, offset+int64(done)); err != nil {
				return done + n, err
			}
		}
		done += len(piece)
	}
	return done, nil
}

func (g *get) kind() client.RequestType { return client.Read }

func (g *get) next([]byte) (extent, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	end, isHole := g.ahead()
	for isHole && g.sparse {
		g.pass(g.position, end)
		g.position = end
		end, isHole = g.ahead()
	}
	e := extent{offset: g.position, length: uint32(min(g.size, end-g.position)), zero: isHole}
	g.position = e.end()
	return e, nil
}

// ahead returns where the hole or the data at the current position ends. It finds out about holes
// when it gets to where they are not known.
func (g *get) ahead() (end uint64, isHole bool) {
	if g.position == g.known && g.known < g.limit {
		g.findHoles()
	}
	for len(g.holes) > 0 && g.holes[0].end <= g.position {
		g.holes = g.holes[1:]
	}
	if len(g.holes) == 0 {
		return g.known, false
	}
	if next := g.holes[0]; g.position < next.start {
		return next.start, false
	}
	return g.holes[0].end, true
}

// blocksAtOnce is how many blocks findHoles looks at, which bounds the number of extents.
const blocksAtOnce = 1 << 20

// findHoles finds the holes from the current position on.
func (g *get) findHoles() {
	g.holes, g.known = nil, g.limit
	if g.extents == nil {
		return
	}
	end := min(g.limit, g.position+blocksAtOnce*g.block)
	found, err := g.extents(g.position, end-g.position)
	if err != nil {
		g.extents = nil // everything can be read, and reading reports what is wrong with the volume
		return
	}
	g.known = end
	offset, start := g.position, g.position // start is where the last data ends
	for _, e := range found {
		if !e.IsHole() {
			g.addHole(start, offset)
			start = offset + e.Length
		}
		offset += e.Length
	}
	g.addHole(start, offset)
}

// addHole adds a hole, unless it is too short to matter. A target may report parts of blocks.
func (g *get) addHole(start, end uint64) {
	start, end = (start+g.block-1)&^(g.block-1), min(end&^(g.block-1), g.known)
	if end >= start+holeSize {
		g.holes = append(g.holes, hole{start, end})
	}
}

// pass records that a range of blocks has been moved.
func (g *get) pass(start, end uint64) {
	g.moved.Add(min(end, g.end) - max(start, g.offset))
	g.frontier.add(start, end)
}

func (g *get) done(e extent, data []byte) error {
	from, to := max(e.offset, g.offset), min(e.end(), g.end)
	data = data[from-e.offset : to-e.offset]
	var n int
	var err error
	if g.sparse {
		n, err = g.writeSparse(data, int64(from-g.offset))
	} else if g.random != nil {
		n, err = g.random.WriteAt(data, int64(from-g.offset))
	} else {
		n, err = g.sink.Write(data)
	}
	g.moved.Add(uint64(n))
	if err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	g.frontier.add(e.offset, e.end())
	return nil
}

// checkpoint leaves it to the caller to make the sink durable.
func (g *get) checkpoint() (uint64, error) {
	return min(max(g.frontier.position(), g.offset), g.end) - g.offset, nil
}
