package iwarp

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// openingSTag stands in the frames that open a stream. They have no bytes, so
// no memory is meant.
const openingSTag = reservedSTags

// A peer that has not answered the probe is nudged after firstNudge, then
// ever more slowly.
const (
	firstNudge = 10 * time.Millisecond
	lastNudge  = 320 * time.Millisecond
)

func appendZeroWrite(b []byte, useCRC bool) []byte {
	start := len(b)
	b = taggedHeader{op: opWrite, last: true, stag: openingSTag}.append(b, 0)
	return append(b[:start], appendTrailer(b[start:], useCRC)...)
}

func appendZeroRead(b []byte, useCRC bool) []byte {
	start := len(b)
	b = readRequest{sinkSTag: openingSTag, sourceSTag: openingSTag}.append(b, 1)
	return append(b[:start], appendTrailer(b[start:], useCRC)...)
}

// openStream sends the initiator's first frames and waits until the peer has
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
func (h *handshake) openStream(a agreement) (probed bool, err error) {
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
	case v == nil && parseTagged(p, frame).stag != openingSTag:
		v = violationResponseSTag
	}
	if v == nil {
		return nil
	}
	h.terminate(v, useCRC)
	return v.err()
}

// awaitOpening is the responder's side: it waits for the agreed
// ready-to-receive frame and answers it.
func (h *handshake) awaitOpening(a agreement) error {
	frame, p, v, err := h.readFPDU(a.useCRC, 0, nil)
	if err != nil {
		return err
	}
	if v == nil {
		v = a.checkOpening(p, frame)
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

func (a agreement) checkOpening(p prefix, frame []byte) *violation {
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
