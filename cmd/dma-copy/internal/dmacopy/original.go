// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The messages of the DOCA DMA Copy application (3.3) are C structures of a
// 64-bit little-endian machine with natural alignment: the type is a native
// enumeration, booleans are one byte, other numbers big-endian, padding holds
// anything.
//
//	direction    0 type u32le 1 · 4 file in host u8 · 8 size u64
//	export       0 type u32le 2 · 8 host address u64 · 16 descriptor length u64 · 24 descriptor
//	status       0 type u32le 3 · 4 success u8
//
// The host says whether it has the file; the DPU replies with a direction
// message, whose size is 0 if the host has the file; the host exports a buffer of the file's size;
// the DPU copies and reports the outcome. This side sends zero padding.
type originalMessage interface{ append(b []byte) []byte }

const (
	originalDirection = 1
	originalExport    = 2
	originalStatus    = 3

	originalDirectionSize = 16
	originalExportFixed   = 24
	originalStatusSize    = 8
)

type directionMessage struct {
	fileInHost bool
	fileSize   uint64
}

type exportMessage struct {
	hostAddress uint64
	descriptor  []byte
}

type statusMessage struct{ success bool }

func (m directionMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, originalDirection)
	b = append(b, flag(m.fileInHost), 0, 0, 0)
	return binary.BigEndian.AppendUint64(b, m.fileSize)
}

func (m exportMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, originalExport)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, m.hostAddress)
	b = binary.BigEndian.AppendUint64(b, uint64(len(m.descriptor)))
	return append(b, m.descriptor...)
}

func (m statusMessage) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, originalStatus)
	return append(b, flag(m.success), 0, 0, 0)
}

// parseOriginal reads a message from the peer, which is not trusted.
func parseOriginal(b []byte) (originalMessage, error) {
	if len(b) >= 4 && binary.BigEndian.Uint32(b) == messageMagic {
		return nil, status.Errorf(status.UnsupportedVersion,
			"the peer speaks the messages of dma-copy without --compat: give it to both sides")
	}
	if len(b) < originalStatusSize {
		return nil, status.Errorf(status.InvalidValue, "message of %d bytes is too short", len(b))
	}
	switch kind := binary.LittleEndian.Uint32(b); kind {
	case originalDirection:
		if err := exactly("direction", b, originalDirectionSize); err != nil {
			return nil, err
		}
		return directionMessage{fileInHost: b[4] != 0, fileSize: binary.BigEndian.Uint64(b[8:])},
			nil
	case originalExport:
		return parseOriginalExport(b)
	case originalStatus:
		if err := exactly("status", b, originalStatusSize); err != nil {
			return nil, err
		}
		return statusMessage{success: b[4] != 0}, nil
	default:
		return nil, status.Errorf(status.InvalidValue, "message has unknown type %d", kind)
	}
}

func exactly(name string, b []byte, size int) error {
	if len(b) != size {
		return status.Errorf(status.InvalidValue, "%s message has %d bytes instead of %d", name,
			len(b), size)
	}
	return nil
}

func parseOriginalExport(b []byte) (originalMessage, error) {
	if len(b) <= originalExportFixed || len(b) > originalExportFixed+comch.MaxExportLength {
		return nil, status.Errorf(status.InvalidValue,
			"export message of %d bytes: its descriptor is empty or too long", len(b))
	}
	// The rest of the sender's buffer may follow the descriptor.
	length := binary.BigEndian.Uint64(b[16:])
	if length < 1 || length > uint64(len(b)-originalExportFixed) {
		return nil, status.Errorf(status.InvalidValue,
			"export message announces a descriptor of %d bytes but holds %d", length,
			len(b)-originalExportFixed)
	}
	m := exportMessage{hostAddress: binary.BigEndian.Uint64(b[8:])}
	m.descriptor = append(m.descriptor, b[originalExportFixed:][:length]...)
	return m, nil
}

// sendOriginalFailure reports a failure to a peer that speaks the original's messages, which have
// no room for a reason.
func sendOriginalFailure(p *peer) func(context.Context, error) error {
	return func(ctx context.Context, _ error) error {
		return p.sendBytes(ctx, statusMessage{success: false}.append(nil))
	}
}

// Why a peer may have failed, depending on what it was to do.
const (
	failedToBegin = "does the file exist on both sides, or on neither? The DOCA application on the DPU also rejects a file that is larger than what its device copies at once, usually 2 MiB; dma-copy does not"
	failedToCopy  = "could it not reach the memory of this side, or not write the file?"
	failedToOffer = "could it not read the file, or not allocate memory for it?"
)

// receiveOriginal waits for a message. It returns a failure that the peer reports as an error, with
// likely as its likely reason.
func (p *peer) receiveOriginal(ctx context.Context, likely string) (originalMessage, error) {
	b, err := p.receiveBytes(ctx)
	if err != nil {
		return nil, err
	}
	m, err := parseOriginal(b)
	if err != nil {
		return nil, fmt.Errorf("message from the %s: %w", p.name, err)
	}
	if s, ok := m.(statusMessage); ok && !s.success {
		return nil, &peerError{err: status.Errorf(status.IOFailed,
			"the %s reports a failure. These messages carry no reason, its log has it (%s)", p.name,
			likely)}
	}
	return m, nil
}

func (p *peer) unexpectedOriginal(m originalMessage, want string) error {
	return status.Errorf(status.Unexpected, "the %s sent %T instead of %s", p.name, m, want)
}

