// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// RunDPU runs the DPU's side of a copy. It serves one host.
func RunDPU(ctx context.Context, config Config) (result Result, err error) {
	if err := config.validate(); err != nil {
		return Result{}, program.Usage(err)
	}
	file, err := openInput(config.Path)
	if err != nil {
		return Result{}, err
	}
	defer file.close()
	device, err := openDevice(ctx, &config)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	connection, err := accept(ctx, &config)
	if err != nil {
		return Result{}, program.CannotConnect(err)
	}
	d := &dpu{side: side{config: &config, peer: newPeer(connection, "host", &config), input: file,
		begun: time.Now()}, device: device}
	return d.run(ctx, d.copy, d.copyOriginal)
}

// openDevice opens the DMA device and limits chunks to what it can copy.
func openDevice(ctx context.Context, config *Config) (dma.Device, error) {
	device, err := devicecall.OpenWithin(ctx,
		func() (dma.Device, error) { return config.DMA.Open(config.Device) })
	if err != nil {
		return nil, fmt.Errorf("open DMA device %s: %w", config.Device, err)
	}
	limits := device.Capabilities()
	if !limits.Memcpy || !limits.ImportedMemory || limits.MaxJobs < 1 {
		err := status.Errorf(status.NotSupported, "DMA device %s cannot copy memory of the host",
			config.Device)
		return nil, errors.Join(err, device.Close())
	}
	if err := checkImports(config, limits); err != nil {
		return nil, errors.Join(err, device.Close())
	}
	config.ChunkSize = min(config.ChunkSize, limits.MaxBufferSize)
	config.Slots = min(config.Slots, limits.MaxJobs)
	return device, nil
}

// checkImports fails if the device cannot reach the memory that will be imported.
func checkImports(config *Config, limits dma.Capabilities) error {
	imports, err := config.Comch.Capabilities(config.Device)
	if err != nil || !imports.OpaqueImports || limits.OpaqueMemory {
		return nil // an error will occur again
	}
	return status.Errorf(status.NotSupported,
		"DMA provider %s cannot reach the memory that Comch provider %s imports: use --dma-provider %s",
		config.DMA.Name(), config.Comch.Name(), config.Comch.Name())
}

// accept waits for one host. Comch rejects further ones.
func accept(ctx context.Context, config *Config) (comch.Connection, error) {
	server, err := config.Comch.Listen(ctx, comch.ServerConfig{
		Device: config.Device, Representor: config.Representor, Name: serviceName,
		Admission: comch.Admission{MaxClients: 1},
	})
	if err != nil {
		return nil, err
	}
	config.Logger.Info("waiting for the host: start dma-copy without --rep-pci there",
		zap.String("address", server.Address()),
		zap.Duration("connect_timeout", config.ConnectTimeout))
	bounded, cancel := context.WithTimeout(ctx, config.ConnectTimeout)
	defer cancel()
	connection, err := server.Accept(bounded)
	if err != nil && errors.Is(bounded.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("no host connected within %v (--connect-timeout): is dma-copy --side host running? %w",
			config.ConnectTimeout, err)
	}
	err = errors.Join(cause(ctx, err), server.Close())
	if err != nil && connection != nil {
		connection.Abort()
	}
	return connection, err
}

type dpu struct {
	side
	device dma.Device
}

func (d *dpu) copy(ctx context.Context) (Result, error) {
	p, err := d.negotiate(ctx)
	if err != nil {
		return Result{}, err
	}
	if p.size == 0 {
		return d.copyNothing(ctx, p)
	}
	window, access, err := d.importWindow(ctx, p)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = window.Close() }()
	m, err := startMover(d.device, window, access, p, int(p.slots), d.config.Policy)
	if err != nil {
		return Result{}, err
	}
	var result Result
	if p.direction == ToDPU {
		result, err = d.receiveFile(ctx, p, m)
	} else {
		result, err = d.sendFile(ctx, p, m)
	}
	return result, errors.Join(err, m.stop())
}

func (d *dpu) negotiate(ctx context.Context) (plan, error) {
	m, err := d.peer.receive(ctx)
	if err != nil {
		return plan{}, err
	}
	o, ok := m.(offer)
	if !ok {
		return plan{}, d.peer.unexpected(m, "an offer")
	}
	direction, err := choose(o.hasFile, d.input != nil)
	if err != nil {
		return plan{}, err
	}
	size := o.size
	if direction == ToHost {
		size = d.input.size
	}
	p := divide(direction, size, d.config)
	if size > 1<<63-1 {
		return plan{}, status.Errorf(status.TooBig, "a file of %d bytes is too large", size)
	}
	return p, d.peer.send(ctx, p)
}

