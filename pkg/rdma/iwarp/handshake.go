// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// handshake is a TCP connection during connection setup, before the data path takes it over. It
// reads no more bytes than it needs, because later ones belong to the data path.
type handshake struct {
	ctx  context.Context
	conn network.Stream
	stop func() bool // ends the effect of ctx on conn; must be called
}

// newHandshake returns a handshake whose reads and writes fail once ctx ends.
func newHandshake(ctx context.Context, conn network.Stream) *handshake {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	longAgo := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(longAgo) })
	return &handshake{ctx: ctx, conn: conn, stop: stop}
}

// wrapError adds the operation to err. If the context has ended, wrapError reports its cause
// instead of the timeout that it provoked.
func (h *handshake) wrapError(operation string, err error) error {
	if cause := context.Cause(h.ctx); cause != nil {
		return status.Errorf(status.CodeOf(cause), "%s: %w", operation, cause)
	}
	code := status.CodeOf(err)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		code = status.ConnectionReset
	}
	return status.Errorf(code, "%s: %w", operation, err)
}

// readMPA reads a Request or a Reply, depending on key.
func (h *handshake) readMPA(key string) (mpaFrame, error) {
	b := make([]byte, mpaHeaderBytes, mpaHeaderBytes+maxMPAData)
	if _, err := io.ReadFull(h.conn, b); err != nil {
		return mpaFrame{}, h.wrapError("read MPA frame", err)
	}
	length, err := mpaDataLength(b, key)
	if err != nil {
		return mpaFrame{}, err
	}
	b = b[:mpaHeaderBytes+length]
	if _, err := io.ReadFull(h.conn, b[mpaHeaderBytes:]); err != nil {
		return mpaFrame{}, h.wrapError("read MPA data", err)
	}
	frame, err := parseMPA(b)
	if err == nil {
		err = checkPrivateData(len(frame.privateData), rdma.MaxPrivateData)
	}
	return frame, err
}

// write sends whole frames with one system call.
func (h *handshake) write(frame []byte) error {
	if _, err := h.conn.Write(frame); err != nil {
		return h.wrapError("write handshake frame", err)
	}
	return nil
}

// emptySTag is the STag in the first frames of a stream. They have no payload, so the STag refers
// to no memory.
const emptySTag = registration.ReservedKeys

// A peer that does not respond to the probe is nudged after firstNudge, and again after intervals
// that double up to lastNudge.
const (
	firstNudge = 10 * time.Millisecond
	lastNudge  = 320 * time.Millisecond
)

// appendZeroWrite appends a zero-length Write.
func appendZeroWrite(b []byte, useCRC bool) []byte {
	start := len(b)
	b = taggedHeader{op: opWrite, last: true, stag: emptySTag}.append(b, 0)
	return append(b[:start], appendTrailer(b[start:], useCRC)...)
}

// appendZeroRead appends a Read Request for zero bytes, with sequence number 1.
func appendZeroRead(b []byte, useCRC bool) []byte {
	start := len(b)
	b = readRequest{sinkSTag: emptySTag, sourceSTag: emptySTag}.append(b, 1)
	return append(b[:start], appendTrailer(b[start:], useCRC)...)
}

// startStream sends the initiator's first frames and waits until the peer has processed them. It
// reports whether they included a Read Request, the probe.
//
// The wait is needed for peers like Linux siw. siw sends its Reply before it hands the socket to
// the code that receives FPDUs, and data that arrives in between goes unnoticed until more data
// arrives. A message sent at that time would be stuck, and so would a protocol that waits for the
// response to it. So the stream starts with a zero-length Read, to which RDMAP responds without
// involving the application. Until the response arrives, the initiator nudges the peer with
// zero-length Writes, any number of which the receiver has to ignore (RFC 5041 section 5.2). The
// response proves that the peer is receiving, so that the caller's first message cannot get stuck.
func (h *handshake) startStream(a agreement) (probed bool, err error) {
	var frames []byte
	if a.rtr == rtrWrite {
		frames = appendZeroWrite(frames, a.useCRC)
	}
	probed = a.rtr == rtrRead || a.outboundReads > 0
	if probed {
		frames = appendZeroRead(frames, a.useCRC)
	}
	if len(frames) > 0 {
		if err := h.write(frames); err != nil {
			return probed, err
		}
	}
	if !probed {
		return false, nil
	}
	return true, h.awaitProbe(a.useCRC)
}

// awaitProbe waits for the response to the probe and nudges the peer in the meantime.
func (h *handshake) awaitProbe(useCRC bool) error {
	next := firstNudge
	nudge := func() (time.Duration, error) {
		next = min(2*next, lastNudge)
		return next, h.write(appendZeroWrite(nil, useCRC))
	}
	frame, p, v, err := h.readFPDU(useCRC, firstNudge, nudge)
	switch {
	case err != nil:
		return err
	case v == nil && p.op == opTerminate:
		e := parseTerminate(frame)
		return status.Errorf(e.status(), "%w", &e)
	case v == nil && (p.op != opReadResponse || p.payload() != 0 || !p.last):
		v = violationReadyToReceive
	case v == nil && parseTagged(p, frame).stag != emptySTag:
		v = violationResponseSTag
	}
	if v == nil {
		return nil
	}
	h.terminate(v, useCRC)
	return v.err()
}

