package iwarp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// handshake is a TCP connection before it is a stream of FPDUs. It reads no
// byte more than it needs: those belong to the stream.
type handshake struct {
	ctx  context.Context
	conn *net.TCPConn
	stop func() bool
}

// newHandshake bounds all waiting on conn by ctx.
func newHandshake(ctx context.Context, conn *net.TCPConn) *handshake {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	longAgo := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(longAgo) })
	return &handshake{ctx: ctx, conn: conn, stop: stop}
}

// wrapError prefers the reason that the context ended to the time-out that followed.
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

// readMPA reads a Request or a Reply.
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

// write sends a frame in one piece.
func (h *handshake) write(frame []byte) error {
	if _, err := h.conn.Write(frame); err != nil {
		return h.wrapError("write", err)
	}
	return nil
}

// emptySTag stands in the frames that open a stream. They have no bytes, so
// no memory is meant.
const emptySTag = reservedSTags

// A peer that has not answered the probe is nudged after firstNudge, then
// ever more slowly.
const (
	firstNudge = 10 * time.Millisecond
	lastNudge  = 320 * time.Millisecond
)

func appendZeroWrite(b []byte, useCRC bool) []byte {
	start := len(b)
	b = taggedHeader{op: opWrite, last: true, stag: emptySTag}.append(b, 0)
	return append(b[:start], appendTrailer(b[start:], useCRC)...)
}

func appendZeroRead(b []byte, useCRC bool) []byte {
	start := len(b)
	b = readRequest{sinkSTag: emptySTag, sourceSTag: emptySTag}.append(b, 1)
	return append(b[:start], appendTrailer(b[start:], useCRC)...)
}

// startStream sends the initiator's first frames and waits until the peer has
// processed them. It reports whether a Read Request was among them.
//
// The wait is for a peer like Linux siw: it sends its Reply before it hands
// the socket to the code that receives FPDUs, and what arrives in between
// lies unnoticed until more data comes. A message sent then would be stuck,
// and with it a protocol whose next step is the answer to that message. So
// the stream opens with a Read of no bytes, which RDMAP has answered by the
// receiving code itself, without its user. Until the answer is here, further
// bytes arouse the peer: Writes of no bytes, which the receiver has to ignore
// (RFC 5041 section 5.2) however many come. When the answer is here the peer
// listens, and the caller's first message cannot get stuck.
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

// awaitFirstFrame is the responder's side: it waits for the agreed
// ready-to-receive frame and answers it.
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
	answer := taggedHeader{op: opReadResponse, last: true, stag: request.sinkSTag, offset: request.sinkOffset}
	return h.write(appendTrailer(answer.append(nil, 0), a.useCRC))
}

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
	if h := parseUntagged(p, frame); h.queue != queueReadRequest || h.sequence != 1 || h.offset != 0 {
		return violationReadyToReceive
	}
	return nil
}

// maxFirstFrameBytes is the longest FPDU that can open a stream: a Terminate.
const maxFirstFrameBytes = maxTerminateBytes

// readFPDU reads one FPDU of the opening of a stream. idle is called whenever
// nothing has come for the time it returned last, first for the time delay.
func (h *handshake) readFPDU(useCRC bool, delay time.Duration, idle func() (time.Duration, error)) ([]byte, prefix, *violation, error) {
	b := make([]byte, maxFirstFrameBytes)
	have, need := 0, prefixBytes
	var p prefix
	for {
		n, err := h.readSome(b[have:need], delay)
		have += n
		if errors.Is(err, os.ErrDeadlineExceeded) && h.ctx.Err() == nil && idle != nil {
			if delay, err = idle(); err != nil {
				return nil, p, nil, err
			}
			continue
		}
		if err != nil {
			return nil, p, nil, h.wrapError("read first frame", err)
		}
		if have < need {
			continue
		}
		if need == prefixBytes {
			var v *violation
			if p, v = parsePrefix(b); v != nil {
				return nil, p, v, nil
			}
			if need = lengthBytes + p.ulpdu + padLength(p.ulpdu) + crcBytes; need > len(b) {
				return nil, p, violationReadyToReceive, nil
			}
			continue
		}
		if useCRC && !validCRC(b[:need]) {
			return nil, p, violationCRC, nil
		}
		return b[:need], p, nil, nil
	}
}

func (h *handshake) readSome(b []byte, delay time.Duration) (int, error) {
	if delay > 0 {
		deadline := time.Now().Add(delay)
		if end, ok := h.ctx.Deadline(); ok && end.Before(deadline) {
			deadline = end
		}
		_ = h.conn.SetReadDeadline(deadline)
		// The context may have ended before the line above undid its effect.
		if err := h.ctx.Err(); err != nil {
			return 0, err
		}
	}
	return h.conn.Read(b)
}

// terminate tells the peer why the stream ends before it has begun. It is
// best effort.
func (h *handshake) terminate(v *violation, useCRC bool) {
	withoutHeaders := *v
	withoutHeaders.headers = noHeaders
	_, _ = h.conn.Write(appendTerminate(nil, &withoutHeaders, nil, useCRC))
	_ = h.conn.CloseWrite()
}
