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
	// maxMPAData bounds what follows the header. RFC 5044 allows 512 bytes;
	// Linux siw, the peer to expect, stops at this.
	maxMPAData = 256

	mpaMarkers  = 0x80
	mpaCRC      = 0x40
	mpaReject   = 0x20
	mpaEnhanced = 0x10

	mpaRevision1 = 1 // RFC 5044
	mpaRevision2 = 2 // RFC 6581, with enhanced data
)

// The enhanced data of RFC 6581 section 9: two 16-bit words in front of the
// private data.
const (
	enhancedBytes = 4
	depthMask     = 0x3fff
	// depthByUpperLayer as a read depth says that it is not negotiated here.
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
	// enhanced tells whether the fields of RFC 6581 are present.
	enhanced      bool
	peerToPeer    bool // the initiator's first frame is a ready-to-receive
	rtrFPDU       bool // which kinds of it are offered, or chosen
	rtrWrite      bool
	rtrRead       bool
	inboundReads  uint16 // IRD
	outboundReads uint16 // ORD
	privateData   []byte
}

// append writes the frame behind the given key. It must leave in one write:
// siw drops a frame that arrives in pieces.
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
	inbound = f.inboundReads&depthMask | bit[uint16](f.peerToPeer, inboundPeerToPeer) | bit[uint16](f.rtrFPDU, inboundRTRFPDU)
	outbound = f.outboundReads&depthMask | bit[uint16](f.rtrWrite, outboundRTRWrite) | bit[uint16](f.rtrRead, outboundRTRRead)
	return inbound, outbound
}

func bit[T byte | uint16](set bool, value T) T {
	if set {
		return value
	}
	return 0
}

// mpaDataLength checks the fixed part of a frame and returns how many bytes
// follow it.
func mpaDataLength(b []byte, key string) (int, error) {
	if string(b[:len(key)]) != key {
		return 0, status.Errorf(status.Unexpected, "MPA frame begins with %q instead of %q: the peer does not speak iWARP", b[:len(key)], key)
	}
	length := int(binary.BigEndian.Uint16(b[18:]))
	if length > maxMPAData {
		return 0, status.Errorf(status.TooBig, "MPA frame announces %d bytes of data, at most %d are accepted", length, maxMPAData)
	}
	return length, nil
}

// parseMPA reads a whole frame whose fixed part mpaDataLength has accepted.
// The private data is a part of b.
func parseMPA(b []byte) (mpaFrame, error) {
	flags, data := b[16], b[mpaHeaderBytes:]
	f := mpaFrame{
		revision: b[17],
		markers:  flags&mpaMarkers != 0, crc: flags&mpaCRC != 0,
		reject: flags&mpaReject != 0, enhanced: flags&mpaEnhanced != 0,
		privateData: data,
	}
	if f.revision != mpaRevision1 && f.revision != mpaRevision2 {
		return f, status.Errorf(status.UnsupportedVersion, "MPA revision %d is neither %d nor %d", f.revision, mpaRevision1, mpaRevision2)
	}
	if !f.enhanced {
		return f, nil
	}
	if f.revision != mpaRevision2 {
		return f, status.Errorf(status.Unexpected, "MPA frame of revision %d has enhanced data", f.revision)
	}
	if len(data) < enhancedBytes {
		return f, status.Errorf(status.Unexpected, "MPA frame has %d bytes of data, enhanced data takes %d", len(data), enhancedBytes)
	}
	inbound, outbound := binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:])
	f.peerToPeer, f.rtrFPDU = inbound&inboundPeerToPeer != 0, inbound&inboundRTRFPDU != 0
	f.rtrWrite, f.rtrRead = outbound&outboundRTRWrite != 0, outbound&outboundRTRRead != 0
	f.inboundReads, f.outboundReads = inbound&depthMask, outbound&depthMask
	f.privateData = data[enhancedBytes:]
	return f, nil
}

// checkPrivateData refuses more than the seam hands up.
func checkPrivateData(length, limit int) error {
	if length > limit {
		return status.Errorf(status.TooBig, "private data of %d bytes exceeds %d", length, limit)
	}
	return nil
}
