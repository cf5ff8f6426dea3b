// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"fmt"

	"golang.org/x/crypto/cryptobyte"
)

// Handshake messages that a peer may send after the handshake (RFC 8446 section 4.6).
const (
	messageNewSessionTicket = 4
	messageKeyUpdate        = 24
)

// The content of a KeyUpdate.
const (
	updateNotRequested = 0
	updateRequested    = 1
)

const (
	messageHeaderBytes = 4 // type, and length of the rest
	// maxMessage bounds a handshake message. The tickets of OpenSSL hold the client's certificate.
	maxMessage = 16 << 10
)

// openHandshake deals with the handshake messages in a record. The last one may continue in the
// next record.
func (s *Session) openHandshake(content []byte) error {
	if len(content) == 0 {
		return violation(UnexpectedMessage, "the peer sent an empty handshake record")
	}
	if len(s.message) > 0 {
		s.message = append(s.message, content...)
		content = s.message
	}
	for len(content) > 0 {
		length, err := messageLength(content)
		if err != nil {
			return err
		}
		if length == 0 || length > len(content) {
			break
		}
		message, rest := content[:length], content[length:]
		if err := s.openMessage(message, len(rest) == 0); err != nil {
			return err
		}
		content = rest
	}
	if len(content) == 0 {
		s.message = nil
	} else {
		s.message = append(s.message[:0], content...)
	}
	return nil
}

// messageLength returns the length of the handshake message that begins with b, or 0 if b is too
// short to say. It fails if no message may begin so.
func messageLength(b []byte) (int, error) {
	if b[0] != messageNewSessionTicket && b[0] != messageKeyUpdate {
		return 0, violation(UnexpectedMessage,
			fmt.Sprintf("the peer sent handshake message %d after the handshake", b[0]))
	}
	if len(b) < messageHeaderBytes {
		return 0, nil
	}
	length := messageHeaderBytes + (int(b[1])<<16 | int(b[2])<<8 | int(b[3]))
	if length > maxMessage {
		return 0, violation(DecodeError,
			fmt.Sprintf("the peer sent a handshake message of %d bytes, more than %d", length,
				maxMessage))
	}
	return length, nil
}

// openMessage deals with a whole handshake message, after which its record may end.
func (s *Session) openMessage(message []byte, endsRecord bool) error {
	body := message[messageHeaderBytes:]
	if message[0] == messageNewSessionTicket {
		if !s.isClient {
			return violation(UnexpectedMessage, "a client sent a session ticket")
		}
		if !isTicket(body) {
			return violation(DecodeError, "the peer sent a malformed session ticket")
		}
		return nil
	}
	if len(body) != 1 {
		return violation(DecodeError, "the peer sent a malformed key update")
	}
	if body[0] != updateNotRequested && body[0] != updateRequested {
		return violation(IllegalParameter, "the peer sent an unknown key update")
	}
	// What follows has the new key, so it is in another record (RFC 8446 section 5.1).
	if !endsRecord {
		return violation(UnexpectedMessage, "the peer sent more behind a key update")
	}
	if body[0] == updateRequested {
		s.updateRequested = true
	}
	if err := s.in.update(); err != nil { // cannot fail, because it did not for the first key
		return violation(InternalError, err.Error())
	}
	return nil
}

// isTicket reports whether body is that of a NewSessionTicket (RFC 8446 section 4.6.1).
func isTicket(body []byte) bool {
	var lifetime, ageAdd uint32
	var nonce, ticket, extensions cryptobyte.String
	b := cryptobyte.String(body)
	return b.ReadUint32(&lifetime) && b.ReadUint32(&ageAdd) &&
		b.ReadUint8LengthPrefixed(&nonce) &&
		b.ReadUint16LengthPrefixed(&ticket) && len(ticket) > 0 &&
		b.ReadUint16LengthPrefixed(&extensions) && b.Empty()
}
