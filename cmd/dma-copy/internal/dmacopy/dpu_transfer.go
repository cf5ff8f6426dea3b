package dmacopy

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// take copies chunks out of the window and writes them to the file.
func (d *dpu) take(ctx context.Context, p plan, m *mover) (Result, error) {
	s, err := newSink(p, d.config)
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	written := make(chan error, 1)
	go func() {
		err := d.write(ctx, s, m)
		cancelUnlessGone(cancel, err)
		written <- err
	}()
	last, err := d.takeMessages(ctx, p, m)
	if err != nil {
		cancel(err)
	}
	if failure := <-written; err == nil {
		err = failure
	}
	if err = s.finish(last, cause(ctx, err)); err != nil {
		return Result{}, err
	}
	d.confirm(ctx)
	return Result{Direction: ToDPU, Bytes: p.size, Checksum: s.checksum}, nil
}

// takeMessages starts a job for every chunk that the host has filled.
func (d *dpu) takeMessages(ctx context.Context, p plan, m *mover) (end, error) {
	next := sink{plan: p}
	for {
		received, err := d.peer.receive(ctx)
		if err != nil {
			return end{}, err
		}
		switch received := received.(type) {
		case filled:
			if err := next.expect(received); err != nil {
				return end{}, err
			}
			if received.chunk >= m.released.Load()+uint64(p.slots) {
				return end{}, status.Errorf(status.Unexpected, "the host has filled chunk %d, whose slot is in use", received.chunk)
			}
			m.submit(received)
		case end:
			if next.chunk != p.chunks() {
				return end{}, status.Errorf(status.Unexpected, "the host says that it is done after %d of %d chunks", next.chunk, p.chunks())
			}
			return received, nil
		default:
			return end{}, d.peer.unexpected(received, "a chunk or the end")
		}
	}
}

// write takes what the jobs have copied, in order, until the last chunk.
func (d *dpu) write(ctx context.Context, s *sink, m *mover) error {
	for range s.plan.chunks() {
		c, err := m.next(ctx)
		if err != nil {
			return err
		}
		if err := s.write(c, m.slot(c)); err != nil {
			return err
		}
		m.released.Add(1)
		if err := d.peer.send(ctx, released{chunk: c.chunk}); err != nil {
			return err
		}
	}
	return nil
}

// supply reads the file, and copies it chunk by chunk into the window.
func (d *dpu) supply(ctx context.Context, p plan, m *mover) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	free := make(chan struct{}, p.slots)
	for range p.slots {
		free <- struct{}{}
	}
	read, announced := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		cancelUnlessGone(cancel, d.read(ctx, p, m, free))
	}()
	go func() {
		defer close(announced)
		cancelUnlessGone(cancel, d.announce(ctx, p, m))
	}()
	if err := d.awaitReleases(ctx, p, m, free); err != nil {
		cancel(err)
	}
	<-read
	<-announced
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	return Result{Direction: ToHost, Bytes: p.size, Checksum: d.own.checksum}, nil
}

func (d *dpu) read(ctx context.Context, p plan, m *mover, free <-chan struct{}) error {
	for chunk := range p.chunks() {
		select {
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		c := filled{chunk: chunk, length: p.length(chunk)}
		if err := d.own.read(m.slot(c)); err != nil {
			return err
		}
		c.checksum = d.own.checksum
		m.submit(c)
	}
	return d.own.unchanged()
}

// announce tells the host of every chunk that has arrived, and of the end.
func (d *dpu) announce(ctx context.Context, p plan, m *mover) error {
	var checksum uint32
	for range p.chunks() {
		c, err := m.next(ctx)
		if err != nil {
			return err
		}
		m.announced.Add(1)
		if err := d.peer.send(ctx, c); err != nil {
			return err
		}
		checksum = c.checksum
	}
	if err := d.own.unchanged(); err != nil {
		return err
	}
	return d.peer.send(ctx, end{size: p.size, checksum: checksum})
}

// awaitReleases takes the host's messages until it has confirmed the whole
// file.
func (d *dpu) awaitReleases(ctx context.Context, p plan, m *mover, free chan<- struct{}) error {
	for {
		received, err := d.peer.receive(ctx)
		if err != nil {
			return err
		}
		next := m.released.Load()
		switch received := received.(type) {
		case released:
			if received.chunk != next || next >= m.announced.Load() || len(free) == cap(free) {
				return status.Errorf(status.Unexpected, "the host released chunk %d, next is %d", received.chunk, next)
			}
			m.released.Add(1)
			free <- struct{}{}
			d.config.observe(min((next+1)*p.chunkSize, p.size), p.size)
		case outcome:
			if next != p.chunks() {
				return status.Errorf(status.Unexpected, "the host says that it is done after %d of %d chunks", next, p.chunks())
			}
			return nil
		default:
			return d.peer.unexpected(received, "a release or a status")
		}
	}
}
