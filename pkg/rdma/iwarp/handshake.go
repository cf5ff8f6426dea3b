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

// release ends the bound by the context.
func (h *handshake) release() { h.stop() }

// err prefers the reason that the context ended to the time-out that followed.
func (h *handshake) err(operation string, err error) error {
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
		return mpaFrame{}, h.err("read MPA frame", err)
	}
	length, err := mpaDataLength(b, key)
	if err != nil {
		return mpaFrame{}, err
	}
	b = b[:mpaHeaderBytes+length]
	if _, err := io.ReadFull(h.conn, b[mpaHeaderBytes:]); err != nil {
		return mpaFrame{}, h.err("read MPA data", err)
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
		return h.err("write", err)
	}
	return nil
}

// terminate tells the peer why the stream ends before it has begun. It is
// best effort.
func (h *handshake) terminate(v *violation, useCRC bool) {
	withoutHeaders := *v
	withoutHeaders.headers = noHeaders
	_, _ = h.conn.Write(appendTerminate(nil, &withoutHeaders, nil, useCRC))
	_ = h.conn.CloseWrite()
}

// maxOpeningBytes is the longest FPDU that can open a stream: a Terminate.
const maxOpeningBytes = maxTerminateBytes

// readFPDU reads one FPDU of the opening of a stream. idle is called whenever
// nothing has come for the time it returned last, first for the time delay.
func (h *handshake) readFPDU(useCRC bool, delay time.Duration, idle func() (time.Duration, error)) ([]byte, prefix, *violation, error) {
	b := make([]byte, maxOpeningBytes)
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
			return nil, p, nil, h.err("read first frame", err)
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
