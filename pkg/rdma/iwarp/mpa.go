// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"encoding/binary"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// The connection request and its reply (RFC 5044 section 7.1).
const (
	mpaRequestKey = "MPA ID Req Frame"
	mpaReplyKey   = "MPA ID Rep Frame"

	mpaHeaderBytes = 20
	// maxMPAData bounds the data after the header. RFC 5044 allows 512 bytes, but Linux siw, the
	// most likely peer, accepts no more than this.
	maxMPAData = 256

	mpaMarkers  = 0x80
	mpaCRC      = 0x40
	mpaReject   = 0x20
	mpaEnhanced = 0x10

	mpaRevision1 = 1 // RFC 5044
	mpaRevision2 = 2 // RFC 6581, with enhanced data
)

// The enhanced data of RFC 6581 section 9: two 16-bit words that precede the private data.
const (
	enhancedBytes = 4
	depthMask     = 0x3fff
	// depthByUpperLayer is the read depth of a peer that leaves its negotiation to the upper layer.
	depthByUpperLayer = 0x3fff

	inboundPeerToPeer = 0x8000
	inboundRTRFPDU    = 0x4000
	outboundRTRWrite  = 0x8000
	outboundRTRRead   = 0x4000
)

// mpaFrame is a Request or a Reply.
type mpaFrame struct {
	revision uint8
	markers  bool // the sender wants to receive markers
	crc      bool
	reject   bool
	enhanced bool // the fields of RFC 6581 are present
	// peerToPeer announces that the initiator's first frame is a ready-to-receive frame. The next
	// three are the kinds that a Request offers or a Reply chooses.
	peerToPeer    bool
	rtrFPDU       bool
	rtrWrite      bool
	rtrRead       bool
	inboundReads  uint16 // IRD
	outboundReads uint16 // ORD
	privateData   []byte
}

// append appends the key and the frame. The result must be sent by one system call, because siw
// drops a frame that arrives in pieces.
func (f *mpaFrame) append(b []byte, key string) []byte {
	length := len(f.privateData)
	if f.enhanced {
		length += enhancedBytes
	}
	b = append(b, key...)
	b = append(b, f.flags(), f.revision)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	if f.enhanced {
		inbound, outbound := f.enhancedWords()
		b = binary.BigEndian.AppendUint16(b, inbound)
		b = binary.BigEndian.AppendUint16(b, outbound)
	}
	return append(b, f.privateData...)
}

func (f *mpaFrame) flags() byte {
	return bit[byte](f.markers, mpaMarkers) | bit[byte](f.crc, mpaCRC) |
		bit[byte](f.reject, mpaReject) | bit[byte](f.enhanced, mpaEnhanced)
}

func (f *mpaFrame) enhancedWords() (inbound, outbound uint16) {
	inbound = f.inboundReads&depthMask |
		bit[uint16](f.peerToPeer, inboundPeerToPeer) | bit[uint16](f.rtrFPDU, inboundRTRFPDU)
	outbound = f.outboundReads&depthMask |
		bit[uint16](f.rtrWrite, outboundRTRWrite) | bit[uint16](f.rtrRead, outboundRTRRead)
	return inbound, outbound
}

func bit[T byte | uint16](set bool, value T) T {
	if set {
		return value
	}
	return 0
}

// mpaDataLength checks the fixed part of a frame and returns the number of bytes that follow it.
func mpaDataLength(b []byte, key string) (int, error) {
	if string(b[:len(key)]) != key {
		return 0, status.Errorf(status.Unexpected,
			"MPA frame begins with %q instead of %q: the peer does not speak iWARP",
			b[:len(key)], key)
	}
	length := int(binary.BigEndian.Uint16(b[18:]))
	if length > maxMPAData {
		return 0, status.Errorf(status.TooBig,
			"MPA frame announces %d bytes of data, more than the maximum of %d", length, maxMPAData)
	}
	return length, nil
}

// parseMPA decodes a whole frame whose fixed part mpaDataLength has accepted. The private data
// aliases b.
func parseMPA(b []byte) (mpaFrame, error) {
	flags, data := b[16], b[mpaHeaderBytes:]
	f := mpaFrame{
		revision: b[17],
		markers:  flags&mpaMarkers != 0, crc: flags&mpaCRC != 0,
		reject: flags&mpaReject != 0, enhanced: flags&mpaEnhanced != 0,
		privateData: data,
	}
	if f.revision != mpaRevision1 && f.revision != mpaRevision2 {
		return f, status.Errorf(status.UnsupportedVersion,
			"MPA revision %d is not supported, only %d and %d",
			f.revision, mpaRevision1, mpaRevision2)
	}
	if !f.enhanced {
		return f, nil
	}
	if f.revision != mpaRevision2 {
		return f, status.Errorf(status.Unexpected,
			"MPA frame of revision %d has enhanced data", f.revision)
	}
	if len(data) < enhancedBytes {
		return f, status.Errorf(status.Unexpected,
			"MPA frame has %d bytes of data, but enhanced data takes %d", len(data), enhancedBytes)
	}
	inbound, outbound := binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:])
	f.peerToPeer, f.rtrFPDU = inbound&inboundPeerToPeer != 0, inbound&inboundRTRFPDU != 0
	f.rtrWrite, f.rtrRead = outbound&outboundRTRWrite != 0, outbound&outboundRTRRead != 0
	f.inboundReads, f.outboundReads = inbound&depthMask, outbound&depthMask
	f.privateData = data[enhancedBytes:]
	return f, nil
}

