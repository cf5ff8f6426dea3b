package iwarp

// violation is a reason to end a stream, in the terms of the Terminate
// message that tells the peer (RFC 5040 section 4.8). Values are shared and
// never change, so that finding one costs the data path nothing.
type violation struct {
	layer   uint8
	kind    uint8 // error type, its meaning depends on the layer
	code    uint8
	headers uint8 // which headers of the offending segment to return
	text    string
}

// The layers that can report an error.
const (
	layerRDMAP = 0
	layerDDP   = 1
	layerLLP   = 2
)

// Error types of the RDMAP layer and of the DDP layer.
const (
	kindLocalCatastrophic = 0
	kindRemoteProtection  = 1
	kindRemoteOperation   = 2
	kindTaggedBuffer      = 1
	kindUntaggedBuffer    = 2
	kindMPA               = 0
)

// Header control bits: the segment length is valid, the DDP header is
// included, the Read Request header is included.
const (
	headerLength = 0x80
	headerDDP    = 0x40
	headerRDMAP  = 0x20

	noHeaders   = 0
	ddpHeaders  = headerLength | headerDDP
	readHeaders = headerLength | headerDDP | headerRDMAP
)

// Stream framing and versions.
var (
	violationCRC             = &violation{layerLLP, kindMPA, 2, noHeaders, "CRC error"}
	violationLength          = &violation{layerLLP, kindMPA, 3, noHeaders, "ULPDU length does not match its header"}
	violationReply           = &violation{layerLLP, kindMPA, 4, noHeaders, "invalid MPA request or reply"}
	violationReadDepth       = &violation{layerLLP, kindMPA, 6, noHeaders, "insufficient inbound read depth"}
	violationReadyToReceive  = &violation{layerLLP, kindMPA, 7, noHeaders, "no matching ready-to-receive frame"}
	violationTaggedVersion   = &violation{layerDDP, kindTaggedBuffer, 4, noHeaders, "DDP version"}
	violationUntaggedVersion = &violation{layerDDP, kindUntaggedBuffer, 6, noHeaders, "DDP version"}
	violationRDMAPVersion    = &violation{layerRDMAP, kindRemoteOperation, 5, noHeaders, "RDMAP version"}
	violationOpcode          = &violation{layerRDMAP, kindRemoteOperation, 6, noHeaders, "unexpected opcode"}
)

// What this side cannot go on with, though the peer did nothing wrong.
var (
	violationLocal   = &violation{layerRDMAP, kindLocalCatastrophic, 0, noHeaders, "local catastrophic error"}
	violationRevoked = &violation{layerRDMAP, kindLocalCatastrophic, 0, noHeaders, "memory was deregistered while a message needed it"}
	violationFault   = &violation{layerRDMAP, kindLocalCatastrophic, 0, noHeaders, "registered memory was taken away by its owner"}
)

// Tagged messages: Writes, and Read Responses that match no Read.
var (
	violationWriteSTag      = &violation{layerDDP, kindTaggedBuffer, 0, ddpHeaders, "invalid STag"}
	violationWriteBounds    = &violation{layerDDP, kindTaggedBuffer, 1, ddpHeaders, "base or bounds"}
	violationWriteStream    = &violation{layerDDP, kindTaggedBuffer, 2, ddpHeaders, "STag not associated with the stream"}
	violationWriteWrap      = &violation{layerDDP, kindTaggedBuffer, 3, ddpHeaders, "tagged offset wraps"}
	violationWriteRights    = &violation{layerRDMAP, kindRemoteProtection, 2, ddpHeaders, "access rights"}
	violationNoReadPending  = &violation{layerDDP, kindLocalCatastrophic, 0, ddpHeaders, "Read Response without a Read"}
	violationResponseSTag   = &violation{layerDDP, kindTaggedBuffer, 0, ddpHeaders, "Read Response for another STag"}
	violationResponseBounds = &violation{layerDDP, kindTaggedBuffer, 1, ddpHeaders, "Read Response of another range"}
)

// Untagged messages.
var (
	violationQueue       = &violation{layerDDP, kindUntaggedBuffer, 1, ddpHeaders, "invalid queue number"}
	violationNoReceive   = &violation{layerDDP, kindUntaggedBuffer, 2, ddpHeaders, "no receive posted"}
	violationSequence    = &violation{layerDDP, kindUntaggedBuffer, 3, ddpHeaders, "message sequence number out of range"}
	violationOffset      = &violation{layerDDP, kindUntaggedBuffer, 4, ddpHeaders, "invalid message offset"}
	violationTooLong     = &violation{layerDDP, kindUntaggedBuffer, 5, ddpHeaders, "message too long for the receive"}
	violationInvalidate  = &violation{layerRDMAP, kindRemoteProtection, 9, ddpHeaders, "STag cannot be invalidated"}
	violationInvalidSTag = &violation{layerRDMAP, kindRemoteOperation, 9, ddpHeaders, "STag to invalidate is unknown"}
)

// Read Requests.
var (
	violationReadSTag   = &violation{layerRDMAP, kindRemoteProtection, 0, readHeaders, "invalid STag"}
	violationReadBounds = &violation{layerRDMAP, kindRemoteProtection, 1, readHeaders, "base or bounds"}
	violationReadRights = &violation{layerRDMAP, kindRemoteProtection, 2, readHeaders, "access rights"}
	violationReadStream = &violation{layerRDMAP, kindRemoteProtection, 3, readHeaders, "STag not associated with the stream"}
	violationReadWrap   = &violation{layerRDMAP, kindRemoteProtection, 4, readHeaders, "tagged offset wraps"}
	violationReadCount  = &violation{layerRDMAP, kindRemoteOperation, 7, readHeaders, "more Reads than the inbound read depth"}
)
