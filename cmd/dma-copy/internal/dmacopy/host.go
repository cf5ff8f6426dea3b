// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A host retries to connect after shortestRetry, and then less and less often.
const (
	shortestRetry = 2 * time.Millisecond
	longestRetry  = 100 * time.Millisecond
)

// RunHost runs the host's side of a copy.
func RunHost(ctx context.Context, config Config) (Result, error) {
	if err := config.validate(); err != nil {
		return Result{}, program.Usage(err)
	}
	file, err := openInput(config.Path)
	if err != nil {
		return Result{}, err
	}
	defer file.close()
	connection, err := connect(ctx, &config)
	if err != nil {
		return Result{}, program.CannotConnect(err)
	}
	h := &host{side{config: &config, peer: newPeer(connection, "DPU", &config), input: file,
		begun: time.Now()}}
	return h.run(ctx, h.copy, h.copyOriginal)
}

// connect waits until the DPU listens, and connects to it.
func connect(ctx context.Context, config *Config) (comch.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, config.ConnectTimeout)
	defer cancel()
	var missing error // why the latest search has found no DPU
	for interval := shortestRetry; ; interval = min(2*interval, longestRetry) {
		connection, err := config.Comch.Connect(ctx, comch.ClientConfig{Device: config.Device,
			Name: serviceName})
		switch {
		case err == nil:
			return connection, nil
		case errors.Is(err, status.NotFound), errors.Is(err, status.Full):
			if missing == nil {
				config.Logger.Info("waiting for the DPU: start dma-copy with --rep-pci there",
					zap.String("device", config.Device),
					zap.Duration("connect_timeout", config.ConnectTimeout))
			}
			missing = err
		case missing == nil || ctx.Err() == nil: // otherwise the time has ended a search
			return nil, err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, fmt.Errorf("no DPU found within %v (--connect-timeout): is dma-copy --side dpu running? %w",
					config.ConnectTimeout, missing)
			}
			return nil, context.Cause(ctx)
		case <-time.After(interval):
		}
	}
}

type host struct{ side }

func (h *host) copy(ctx context.Context) (Result, error) {
	p, err := h.negotiate(ctx)
	if err != nil {
		return Result{}, err
	}
	window, err := h.exportWindow(ctx, p)
	if err != nil {
		return Result{}, err
	}
	if window != nil {
		defer func() { _ = window.Close() }()
	}
	if p.direction == ToDPU {
		return h.sendFile(ctx, p, window)
	}
	return h.receiveFile(ctx, p, window)
}

func (h *host) negotiate(ctx context.Context) (plan, error) {
	o := offer{hasFile: h.input != nil}
	if h.input != nil {
		o.size = h.input.size
	}
	if err := h.peer.send(ctx, o); err != nil {
		return plan{}, err
	}
	m, err := h.peer.receive(ctx)
	if err != nil {
		return plan{}, err
	}
	p, ok := m.(plan)
	if !ok {
		return plan{}, h.peer.unexpected(m, "a plan")
	}
	return p, p.validate(h.input)
}

// exportWindow allocates the window and exports it to the DPU, with no more rights than the copy
// needs. It returns nil for an empty file.
func (h *host) exportWindow(ctx context.Context, p plan) (*memory.Region, error) {
	if p.size == 0 {
		return nil, nil
	}
	access := memory.PCIRead
	if p.direction == ToHost {
		access |= memory.PCIWrite
	}
	window, err := memory.Alloc("dma-copy-window", p.window())
	if err != nil {
		return nil, err
	}
	descriptor, err := h.peer.connection.ExportMemory(ctx, window, access)
	if err != nil {
		err = h.peer.explain(err)
	} else {
		err = h.peer.send(ctx, export{address: window.Base(), length: window.Len(),
			descriptor: descriptor})
	}
	if err != nil {
		return nil, errors.Join(err, window.Close())
	}
	return window, nil
}

// sendFile reads the file into the window, for the DPU to copy from.
func (h *host) sendFile(ctx context.Context, p plan, window *memory.Region) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	free := make(chan struct{}, p.slots)
	for range p.slots {
		free <- struct{}{}
	}
	confirmed := make(chan error, 1)
	go func() {
		err := h.awaitReleases(ctx, p, free)
		if err != nil {
			cancel(err)
		}
		confirmed <- err
	}()
	cancelUnlessGone(cancel, h.fill(ctx, p, window, free))
	err := <-confirmed
	return Result{Direction: ToDPU, Bytes: p.size, Checksum: h.input.checksum}, cause(ctx, err)
}

func (h *host) fill(ctx context.Context, p plan, window *memory.Region,
	free <-chan struct{}) error {
	for chunk := range p.chunks() {
		select {
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		slot := window.Bytes()[p.slot(chunk):][:p.length(chunk)]
		if err := h.input.read(slot); err != nil {
			return err
		}
		if err := h.peer.send(ctx, filled{chunk: chunk, length: uint64(len(slot)),
			checksum: h.input.checksum}); err != nil {
			return err
		}
	}
	if err := h.input.unchanged(); err != nil {
		return err
	}
	return h.peer.send(ctx, end{size: p.size, checksum: h.input.checksum})
}

// awaitReleases handles the DPU's messages until it has confirmed the whole file.
func (h *host) awaitReleases(ctx context.Context, p plan, free chan<- struct{}) error {
	next := uint64(0)
	for {
		m, err := h.peer.receive(ctx)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case released:
			if m.chunk != next || next == p.chunks() || len(free) == cap(free) {
				return status.Errorf(status.Unexpected, "the DPU released chunk %d instead of %d",
					m.chunk, next)
			}
			next++
			free <- struct{}{}
			h.config.observe(min(next*p.chunkSize, p.size), p.size)
		case outcome:
			if next != p.chunks() {
				return status.Errorf(status.Unexpected,
					"the DPU reported success after %d of %d chunks", next, p.chunks())
			}
			return nil
		default:
			return h.peer.unexpected(m, "a release or a status")
		}
	}
}

// receiveFile writes to the file what the DPU copies into the window.
func (h *host) receiveFile(ctx context.Context, p plan, window *memory.Region) (Result, error) {
	s, err := newSink(p, h.config)
	if err != nil {
		return Result{}, err
	}
	last, err := h.receiveChunks(ctx, s, window)
	if err = s.finish(last, err); err != nil {
		return Result{}, err
	}
	if err := h.peer.send(ctx, outcome{}); err != nil {
		// The file is complete, which only the DPU does not learn.
		h.config.Logger.Warn("the file is complete, but reporting this to the DPU failed",
			zap.Error(err))
	}
	return Result{Direction: ToHost, Bytes: p.size, Checksum: s.checksum}, nil
}

func (h *host) receiveChunks(ctx context.Context, s *sink, window *memory.Region) (end, error) {
	for {
		m, err := h.peer.receive(ctx)
		if err != nil {
			return end{}, err
		}
		switch m := m.(type) {
		case filled:
			if err := s.expect(m); err != nil {
				return end{}, err
			}
			if err := s.write(m, window.Bytes()[s.plan.slot(m.chunk):][:m.length]); err != nil {
				return end{}, err
			}
			err := h.peer.send(ctx, released{chunk: m.chunk})
			if err != nil && !errors.Is(err, status.ConnectionReset) {
				return end{}, err
			} // the DPU's reason for disconnecting is still to be received
		case end:
			return m, nil
		default:
			return end{}, h.peer.unexpected(m, "a chunk or the end")
		}
	}
}