// checkPrivateData rejects more private data than limit allows.
func checkPrivateData(length, limit int) error {
	if length > limit {
		return status.Errorf(status.TooBig,
			"private data of %d bytes exceeds the maximum of %d", length, limit)
	}
	return nil
}

// agreement holds the parameters that both sides agreed on in the handshake.
type agreement struct {
	useCRC        bool
	inboundReads  int
	outboundReads int
	rtr           readyToReceive // the initiator's first frame
}

// readyToReceive is a kind of first frame (RFC 6581 section 7). Its only effect is that the
// responder may send from then on.
type readyToReceive uint8

const (
	rtrNone readyToReceive = iota
	rtrWrite
	rtrRead
)

// maxReadDepth is the largest read depth that this endpoint offers. siw accepts no more.
const maxReadDepth = 128

// newRequest returns an initiator's Request.
//
// It offers only the zero-length Read as ready-to-receive frame. Unlike a Write, a Read has a
// response, which proves that the peer has begun to process the stream.
func newRequest(useCRC bool, inboundReads, outboundReads int, privateData []byte) mpaFrame {
	return mpaFrame{
		revision: mpaRevision2, crc: useCRC, enhanced: true,
		peerToPeer: true, rtrRead: true,
		inboundReads: uint16(inboundReads), outboundReads: uint16(outboundReads),
		privateData: privateData,
	}
}

// acceptReply checks a Reply on the initiator's side and returns the agreement, or an error and the
// violation to report to the responder.
func acceptReply(request, reply *mpaFrame) (agreement, *violation, error) {
	if reply.markers {
		return agreement{}, violationReply, status.Errorf(status.NotSupported,
			"peer requires MPA markers, which are not supported")
	}
	if !reply.enhanced {
		return agreement{}, violationReply, status.Errorf(status.UnsupportedVersion,
			"peer replied with MPA revision %d without enhanced data; "+
				"revision 2 (RFC 6581) is required", reply.revision)
	}
	outbound := int(request.outboundReads)
	if reply.inboundReads != depthByUpperLayer {
		outbound = min(outbound, int(reply.inboundReads))
	}
	inbound := request.inboundReads
	if reply.outboundReads != depthByUpperLayer && reply.outboundReads > inbound {
		return agreement{}, violationReadDepth, status.Errorf(status.Unexpected,
			"peer wants %d outstanding Reads, but only %d were offered",
			reply.outboundReads, inbound)
	}
	a := agreement{
		useCRC: request.crc || reply.crc, inboundReads: int(inbound), outboundReads: outbound,
	}
	switch {
	case !reply.peerToPeer:
	case reply.rtrRead:
		a.rtr = rtrRead
	case reply.rtrWrite:
		a.rtr = rtrWrite
	default:
		return agreement{}, violationReadyToReceive, status.Errorf(status.Unexpected,
			"peer chose no known ready-to-receive frame")
	}
	return a, nil, nil
}

// checkRequest returns an error if the responder must reject the request without asking the
// application.
func checkRequest(request *mpaFrame) error {
	if request.reject {
		return status.Errorf(status.Unexpected, "MPA request has the reject flag")
	}
	if request.markers {
		return status.Errorf(status.NotSupported,
			"peer requires MPA markers, which are not supported")
	}
	if request.peerToPeer && !request.rtrWrite && !request.rtrRead {
		return status.Errorf(status.NotSupported,
			"peer offers neither Write nor Read as ready-to-receive frame")
	}
	return nil
}

// newReply returns, on the responder's side, a Reply that accepts the request, and the agreement.
// The Reply has the request's revision and offers the given read depths.
func newReply(
	request *mpaFrame, wantCRC bool, inboundReads, outboundReads int, privateData []byte,
) (mpaFrame, agreement) {
	a := agreement{
		useCRC: request.crc || wantCRC, inboundReads: inboundReads, outboundReads: outboundReads,
	}
	reply := mpaFrame{revision: request.revision, crc: a.useCRC, privateData: privateData}
	if !request.enhanced {
		return reply, a
	}
	if request.inboundReads != depthByUpperLayer {
		a.outboundReads = min(outboundReads, int(request.inboundReads))
	}
	reply.enhanced = true
	reply.inboundReads, reply.outboundReads = uint16(a.inboundReads), uint16(a.outboundReads)
	if request.peerToPeer {
		reply.peerToPeer = true
		a.rtr = rtrWrite
		if request.rtrRead {
			a.rtr = rtrRead
		}
		reply.rtrRead, reply.rtrWrite = a.rtr == rtrRead, a.rtr == rtrWrite
	}
	return reply, a
}

// newReject returns a Reply that rejects the request.
func newReject(request *mpaFrame, reason []byte) mpaFrame {
	return mpaFrame{
		revision: request.revision, crc: request.crc, reject: true, enhanced: request.enhanced,
		privateData: reason,
	}
}