// awaitFirstFrame waits, on the responder's side, for the agreed ready-to-receive frame, and
// responds to it if it is a Read.
func (h *handshake) awaitFirstFrame(a agreement) error {
	frame, p, v, err := h.readFPDU(a.useCRC, 0, nil)
	if err != nil {
		return err
	}
	if v == nil {
		v = a.checkFirstFrame(p, frame)
	}
	if v != nil {
		h.terminate(v, a.useCRC)
		return v.err()
	}
	if a.rtr == rtrWrite {
		return nil
	}
	request := parseReadRequest(frame)
	response := taggedHeader{
		op: opReadResponse, last: true, stag: request.sinkSTag, offset: request.sinkOffset,
	}
	return h.write(appendTrailer(response.append(nil, 0), a.useCRC))
}

// checkFirstFrame checks that a frame is the agreed ready-to-receive frame.
func (a agreement) checkFirstFrame(p prefix, frame []byte) *violation {
	if a.rtr == rtrWrite {
		if p.op != opWrite || p.payload() != 0 || !p.last {
			return violationReadyToReceive
		}
		return nil
	}
	if p.op != opReadRequest || p.payload() != 0 || !p.last || parseReadRequest(frame).length != 0 {
		return violationReadyToReceive
	}
	h := parseUntagged(p, frame)
	if h.queue != queueReadRequest || h.sequence != 1 || h.offset != 0 {
		return violationReadyToReceive
	}
	return nil
}

// maxFirstFrameBytes is the length of the longest FPDU that can start a stream, a Terminate.
const maxFirstFrameBytes = maxTerminateBytes

// readFPDU reads one of the first FPDUs of a stream. Whenever nothing arrives within delay, it
// calls idle, which returns the next delay.
func (h *handshake) readFPDU(
	useCRC bool, delay time.Duration, idle func() (time.Duration, error),
) ([]byte, prefix, *violation, error) {
	b := make([]byte, maxFirstFrameBytes)
	have, need := 0, prefixBytes
	for {
		n, err := h.readSome(b[have:need], delay)
		have += n
		if errors.Is(err, os.ErrDeadlineExceeded) && h.ctx.Err() == nil && idle != nil {
			if delay, err = idle(); err != nil {
				return nil, prefix{}, nil, err
			}
			continue
		}
		if err != nil {
			return nil, prefix{}, nil, h.wrapError("read first frame", err)
		}
		if have < need {
			continue
		}
		if need == prefixBytes {
			if need = fpduBytes(b); need > len(b) {
				return nil, prefix{}, violationReadyToReceive, nil
			}
			continue
		}
		if useCRC && !validCRC(b[:need]) {
			return nil, prefix{}, violationCRC, nil
		}
		p, v := parsePrefix(b)
		return b[:need], p, v, nil
	}
}

// readSome reads at most len(b) bytes. A positive delay bounds the wait.
func (h *handshake) readSome(b []byte, delay time.Duration) (int, error) {
	if delay > 0 {
		deadline := time.Now().Add(delay)
		if end, ok := h.ctx.Deadline(); ok && end.Before(deadline) {
			deadline = end
		}
		_ = h.conn.SetReadDeadline(deadline)
		// If the context has just ended, the line above has undone its effect on the deadline.
		if err := h.ctx.Err(); err != nil {
			return 0, err
		}
	}
	return h.conn.Read(b)
}

// terminate tries to send the peer a Terminate with the reason why the stream ends before it has
// begun.
func (h *handshake) terminate(v *violation, useCRC bool) {
	withoutHeaders := *v
	withoutHeaders.headers = noHeaders
	_, _ = h.conn.Write(appendTerminate(nil, &withoutHeaders, nil, useCRC))
	_ = h.conn.CloseWrite()
}

// newParameters limits the read depths agreed on the wire to those that the caller offered.
func newParameters(
	conn network.Stream, privateData []byte, a agreement, config *rdma.ConnectionConfig,
) rdma.Parameters {
	return rdma.Parameters{
		Transport:     ProviderName,
		Local:         network.AddressOf(conn.LocalAddr()),
		Remote:        network.AddressOf(conn.RemoteAddr()),
		PrivateData:   privateData,
		InboundReads:  min(a.inboundReads, config.InboundReads),
		OutboundReads: min(a.outboundReads, config.OutboundReads),
		Protection:    protectionOf(conn),
	}
}

// wireDepth returns the read depth to offer to peers. It is at least one, because the stream starts
// with a Read, and because siw cannot handle zero.
func wireDepth(reads int) int { return max(reads, 1) }
