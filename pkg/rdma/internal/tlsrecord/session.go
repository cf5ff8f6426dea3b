// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// HeaderBytes is the length of a record's header: type, version, and length of the rest.
	HeaderBytes = 5
	// MaxPlaintext is the largest number of bytes of application data in a record.
	MaxPlaintext = 16 << 10
	// Overhead is by how much a sealed record is longer than its application data: the header, the
	// type inside, and the tag.
	Overhead = HeaderBytes + 1 + tagBytes
	// MaxRecord is the length of the longest record that a peer may send.
	MaxRecord = HeaderBytes + maxCiphertext
)

const (
	maxCiphertext = MaxPlaintext + 256
	minCiphertext = 1 + tagBytes
	// maxInner bounds application data, its type, and padding together.
	maxInner = MaxPlaintext + 1
)

// Types of records (RFC 8446 section 5.1). Outside, all records are typeApplicationData.
const (
	typeAlert           = 21
	typeHandshake       = 22
	typeApplicationData = 23
)

// legacyVersion is the version in all headers, that of TLS 1.2.
const legacyVersion = 0x0303

const (
	// updateAfter is how many records are sealed with a key before it is to be changed. AES-GCM
	// permits 2^24.5 (RFC 8446 section 5.5).
	updateAfter = 1 << 24
	// sealLimit is how many records of application data are sealed with a key at most. It leaves
	// room for a key update and an alert.
	sealLimit = 23_726_566 - 2
)

// maxUseless is how many records without application data a peer may send in a row, as for
// crypto/tls.
const maxUseless = 16

// phase says what a Session may still seal.
type phase uint8

const (
	sealing phase = iota
	failing       // only the alert that says why the connection ends
	ended         // nothing
)

// Session seals and opens the records of one connection. One goroutine may use it at a time.
type Session struct {
	in, out  direction
	isClient bool
	phase    phase
	// failure is why nothing is opened any more; io.EOF after the peer's close_notify.
	failure error
	// updateRequested means that the peer waits for a key update of this side.
	updateRequested bool
	updateAfter     uint64 // records with one key
	useless         int    // records without application data since the last one with
	message         []byte // what has arrived of a handshake message that spans records
}

// errCleared is the failure of a Session whose keys have been cleared.
var errCleared = status.Errorf(status.Shutdown, "the TLS session has been closed: %w",
	net.ErrClosed)

// errAlertSent is the failure of a Session that has sent a fatal alert.
var errAlertSent = status.Errorf(status.Shutdown, "this side has ended TLS")

