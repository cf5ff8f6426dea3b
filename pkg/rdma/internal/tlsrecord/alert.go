// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"errors"
	"fmt"
	"io"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Alert says why one end of a connection ends it (RFC 8446 section 6). It is an error, which the
// error of a Session matches if the peer is to receive this alert.
type Alert uint8

// The alerts that this side sends.
const (
	CloseNotify       Alert = 0
	UnexpectedMessage Alert = 10
	BadRecordMAC      Alert = 20
	RecordOverflow    Alert = 22
	IllegalParameter  Alert = 47
	DecodeError       Alert = 50
	ProtocolVersion   Alert = 70
	InternalError     Alert = 80
)

// userCanceled announces a CloseNotify, and has no effect.
const userCanceled Alert = 90

// The levels of alerts, which a receiver ignores.
const (
	levelWarning = 1
	levelFatal   = 2
)

// rejections holds the alerts by which a peer rejects a certificate.
var rejections = map[Alert]bool{
	42: true, 43: true, 44: true, 45: true, 46: true, 48: true, 49: true, 116: true,
}

var alertNames = map[Alert]string{
	CloseNotify:       "close notify",
	UnexpectedMessage: "unexpected message",
	BadRecordMAC:      "bad record MAC",
	RecordOverflow:    "record overflow",
	40:                "handshake failure",
	42:                "bad certificate",
	43:                "unsupported certificate",
	44:                "certificate revoked",
	45:                "certificate expired",
	46:                "certificate unknown",
	IllegalParameter:  "illegal parameter",
	48:                "unknown certificate authority",
	49:                "access denied",
	DecodeError:       "decode error",
	51:                "decrypt error",
	ProtocolVersion:   "protocol version",
	71:                "insufficient security",
	InternalError:     "internal error",
	86:                "inappropriate fallback",
	userCanceled:      "user canceled",
	109:               "missing extension",
	110:               "unsupported extension",
	112:               "unrecognized name",
	113:               "bad certificate status response",
	115:               "unknown PSK identity",
	116:               "certificate required",
	120:               "no application protocol",
}

// String returns the alert's name and number.
func (a Alert) String() string {
	if name := alertNames[a]; name != "" {
		return fmt.Sprintf("%s (TLS alert %d)", name, uint8(a))
	}
	return fmt.Sprintf("TLS alert %d", uint8(a))
}

// Error returns String. It makes an Alert an error.
func (a Alert) Error() string { return a.String() }

// AlertOf returns the alert to send to the peer because of an error of RecordLength or of
// Session.Open. If the peer has ended the connection itself, AppendAlert appends none.
func AlertOf(err error) Alert {
	if errors.Is(err, io.EOF) {
		return CloseNotify
	}
	if alert, ok := errors.AsType[Alert](err); ok {
		return alert
	}
	return InternalError
}

// violation returns the error of a record that the peer should not have sent.
func violation(alert Alert, what string) error {
	return status.Errorf(status.ConnectionReset, "TLS: %s: %w", what, alert)
}

// peerAlert returns the error of an alert that the peer has sent. It matches no Alert, because
// nothing is to be sent.
func peerAlert(alert Alert) error {
	if rejections[alert] {
		return status.Errorf(status.Authentication,
			"the peer rejected this side's certificate: %v; see its log", alert)
	}
	return status.Errorf(status.ConnectionReset, "the peer ended TLS: %v; see its log", alert)
}