// divide returns a plan with a window that is no larger than the file.
func divide(direction Direction, size uint64, config *Config) plan {
	p := plan{direction: direction, size: size, chunkSize: min(config.ChunkSize, max(size, 1)),
		slots: 1}
	p.slots = uint32(min(uint64(config.Slots), max(p.chunks(), 1)))
	return p
}

func (d *dpu) importWindow(ctx context.Context, p plan) (*memory.Region, memory.Access, error) {
	m, err := d.peer.receive(ctx)
	if err != nil {
		return nil, 0, err
	}
	e, ok := m.(export)
	if !ok {
		return nil, 0, d.peer.unexpected(m, "an export")
	}
	window, access, err := d.peer.connection.ImportMemory(e.descriptor)
	if err != nil {
		return nil, 0, fmt.Errorf("import the host's memory: %w", d.peer.explain(err))
	}
	if e.length != p.window() || window.Len() < p.window() || e.address != window.Base() {
		err := status.Errorf(status.InvalidValue,
			"the host exported %d bytes at %#x and announced %d at %#x, but the copy needs %d",
			window.Len(), window.Base(), e.length, e.address, p.window())
		return nil, 0, errors.Join(err, window.Close())
	}
	return window, access, nil
}

// copyNothing copies an empty file.
func (d *dpu) copyNothing(ctx context.Context, p plan) (Result, error) {
	result := Result{Direction: p.direction}
	if p.direction == ToHost {
		if err := d.peer.send(ctx, end{}); err != nil {
			return result, err
		}
		return result, d.awaitOutcome(ctx)
	}
	m, err := d.peer.receive(ctx)
	if err != nil {
		return result, err
	}
	last, ok := m.(end)
	if !ok {
		return result, d.peer.unexpected(m, "the end")
	}
	s, err := newSink(p, d.config)
	if err != nil {
		return result, err
	}
	if err := s.finish(last, nil); err != nil {
		return result, err
	}
	d.confirm(ctx)
	return result, nil
}

// confirm reports success to the host.
func (d *dpu) confirm(ctx context.Context) {
	if err := d.peer.send(ctx, outcome{}); err != nil {
		// The file is complete, which only the host does not learn.
		d.config.Logger.Warn("the file is complete, but reporting this to the host failed",
			zap.Error(err))
	}
}

func (d *dpu) awaitOutcome(ctx context.Context) error {
	m, err := d.peer.receive(ctx)
	if err != nil {
		return err
	}
	if _, ok := m.(outcome); !ok {
		return d.peer.unexpected(m, "a status")
	}
	return nil
}

// receiveFile copies chunks out of the window and writes them to the file.
func (d *dpu) receiveFile(ctx context.Context, p plan, m *mover) (Result, error) {
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
	last, err := d.receiveChunks(ctx, p, m)
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

// receiveChunks starts a job for every chunk that the host has filled.
func (d *dpu) receiveChunks(ctx context.Context, p plan, m *mover) (end, error) {
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
				return end{}, status.Errorf(status.Unexpected,
					"the host filled chunk %d, whose slot is in use", received.chunk)
			}
			m.submit(received)
		case end:
			if next.chunk != p.chunks() {
				return end{}, status.Errorf(status.Unexpected,
					"the host sent the end after %d of %d chunks", next.chunk, p.chunks())
			}
			return received, nil
		default:
			return end{}, d.peer.unexpected(received, "a chunk or the end")
		}
	}
}

// write writes what the jobs have copied, in order, up to the last chunk.
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

// sendFile reads the file and copies it chunk by chunk into the window.
func (d *dpu) sendFile(ctx context.Context, p plan, m *mover) (Result, error) {
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
	return Result{Direction: ToHost, Bytes: p.size, Checksum: d.input.checksum}, nil
}

func (d *dpu) read(ctx context.Context, p plan, m *mover, free <-chan struct{}) error {
	for chunk := range p.chunks() {
		select {
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		c := filled{chunk: chunk, length: p.length(chunk)}
		if err := d.input.read(m.slot(c)); err != nil {
			return err
		}
		c.checksum = d.input.checksum
		m.submit(c)
	}
	return d.input.unchanged()
}

// announce announces every chunk that has arrived in the window, and the end, to the host.
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
	if err := d.input.unchanged(); err != nil {
		return err
	}
	return d.peer.send(ctx, end{size: p.size, checksum: checksum})
}

// awaitReleases handles the host's messages until it has confirmed the whole file.
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
				return status.Errorf(status.Unexpected, "the host released chunk %d instead of %d",
					received.chunk, next)
			}
			m.released.Add(1)
			free <- struct{}{}
			d.config.observe(min((next+1)*p.chunkSize, p.size), p.size)
		case outcome:
			if next != p.chunks() {
				return status.Errorf(status.Unexpected,
					"the host reported success after %d of %d chunks", next, p.chunks())
			}
			return nil
		default:
			return d.peer.unexpected(received, "a release or a status")
		}
	}
}