// newSession returns a session with the first traffic secrets of a connection. It keeps them.
func newSession(suiteID uint16, isClient bool, in, out []byte) (*Session, error) {
	found := suites[suiteID]
	if found == nil {
		return nil, status.Errorf(status.NotSupported, "unknown TLS cipher suite %#04x", suiteID)
	}
	s := &Session{isClient: isClient, updateAfter: updateAfter}
	s.in.suite, s.out.suite = found, found
	err := s.in.setSecret(in)
	if err == nil {
		err = s.out.setSecret(out)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Clear forgets the keys. Nothing is sealed or opened afterwards.
func (s *Session) Clear() {
	s.in.clear()
	s.out.clear()
	clear(s.message)
	s.message, s.phase = nil, ended
	if s.failure == nil {
		s.failure = errCleared
	}
}

// Seal makes a record of the n bytes of application data at record[HeaderBytes:], in place, and
// returns its length. record has room for n+Overhead bytes.
//
// Seal returns 0, and leaves the data as it is, if nothing may be sent any more: after an alert in
// this direction, a fatal alert of the peer, a failure of Open, or Clear, and if the caller has
// disregarded UpdateDue for millions of records.
func (s *Session) Seal(record []byte, n int) int {
	if s.phase != sealing || s.out.sequence >= sealLimit {
		return 0
	}
	return s.seal(record, n, typeApplicationData)
}

// seal makes a record with any type inside.
func (s *Session) seal(record []byte, n int, contentType byte) int {
	if n > MaxPlaintext {
		panic(fmt.Sprintf("tlsrecord: a record of %d bytes", n))
	}
	record = record[:n+Overhead]
	header, inner := record[:HeaderBytes], record[HeaderBytes:][:n+1]
	header[0] = typeApplicationData
	binary.BigEndian.PutUint16(header[1:], legacyVersion)
	binary.BigEndian.PutUint16(header[3:], uint16(n+1+tagBytes))
	inner[n] = contentType
	s.out.aead.Seal(inner[:0], s.out.nextNonce(), inner, header)
	return len(record)
}

// appendRecord appends a record with any type inside.
func (s *Session) appendRecord(b []byte, contentType byte, content ...byte) []byte {
	start := len(b)
	b = append(b, make([]byte, len(content)+Overhead)...)
	copy(b[start+HeaderBytes:], content)
	s.seal(b[start:], len(content), contentType)
	return b
}

// UpdateAfter makes UpdateDue report true after fewer records than it would, for tests.
func (s *Session) UpdateAfter(records uint64) { s.updateAfter = min(records, updateAfter) }

// UpdateDue reports whether this side has to change its key (AppendKeyUpdate) before it seals more:
// because the limit of the key is near, or because the peer has asked for it.
func (s *Session) UpdateDue() bool {
	return s.phase == sealing && (s.updateRequested || s.out.sequence >= s.updateAfter)
}

// AppendKeyUpdate appends a KeyUpdate record to b, which does not request one of the peer, and
// changes the key. If nothing may be sent any more, it returns b.
func (s *Session) AppendKeyUpdate(b []byte) []byte {
	return s.appendKeyUpdate(b, updateNotRequested)
}

func (s *Session) appendKeyUpdate(b []byte, request byte) []byte {
	if s.phase != sealing {
		return b
	}
	b = s.appendRecord(b, typeHandshake, messageKeyUpdate, 0, 0, 1, request)
	s.updateRequested = false
	if s.out.update() != nil { // cannot fail, because it did not for the first key
		s.phase = ended
	}
	return b
}

// AppendAlert appends an alert record to b. CloseNotify ends this side's data, and any other alert
// the connection in both directions. If no alert may be sent any more, AppendAlert returns b: the
// last alert of either side ends TLS, and a connection that has failed does not end cleanly.
func (s *Session) AppendAlert(b []byte, alert Alert) []byte {
	if s.phase == ended || s.phase == failing && alert == CloseNotify {
		return b
	}
	level := byte(levelFatal)
	if alert == CloseNotify {
		level = levelWarning
	}
	b = s.appendRecord(b, typeAlert, level, byte(alert))
	s.phase = ended
	if alert != CloseNotify && s.failure == nil {
		s.failure = errAlertSent
	}
	return b
}

// RecordLength returns the length of the record that begins with header, of which it needs
// HeaderBytes. It fails if no record may begin so; the error matches the Alert to send.
func RecordLength(header []byte) (int, error) {
	if len(header) < HeaderBytes {
		return 0, violation(DecodeError, "a record without a whole header")
	}
	if header[0] != typeApplicationData {
		return 0, violation(UnexpectedMessage,
			fmt.Sprintf("the peer sent a record of type %d that is not encrypted", header[0]))
	}
	if version := binary.BigEndian.Uint16(header[1:]); version != legacyVersion {
		return 0, violation(ProtocolVersion,
			fmt.Sprintf("the peer sent a record of version %#04x", version))
	}
	length := int(binary.BigEndian.Uint16(header[3:]))
	if length > maxCiphertext {
		return 0, violation(RecordOverflow,
			fmt.Sprintf("the peer sent a record of %d bytes, more than %d", length, maxCiphertext))
	}
	if length < minCiphertext {
		return 0, violation(DecodeError,
			fmt.Sprintf("the peer sent a record of %d bytes, less than %d", length, minCiphertext))
	}
	return HeaderBytes + length, nil
}

// Open opens a whole record in place, and returns its application data, which is a part of record.
// It returns nil for a record with something else, which it has dealt with. The error is io.EOF if
// the peer will not send more (close_notify); for any other, send the Alert of AlertOf. After an
// error, Open returns the same error for all records.
//
// The content of record is undefined after an error other than io.EOF: a cipher may write what it
// has not authenticated.
func (s *Session) Open(record []byte) ([]byte, error) {
	if s.failure != nil {
		return nil, s.failure
	}
	data, err := s.open(record)
	if err != nil {
		s.failure = err
		if err != io.EOF && s.phase == sealing {
			s.phase = failing
		}
	}
	return data, err
}

func (s *Session) open(record []byte) ([]byte, error) {
	length, err := RecordLength(record)
	if err != nil {
		return nil, err
	}
	if length != len(record) {
		return nil, violation(DecodeError, "a record is not whole")
	}
	if s.in.sequence+1 == 0 { // 2^64 records
		return nil, violation(InternalError, "the peer has not changed its key in time")
	}
	header, sealed := record[:HeaderBytes], record[HeaderBytes:]
	inner, err := s.in.aead.Open(sealed[:0], s.in.nextNonce(), sealed, header)
	if err != nil {
		return nil, violation(BadRecordMAC, "a record is not authentic: on its way, it or one "+
			"before it was changed, repeated, or lost")
	}
	if len(inner) > maxInner {
		return nil, violation(RecordOverflow, "the peer sent too much in a record")
	}
	end := len(inner) - 1
	for end >= 0 && inner[end] == 0 { // padding
		end--
	}
	if end < 0 {
		return nil, violation(UnexpectedMessage, "the peer sent a record of padding alone")
	}
	content, contentType := inner[:end], inner[end]
	if contentType != typeHandshake && len(s.message) > 0 {
		return nil, violation(UnexpectedMessage, "the peer sent another record within a message")
	}
	if contentType == typeApplicationData && len(content) > 0 {
		s.useless = 0
		return content, nil
	}
	return nil, s.openOther(contentType, content)
}

// openOther deals with a record without application data.
func (s *Session) openOther(contentType byte, content []byte) error {
	if s.useless++; s.useless > maxUseless {
		return violation(UnexpectedMessage, "the peer sends records without data")
	}
	switch contentType {
	case typeApplicationData:
		return nil
	case typeAlert:
		return s.openAlert(content)
	case typeHandshake:
		return s.openHandshake(content)
	}
	return violation(UnexpectedMessage,
		fmt.Sprintf("the peer sent an encrypted record of type %d", contentType))
}

func (s *Session) openAlert(content []byte) error {
	if len(content) != 2 {
		return violation(UnexpectedMessage, "an alert has two bytes")
	}
	switch alert := Alert(content[1]); alert {
	case CloseNotify:
		return io.EOF
	case userCanceled:
		return nil
	default:
		s.phase = ended
		return peerAlert(alert)
	}
}
