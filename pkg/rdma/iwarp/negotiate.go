package iwarp

import "github.com/zc-relay/zc-relay/pkg/status"

// agreement is what both sides settled on in the handshake.
type agreement struct {
	useCRC        bool
	inboundReads  int
	outboundReads int
	// rtr is the frame with which the initiator opens the stream.
	rtr readyToReceive
}

// readyToReceive is a kind of first frame (RFC 6581 section 7): harmless, and
// allowing the responder to send from then on.
type readyToReceive uint8

const (
	rtrNone readyToReceive = iota
	rtrWrite
	rtrRead
)

// maxReadDepth is what this endpoint offers at most; siw takes no more.
const maxReadDepth = 128

// newRequest is the frame that an initiator opens with.
//
// As ready-to-receive it offers the zero-length Read alone: unlike a Write it
// is answered, and so proves that the peer has begun to process the stream.
func newRequest(useCRC bool, inboundReads, outboundReads int, privateData []byte) mpaFrame {
	return mpaFrame{
		revision: mpaRevision2, crc: useCRC, enhanced: true,
		peerToPeer: true, rtrRead: true,
		inboundReads: uint16(inboundReads), outboundReads: uint16(outboundReads),
		privateData: privateData,
	}
}

// acceptReply settles the connection from the initiator's side. The violation
// is what the responder is to be told.
func acceptReply(request, reply *mpaFrame) (agreement, *violation, error) {
	if reply.markers {
		return agreement{}, violationReply, status.Errorf(status.NotSupported, "peer wants MPA markers, which are not supported")
	}
	if !reply.enhanced {
		return agreement{}, violationReply, status.Errorf(status.UnsupportedVersion,
			"peer answers with MPA revision %d without enhanced data; revision 2 (RFC 6581) is required", reply.revision)
	}
	outbound := int(request.outboundReads)
	if reply.inboundReads != depthByUpperLayer {
		outbound = min(outbound, int(reply.inboundReads))
	}
	inbound := request.inboundReads
	if reply.outboundReads != depthByUpperLayer && reply.outboundReads > inbound {
		return agreement{}, violationReadDepth, status.Errorf(status.Unexpected,
			"peer wants %d outstanding Reads, %d were offered", reply.outboundReads, inbound)
	}
	a := agreement{useCRC: request.crc || reply.crc, inboundReads: int(inbound), outboundReads: outbound}
	switch {
	case !reply.peerToPeer:
	case reply.rtrRead:
		a.rtr = rtrRead
	case reply.rtrWrite:
		a.rtr = rtrWrite
	default:
		return agreement{}, violationReadyToReceive, status.Errorf(status.Unexpected, "peer chose no known ready-to-receive frame")
	}
	return a, nil, nil
}

// checkRequest tells whether a responder can take a request at all.
func checkRequest(request *mpaFrame) error {
	if request.reject {
		return status.Errorf(status.Unexpected, "MPA request has the reject flag")
	}
	if request.markers {
		return status.Errorf(status.NotSupported, "peer wants MPA markers, which are not supported")
	}
	if request.peerToPeer && !request.rtrWrite && !request.rtrRead {
		return status.Errorf(status.NotSupported, "peer offers neither Write nor Read as ready-to-receive frame")
	}
	return nil
}

// newReply settles the connection from the responder's side. It mirrors the
// request's revision, and offers at least as deep an inbound queue as asked
// for if limits allow it.
func newReply(request *mpaFrame, wantCRC bool, inboundReads, outboundReads int, privateData []byte) (mpaFrame, agreement) {
	a := agreement{useCRC: request.crc || wantCRC, inboundReads: inboundReads, outboundReads: outboundReads}
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

// newReject is the reply that refuses a request.
func newReject(request *mpaFrame, reason []byte) mpaFrame {
	return mpaFrame{revision: request.revision, crc: request.crc, reject: true, enhanced: request.enhanced, privateData: reason}
}
