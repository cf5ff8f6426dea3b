// SPDX-License-Identifier: Apache-2.0

package iwarp

import "github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"

// violation is a reason to end a stream, with the fields of the Terminate message that reports it
// to the peer (RFC 5040 section 4.8). Values are shared and never change, so that the data path can
// return one without allocating.
type violation struct {
	layer   uint8
	kind    uint8 // error type; its meaning depends on the layer
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

// Header control bits: whether the segment length is valid, and whether the DDP header and the Read
// Request header are included.
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
	violationCRC    = &violation{layerLLP, kindMPA, 2, noHeaders, "CRC error"}
	violationLength = &violation{layerLLP, kindMPA, 3, noHeaders,
		"ULPDU length does not match the header"}
	violationReply = &violation{layerLLP, kindMPA, 4, noHeaders,
		"invalid MPA request or reply"}
	violationReadDepth = &violation{layerLLP, kindMPA, 6, noHeaders,
		"insufficient inbound read depth"}
	violationReadyToReceive = &violation{layerLLP, kindMPA, 7, noHeaders,
		"no matching ready-to-receive frame"}
	violationTaggedVersion = &violation{layerDDP, kindTaggedBuffer, 4, noHeaders,
		"invalid DDP version"}
	violationUntaggedVersion = &violation{layerDDP, kindUntaggedBuffer, 6, noHeaders,
		"invalid DDP version"}
	violationRDMAPVersion = &violation{layerRDMAP, kindRemoteOperation, 5, noHeaders,
		"invalid RDMAP version"}
	violationOpcode = &violation{layerRDMAP, kindRemoteOperation, 6, noHeaders,
		"unexpected opcode"}
)

// Failures of this side. The peer did nothing wrong.
var (
	violationLocal = &violation{layerRDMAP, kindLocalCatastrophic, 0, noHeaders,
		"local catastrophic error"}
	violationRevoked = &violation{layerRDMAP, kindLocalCatastrophic, 0, noHeaders,
		"memory was deregistered during a message"}
	violationFault = &violation{layerRDMAP, kindLocalCatastrophic, 0, noHeaders,
		"registered memory has become inaccessible"}
)

// Tagged messages: Writes, and Read Responses that match no Read.
var (
	violationWriteSTag   = &violation{layerDDP, kindTaggedBuffer, 0, ddpHeaders, "invalid STag"}
	violationWriteBounds = &violation{layerDDP, kindTaggedBuffer, 1, ddpHeaders,
		"base or bounds violation"}
	violationWriteStream = &violation{layerDDP, kindTaggedBuffer, 2, ddpHeaders,
		"STag not associated with the stream"}
	violationWriteWrap = &violation{layerDDP, kindTaggedBuffer, 3, ddpHeaders,
		"tagged offset wraps around"}
	violationWriteRights = &violation{layerRDMAP, kindRemoteProtection, 2, ddpHeaders,
		"access rights violation"}
	violationNoRead = &violation{layerDDP, kindLocalCatastrophic, 0, ddpHeaders,
		"Read Response without a Read"}
	violationResponseSTag = &violation{layerDDP, kindTaggedBuffer, 0, ddpHeaders,
		"Read Response for another STag"}
	violationResponseBounds = &violation{layerDDP, kindTaggedBuffer, 1, ddpHeaders,
		"Read Response of another range"}
)

// Untagged messages.
var (
	violationQueue = &violation{layerDDP, kindUntaggedBuffer, 1, ddpHeaders,
		"invalid queue number"}
	violationNoReceive = &violation{layerDDP, kindUntaggedBuffer, 2, ddpHeaders,
		"no receive posted"}
	violationSequence = &violation{layerDDP, kindUntaggedBuffer, 3, ddpHeaders,
		"message sequence number out of range"}
	violationOffset = &violation{layerDDP, kindUntaggedBuffer, 4, ddpHeaders,
		"invalid message offset"}
	violationTooLong = &violation{layerDDP, kindUntaggedBuffer, 5, ddpHeaders,
		"message too long for the receive"}
	violationInvalidate = &violation{layerRDMAP, kindRemoteProtection, 9, ddpHeaders,
		"STag cannot be invalidated"}
	violationInvalidSTag = &violation{layerRDMAP, kindRemoteOperation, 9, ddpHeaders,
		"STag to invalidate is unknown"}
)

// Read Requests.
var (
	violationReadSTag = &violation{layerRDMAP, kindRemoteProtection, 0, readHeaders,
		"invalid STag"}
	violationReadBounds = &violation{layerRDMAP, kindRemoteProtection, 1, readHeaders,
		"base or bounds violation"}
	violationReadRights = &violation{layerRDMAP, kindRemoteProtection, 2, readHeaders,
		"access rights violation"}
	violationReadStream = &violation{layerRDMAP, kindRemoteProtection, 3, readHeaders,
		"STag not associated with the stream"}
	violationReadWrap = &violation{layerRDMAP, kindRemoteProtection, 4, readHeaders,
		"tagged offset wraps around"}
	violationReadCount = &violation{layerRDMAP, kindRemoteOperation, 7, readHeaders,
		"more Reads than the inbound read depth"}
)

// writeRefusals and readRefusals hold the violations of a peer whose Write, or Read Request, names
// memory that it may not reach.
var (
	writeRefusals = [...]*violation{
		registration.UnknownKey:    violationWriteSTag,
		registration.OtherDomain:   violationWriteStream,
		registration.MissingRights: violationWriteRights,
		registration.WrapsAround:   violationWriteWrap,
		registration.OutOfBounds:   violationWriteBounds,
	}
	readRefusals = [...]*violation{
		registration.UnknownKey:    violationReadSTag,
		registration.OtherDomain:   violationReadStream,
		registration.MissingRights: violationReadRights,
		registration.WrapsAround:   violationReadWrap,
		registration.OutOfBounds:   violationReadBounds,
	}
)

// allViolations holds the reasons that a Terminate may have, with those that only peers report.
var allViolations = []*violation{
	{layerLLP, kindMPA, 1, noHeaders, "TCP connection lost"},
	{layerLLP, kindMPA, 5, noHeaders, "local catastrophic error"},
	violationCRC, violationLength, violationReply, violationReadDepth, violationReadyToReceive,
	violationTaggedVersion, violationUntaggedVersion, violationRDMAPVersion, violationOpcode,
	violationLocal,
	violationWriteSTag, violationWriteBounds, violationWriteStream, violationWriteWrap,
	violationWriteRights, violationNoRead,
	violationQueue, violationNoReceive, violationSequence, violationOffset, violationTooLong,
	violationInvalidate, violationInvalidSTag,
	violationReadSTag, violationReadBounds, violationReadStream, violationReadWrap,
	violationReadCount,
}

// findViolation returns the violation with these error fields, or nil.
func findViolation(layer, kind, code uint8) *violation {
	for _, v := range allViolations {
		if v.layer == layer && v.kind == kind && v.code == code {
			return v
		}
	}
	return nil
}
