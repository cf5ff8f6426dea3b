// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"encoding/binary"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/rdma"
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
