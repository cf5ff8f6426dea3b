package dmacopy

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (d *dpu) copyOriginal(ctx context.Context) (Result, error) {
	direction, size, err := d.negotiateOriginal(ctx)
	if err != nil {
		return Result{}, err
	}
	buffer, access, err := d.importOriginal(ctx, size)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = buffer.Close() }()
	p := plan{direction: direction, size: size, chunkSize: min(size, d.device.Capabilities().MaxBufferSize)}
	p.slots = uint32(p.chunks()) // the whole file is in the buffer
	m, err := startMover(d.device, buffer, access, p, d.config.Slots, d.config.Policy)
	if err != nil {
		return Result{}, err
	}
	err = d.moveOriginal(ctx, p, m)
	if err = errors.Join(err, m.stop()); err != nil {
		return Result{}, err
	}
	if direction == ToDPU {
		if err := writeWhole(d.config, m.local[:size]); err != nil {
			return Result{}, err
		}
	}
	if err := d.peer.sendBytes(ctx, statusMessage{success: true}.append(nil)); err != nil {
		return Result{}, err
	}
	return Result{Direction: direction, Bytes: size}, d.awaitDeparture(ctx)
}

func (d *dpu) negotiateOriginal(ctx context.Context) (Direction, uint64, error) {
	m, err := d.peer.receiveOriginal(ctx)
	if err != nil {
		return 0, 0, err
	}
	asked, ok := m.(directionMessage)
	if !ok {
		return 0, 0, d.peer.unexpectedOriginal(m, "a direction")
	}
	direction, err := choose(asked.fileInHost, d.own != nil)
	if err != nil {
		return 0, 0, err
	}
	size, answer := asked.fileSize, directionMessage{fileInHost: true}
	if direction == ToHost {
		size = d.own.size
		answer = directionMessage{fileSize: size}
	}
	if err := checkOriginalSize(size); err != nil {
		return 0, 0, err
	}
	return direction, size, d.peer.sendBytes(ctx, answer.append(nil))
}

func (d *dpu) importOriginal(ctx context.Context, size uint64) (*memory.Region, memory.Access, error) {
	m, err := d.peer.receiveOriginal(ctx)
	if err != nil {
		return nil, 0, err
	}
	e, ok := m.(exportMessage)
	if !ok {
		return nil, 0, d.peer.unexpectedOriginal(m, "an export descriptor")
	}
	buffer, access, err := d.peer.connection.ImportMemory(e.descriptor)
	if err != nil {
		return nil, 0, fmt.Errorf("import the host's memory: %w", err)
	}
	if buffer.Len() < size || e.hostAddress != buffer.Base() {
		err := status.Errorf(status.InvalidValue, "the host exported %d bytes at %#x and says %#x, the file has %d", buffer.Len(), buffer.Base(), e.hostAddress, size)
		return nil, 0, errors.Join(err, buffer.Close())
	}
	return buffer, access, nil
}

// moveOriginal copies the whole file, in as many jobs as the device needs.
func (d *dpu) moveOriginal(ctx context.Context, p plan, m *mover) error {
	if p.direction == ToHost {
		if err := d.own.read(m.local[:p.size]); err != nil {
			return err
		}
		if err := d.own.unchanged(); err != nil {
			return err
		}
	}
	inFlight := min(uint64(d.config.Slots), p.chunks())
	for chunk := range inFlight {
		m.submit(filled{chunk: chunk, length: p.length(chunk)})
	}
	for chunk := range p.chunks() {
		if _, err := m.next(ctx); err != nil {
			return err
		}
		if next := chunk + inFlight; next < p.chunks() {
			m.submit(filled{chunk: next, length: p.length(next)})
		}
	}
	return nil
}

// awaitDeparture waits until the host has disconnected, as the original does.
func (d *dpu) awaitDeparture(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.config.Timeout)
	defer cancel()
	select {
	case <-d.peer.connection.Done():
	case <-ctx.Done():
		d.config.Logger.Warn("the copy is complete, but the host does not disconnect")
	}
	return nil
}