// checkOriginalSize fails unless a file of this size can be copied in one piece.
func checkOriginalSize(size uint64) error {
	if size == 0 {
		return status.Errorf(status.NotSupported,
			"the messages of the DOCA application cannot carry an empty file")
	}
	if size > maxOriginalSize {
		return status.Errorf(status.TooBig,
			"the messages of the DOCA application carry files of at most %d bytes, this one has %d: leave out --compat on both sides",
			maxOriginalSize, size)
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
	if h.input == nil {
		return h.receiveOriginalFile(ctx, buffer)
	}
	if err := h.input.read(buffer.Bytes()); err != nil {
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
	own := directionMessage{fileInHost: h.input != nil}
	if h.input != nil {
		own.fileSize = h.input.size
		if err := checkOriginalSize(own.fileSize); err != nil {
			return 0, err
		}
	}
	if err := h.peer.sendBytes(ctx, own.append(nil)); err != nil {
		return 0, err
	}
	m, err := h.peer.receiveOriginal(ctx, failedToBegin)
	if err != nil {
		return 0, err
	}
	reply, ok := m.(directionMessage)
	if !ok {
		return 0, h.peer.unexpectedOriginal(m, "a direction")
	}
	if reply.fileInHost != own.fileInHost {
		return 0, status.Errorf(status.InvalidValue,
			"file on the host: the DPU says %v, but it is %v", reply.fileInHost, own.fileInHost)
	}
	if own.fileInHost {
		return own.fileSize, nil
	}
	return reply.fileSize, checkOriginalSize(reply.fileSize)
}

func (h *host) exportOriginal(ctx context.Context, buffer *memory.Region,
	access memory.Access) error {
	exporter, ok := h.peer.connection.(comch.PlainExporter)
	if !ok {
		return status.Errorf(status.NotSupported,
			"Comch provider %s has no exports that the DOCA application can import: leave out --compat on both sides",
			h.config.Comch.Name())
	}
	descriptor, err := exporter.ExportPlain(ctx, buffer, access)
	if err != nil {
		return h.peer.explain(err)
	}
	return h.peer.sendBytes(ctx, exportMessage{hostAddress: buffer.Base(),
		descriptor: descriptor}.append(nil))
}

func (h *host) awaitSuccess(ctx context.Context) error {
	m, err := h.peer.receiveOriginal(ctx, failedToCopy)
	if err != nil {
		return err
	}
	if _, ok := m.(statusMessage); !ok {
		return h.peer.unexpectedOriginal(m, "a status")
	}
	return nil
}

// receiveOriginalFile writes the file once the DPU has copied all of it.
func (h *host) receiveOriginalFile(ctx context.Context, buffer *memory.Region) (Result, error) {
	err := h.exportOriginal(ctx, buffer, memory.PCIRead|memory.PCIWrite)
	if err == nil {
		err = h.awaitSuccess(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	return Result{Direction: ToHost, Bytes: buffer.Len()}, writeWhole(h.config, buffer.Bytes())
}

// writeWhole writes a file whose content is in memory.
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
	p := plan{direction: direction, size: size,
		chunkSize: min(size, d.device.Capabilities().MaxBufferSize)}
	p.slots = uint32(p.chunks()) // the whole file is in the buffer
	m, err := startMover(d.device, buffer, access, p, d.config.Slots, d.config.Policy)
	if err != nil {
		return Result{}, d.explainSetUp(err, buffer)
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
	m, err := d.peer.receiveOriginal(ctx, failedToOffer)
	if err != nil {
		return 0, 0, err
	}
	asked, ok := m.(directionMessage)
	if !ok {
		return 0, 0, d.peer.unexpectedOriginal(m, "a direction")
	}
	direction, err := choose(asked.fileInHost, d.input != nil)
	if err != nil {
		return 0, 0, err
	}
	size, reply := asked.fileSize, directionMessage{fileInHost: true}
	if direction == ToHost {
		size = d.input.size
		reply = directionMessage{fileSize: size}
	}
	if err := checkOriginalSize(size); err != nil {
		return 0, 0, err
	}
	return direction, size, d.peer.sendBytes(ctx, reply.append(nil))
}

func (d *dpu) importOriginal(ctx context.Context,
	size uint64) (*memory.Region, memory.Access, error) {
	m, err := d.peer.receiveOriginal(ctx, failedToOffer)
	if err != nil {
		return nil, 0, err
	}
	e, ok := m.(exportMessage)
	if !ok {
		return nil, 0, d.peer.unexpectedOriginal(m, "an export descriptor")
	}
	buffer, access, err := d.peer.connection.ImportMemory(e.descriptor)
	if err != nil {
		return nil, 0, fmt.Errorf("import the host's memory: %w", d.peer.explain(err))
	}
	if buffer.Len() < size || e.hostAddress != buffer.Base() {
		err := status.Errorf(status.InvalidValue,
			"the host exported %d bytes at %#x and announced %#x, but the file has %d bytes",
			buffer.Len(), buffer.Base(), e.hostAddress, size)
		return nil, 0, errors.Join(err, buffer.Close())
	}
	return buffer, access, nil
}

// explainSetUp adds why DMA could not be set up, if that is the memory of the host.
func (d *dpu) explainSetUp(err error, buffer *memory.Region) error {
	if buffer.Mapped() || !buffer.Copyable() || !errors.Is(err, status.NotSupported) {
		return err
	}
	return fmt.Errorf("%w: DMA provider %s cannot reach memory of the host that does not consist of whole pages: use --dma-provider software on the DPU",
		err, d.config.DMA.Name())
}

// moveOriginal copies the whole file with as many jobs as the device needs.
func (d *dpu) moveOriginal(ctx context.Context, p plan, m *mover) error {
	if p.direction == ToHost {
		if err := d.input.read(m.local[:p.size]); err != nil {
			return err
		}
		if err := d.input.unchanged(); err != nil {
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
		d.config.Logger.Warn("the copy is complete, but the host has not disconnected")
	}
	return nil
}
