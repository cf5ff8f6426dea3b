package transfer

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

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
	if offset > info.Size || length > info.Size-offset {
		return 0, status.Errorf(status.InvalidValue,
			"%d bytes at offset %d are outside volume %q of %d bytes", length, offset, info.Name,
			info.Size)
	}
	block := uint64(info.BlockSize)
	g := &get{offset: offset, end: offset + length, sink: sink, size: uint64(config.BufferSize)}
	g.start, g.limit = offset&^(block-1), (offset+length+block-1)&^(block-1)
	if length == 0 {
		g.limit = g.start
	}
	g.frontier = newFrontier(g.start)
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
	offset, end  uint64        // of the wanted bytes in the volume
	start, limit uint64        // of the blocks around them
	size         uint64        // of an extent
	extents      atomic.Uint64 // returned by next
	moved        atomic.Uint64
	frontier     *frontier

	sink   io.Writer
	random io.WriterAt // sink, if it can be written in any order
	sparse bool        // what is not written to random is zeroes
}

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

// holeSize is the length of the pieces that become holes if they are zeroes.
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

func (g *get) kind() iomsg.Type { return iomsg.Read }

func (g *get) next([]byte) (extent, error) {
	start := g.start + (g.extents.Add(1)-1)*g.size
	if start >= g.limit {
		return extent{}, nil
	}
	return extent{offset: start, length: uint32(min(g.size, g.limit-start))}, nil
}

func (g *get) done(e extent, data []byte) error {
	from, to := max(e.offset, g.offset), min(e.offset+uint64(e.length), g.end)
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
	g.frontier.add(e)
	return nil
}

// checkpoint leaves it to the caller to make the sink durable.
func (g *get) checkpoint() (uint64, error) {
	return min(max(g.frontier.position(), g.offset), g.end) - g.offset, nil
}
