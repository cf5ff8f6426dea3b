package iwarp

import (
	"encoding/binary"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// TerminateError is the reason for which a Terminate message ended a stream, with the fields of RFC
// 5040 section 4.8.
type TerminateError struct {
	Remote bool  // the peer sent the message, because this side violated the protocol
	Layer  uint8 // 0 RDMAP, 1 DDP, 2 MPA
	Type   uint8 // error type, 4 bits
	Code   uint8

	text string // more specific than the codes; empty if Remote
}

// Error describes the layer and the reason in words, followed by layer, type, and code as numbers.
func (e *TerminateError) Error() string {
	sender := "sent"
	if e.Remote {
		sender = "received"
	}
	text := e.text
	if text == "" {
		text = "unknown reason"
		if v := findViolation(e.Layer, e.Type, e.Code); v != nil {
			text = v.text
		}
	}
	return fmt.Sprintf("%s Terminate %s: %s (%d/%d/%d)",
		sender, layerName(e.Layer), text, e.Layer, e.Type, e.Code)
}

// Is reports whether target is the error's status code: NotPermitted for a rejected memory access,
// IOFailed for a failure on this side, and ConnectionReset for everything else.
func (e *TerminateError) Is(target error) bool {
	code, ok := target.(status.Code)
	return ok && code == e.status()
}

func (e *TerminateError) status() status.Code {
	switch {
	case e.isProtection():
		return status.NotPermitted
	case !e.Remote && e.Layer == layerRDMAP && e.Type == kindLocalCatastrophic:
		return status.IOFailed
	}
	return status.ConnectionReset
}

// isProtection reports whether the reason is a rejected memory access.
func (e *TerminateError) isProtection() bool {
	switch e.Layer {
	case layerRDMAP:
		return e.Type == kindRemoteProtection
	case layerDDP:
		return e.Type == kindTaggedBuffer && e.Code <= violationWriteWrap.code
	}
	return false
}

// readStatus returns the completion status of the oldest outstanding Read when the peer sends this
// Terminate. RDMAP errors about remote memory can only concern a Read, because Writes cause DDP
// errors.
func (e *TerminateError) readStatus() rdma.CompletionStatus {
	if e.Layer != layerRDMAP {
		return rdma.StatusFlushed
	}
	switch e.Type {
	case kindRemoteProtection:
		return rdma.StatusRemoteAccess
	case kindRemoteOperation:
		return rdma.StatusRemoteOperation
	}
	return rdma.StatusFlushed
}

var layerNames = [...]string{"RDMAP", "DDP", "MPA"}

func layerName(layer uint8) string {
	if int(layer) < len(layerNames) {
		return layerNames[layer]
	}
	return "layer"
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

// maxTerminateBytes is the length of a Terminate FPDU that returns all possible headers.
const maxTerminateBytes = terminateBytes + 2 + readRequestBytes - lengthBytes + crcBytes

// appendTerminate appends a whole Terminate FPDU. offender is the offending segment, starting with
// its ULPDU_Length, and at least as long as the headers that v returns.
func appendTerminate(b []byte, v *violation, offender []byte, useCRC bool) []byte {
	headers := v.returned(offender)
	h := untaggedHeader{op: opTerminate, last: true, queue: queueTerminate, sequence: 1}
	start := len(b)
	b = h.append(b, terminateBytes-untaggedBytes+len(headers))
	b = append(b, v.layer<<4|v.kind, v.code, v.headers, 0)
	b = append(b, headers...)
	return append(b[:start], appendTrailer(b[start:], useCRC)...)
}

// parseTerminate decodes the fields after a Terminate's untagged header. Linux siw on little-endian
// hosts swaps layer and type, so parseTerminate swaps them back if they only make sense that way.
// As some combinations make sense both ways, treat the result as a hint.
func parseTerminate(b []byte) TerminateError {
	control := binary.BigEndian.Uint32(b[untaggedBytes:])
	e := TerminateError{
		Remote: true,
		Layer:  uint8(control >> 28), Type: uint8(control>>24) & 0x0f, Code: uint8(control >> 16),
	}
	if findViolation(e.Layer, e.Type, e.Code) == nil &&
		findViolation(e.Type, e.Layer, e.Code) != nil {
		e.Layer, e.Type = e.Type, e.Layer
	}
	return e
}

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

// err returns the violation as the error of the connection that it ends.
func (v *violation) err() error {
	e := &TerminateError{Layer: v.layer, Type: v.kind, Code: v.code, text: v.text}
	return status.Errorf(e.status(), "%w", e)
}

// returned returns the part of the offending segment that the Terminate carries: its length, which
// also precedes it in the stream, and its header.
func (v *violation) returned(offender []byte) []byte {
	switch {
	case v.headers == noHeaders:
		return nil
	case v.headers&headerRDMAP != 0:
		return offender[:readRequestBytes]
	case offender[2]&ddpTagged != 0:
		return offender[:taggedBytes]
	}
	return offender[:untaggedBytes]
}

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
