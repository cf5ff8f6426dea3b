package dmacopy

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// originalFarewell tells a peer that speaks the original's messages that the
// copy has failed; they have no room for the reason.
func originalFarewell(p *peer) func(context.Context, error) error {
	return func(ctx context.Context, _ error) error {
		return p.sendBytes(ctx, statusMessage{success: false}.append(nil))
	}
}

// receiveOriginal waits for a message. A status that is no success is an error.
func (p *peer) receiveOriginal(ctx context.Context) (originalMessage, error) {
	b, err := p.receiveBytes(ctx)
	if err != nil {
		return nil, err
	}
	m, err := parseOriginal(b)
	if err != nil {
		return nil, fmt.Errorf("message of the %s: %w", p.name, err)
	}
	if s, ok := m.(statusMessage); ok && !s.success {
		return nil, &peerError{err: status.Errorf(status.IOFailed, "the %s reports a failure: these messages carry no reason, look at its log (do both sides, or neither, have the file?)", p.name)}
	}
	return m, nil
}

func (p *peer) unexpectedOriginal(m originalMessage, want string) error {
	return status.Errorf(status.Unexpected, "the %s sent %T, expected was %s", p.name, m, want)
}

// checkOriginalSize fails unless a file can be copied in one piece.
func checkOriginalSize(size uint64) error {
	if size == 0 {
		return status.Errorf(status.NotSupported, "the original's messages cannot carry an empty file")
	}
	if size > maxOriginalSize {
		return status.Errorf(status.TooBig, "the original's messages carry files of at most %d bytes, not %d: leave --compat out on both sides", maxOriginalSize, size)
	}
	return nil
}

func (h *host) copyOriginal(ctx context.Context) (Result, error) {
	size, err := h.negotiateOriginal(ctx)
	if err != nil {
		return Result{}, err
	}
	buffer, err := memory.Alloc("dma-copy-file", size)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = buffer.Close() }()
	if h.own == nil {
		return h.takeOriginal(ctx, buffer)
	}
	if err := h.own.read(buffer.Bytes()); err != nil {
		return Result{}, err
	}
	if err := h.exportOriginal(ctx, buffer, memory.PCIRead); err != nil {
		return Result{}, err
	}
	if err := h.awaitSuccess(ctx); err != nil {
		return Result{}, err
	}
	h.config.observe(size, size)
	return Result{Direction: ToDPU, Bytes: size}, nil
}

func (h *host) negotiateOriginal(ctx context.Context) (size uint64, err error) {
	own := directionMessage{fileInHost: h.own != nil}
	if h.own != nil {
		own.fileSize = h.own.size
		if err := checkOriginalSize(own.fileSize); err != nil {
			return 0, err
		}
	}
	if err := h.peer.sendBytes(ctx, own.append(nil)); err != nil {
		return 0, err
	}
	m, err := h.peer.receiveOriginal(ctx)
	if err != nil {
		return 0, err
	}
	answer, ok := m.(directionMessage)
	if !ok {
		return 0, h.peer.unexpectedOriginal(m, "a direction")
	}
	if answer.fileInHost != own.fileInHost {
		return 0, status.Errorf(status.InvalidValue, "the DPU says that the file is on the host: %v; it is: %v", answer.fileInHost, own.fileInHost)
	}
	if own.fileInHost {
		return own.fileSize, nil
	}
	return answer.fileSize, checkOriginalSize(answer.fileSize)
}

func (h *host) exportOriginal(ctx context.Context, buffer *memory.Region, access memory.Access) error {
	descriptor, err := h.peer.connection.ExportMemory(ctx, buffer, access)
	if err != nil {
		return err
	}
	return h.peer.sendBytes(ctx, exportMessage{hostAddress: buffer.Base(), descriptor: descriptor}.append(nil))
}

func (h *host) awaitSuccess(ctx context.Context) error {
	m, err := h.peer.receiveOriginal(ctx)
	if err != nil {
		return err
	}
	if _, ok := m.(statusMessage); !ok {
		return h.peer.unexpectedOriginal(m, "a status")
	}
	return nil
}

// takeOriginal writes the file when the DPU has copied all of it.
func (h *host) takeOriginal(ctx context.Context, buffer *memory.Region) (Result, error) {
	err := h.exportOriginal(ctx, buffer, memory.PCIRead|memory.PCIWrite)
	if err == nil {
		err = h.awaitSuccess(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	return Result{Direction: ToHost, Bytes: buffer.Len()}, writeWhole(h.config, buffer.Bytes())
}

// writeWhole writes a file that is in memory.
func writeWhole(config *Config, content []byte) error {
	size := uint64(len(content))
	s, err := newSink(plan{size: size, chunkSize: max(size, 1), slots: 1}, config)
	if err != nil {
		return err
	}
	_, err = s.file.Sink().Write(content)
	if err = s.file.Finish(err); err != nil {
		return errors.Join(status.Errorf(status.IOFailed, "write file"), err)
	}
	config.observe(size, size)
	return nil
}
