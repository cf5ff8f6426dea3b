// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// Bounds of a negotiation.
const (
	// maxString is the longest string of the protocol (section "Conventions"), in bytes.
	maxString = 4096
	// maxOptionData is the most option data that is examined, in bytes, and maxDiscard the most
	// that is read and thrown away in order to say that it is too much. Beyond it the connection
	// ends.
	maxOptionData = 32 << 10
	maxDiscard    = 256 << 10
	// maxErrorText is the longest text of an error reply, in bytes. Clients end the connection if
	// it is longer than a string of the protocol.
	maxErrorText = 512
	// maxOptions is the number of options of one negotiation.
	maxOptions = 256
	// maxQueries is the number of queries and of information requests in one option.
	maxQueries = 64
)

// errDone ends a negotiation without an error: the client went away or has only asked.
var errDone = errors.New("the client ended the negotiation")

// agreement is the result of a negotiation.
type agreement struct {
	name       string
	export     *export
	info       blockio.Info
	structured bool // structured replies
	extended   bool // extended headers, which include structured replies
	context    bool // the client may ask for base:allocation
	conn       net.Conn
	encrypted  bool
	client     string      // name of the client's certificate
	place      *connection // reserved at a worker
}

// negotiation is the handshake with one client (section "Fixed newstyle negotiation").
type negotiation struct {
	agreement
	server   *Server
	deadline time.Time
	fixed    bool // the client knows the fixed newstyle
	noZeroes bool
	// contextExport is the export for which the client has selected base:allocation.
	contextExport string
	refusal       error // why the client did not get the export that it has asked for last
	scratch       []byte
}

// negotiate does the handshake until the client has chosen an export and the server has a place for
// it. The caller closes conn if it fails, and bounds its time.
func (n *negotiation) negotiate(ctx context.Context) (*agreement, error) {
	hello := make([]byte, 0, 18)
	hello = binary.BigEndian.AppendUint64(hello, magicServer)
	hello = binary.BigEndian.AppendUint64(hello, magicOption)
	hello = binary.BigEndian.AppendUint16(hello, flagFixedNewstyle|flagNoZeroes)
	if _, err := n.conn.Write(hello); err != nil {
		return nil, err
	}
	var flags [4]byte
	if _, err := io.ReadFull(n.conn, flags[:]); err != nil {
		return nil, endOfInput(err)
	}
	chosen := binary.BigEndian.Uint32(flags[:])
	if chosen&^(flagFixedNewstyle|flagNoZeroes) != 0 {
		return nil, fmt.Errorf("client flags %#x are unknown", chosen)
	}
	n.fixed, n.noZeroes = chosen&flagFixedNewstyle != 0, chosen&flagNoZeroes != 0
	for range maxOptions {
		done, err := n.option(ctx)
		if err != nil {
			return nil, err
		}
		if done {
			return &n.agreement, nil
		}
	}
	return nil, fmt.Errorf("the client sent more than %d options", maxOptions)
}

// endOfInput returns errDone if a client closes the connection between two messages.
func endOfInput(err error) error {
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return errDone
	}
	return err
}

// option receives and answers one option. It returns true once the client has chosen an export.
func (n *negotiation) option(ctx context.Context) (done bool, err error) {
	var head [16]byte
	if _, err := io.ReadFull(n.conn, head[:]); err != nil {
		return false, endOfInput(err)
	}
	if magic := binary.BigEndian.Uint64(head[:]); magic != magicOption {
		return false, fmt.Errorf("option magic is %#x", magic)
	}
	kind := option(binary.BigEndian.Uint32(head[8:]))
	length := binary.BigEndian.Uint32(head[12:])
	if !n.fixed && kind != optionExportName {
		return false, fmt.Errorf("option %d without the fixed newstyle", kind)
	}
	if length > maxOptionData {
		if length > maxDiscard || kind == optionExportName {
			return false, fmt.Errorf("option %d has %d bytes of data", kind, length)
		}
		if _, err := io.CopyN(io.Discard, n.conn, int64(length)); err != nil {
			return false, err
		}
		return false, n.refuse(kind, replyErrTooBig, "option data is longer than %d bytes",
			maxOptionData)
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(n.conn, data); err != nil {
		return false, err
	}
	if n.server.config.TLS != nil && !n.encrypted && kind != optionStartTLS &&
		kind != optionAbort {
		n.refusal = errors.New("the client did not start TLS, which is required")
		if kind == optionExportName {
			return false, n.refusal
		}
		return false, n.refuse(kind, replyErrTLSRequired, "start TLS first")
	}
	return n.answer(ctx, kind, data)
}

// answer answers an option whose data has arrived.
func (n *negotiation) answer(ctx context.Context, kind option, data []byte) (bool, error) {
	switch kind {
	case optionExportName:
		return true, n.chooseByName(string(data))
	case optionAbort:
		_ = n.reply(kind, replyAck, nil) // the client may have gone already
		return false, errDone
	case optionInfo, optionGo:
		return n.describe(kind, data)
	case optionListMetaContext, optionSetMetaContext:
		return false, n.contexts(kind, data)
	case optionList, optionStartTLS, optionStructuredReply, optionExtendedHeaders:
		if len(data) > 0 {
			return false, n.refuse(kind, replyErrInvalid, "the option has no data")
		}
	}
	switch kind {
	case optionList:
		return false, n.list()
	case optionStartTLS:
		return false, n.startTLS(ctx)
	case optionStructuredReply:
		if n.extended {
			return false, n.refuse(kind, replyErrInvalid,
				"extended headers have been negotiated, which include structured replies")
		}
		n.structured = true
		return false, n.reply(kind, replyAck, nil)
	case optionExtendedHeaders:
		n.extended, n.structured = true, true
		return false, n.reply(kind, replyAck, nil)
	}
	return false, n.refuse(kind, replyErrUnsupported, "option %d is unknown", kind)
}

// reply sends one reply to an option.
func (n *negotiation) reply(kind option, answer optionReply, data []byte) error {
	b := n.scratch[:0]
	b = binary.BigEndian.AppendUint64(b, magicOptionReply)
	b = binary.BigEndian.AppendUint32(b, uint32(kind))
	b = binary.BigEndian.AppendUint32(b, uint32(answer))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	n.scratch = append(b, data...)
	_, err := n.conn.Write(n.scratch)
	return err
}

// refuse sends an error reply with a text for people.
func (n *negotiation) refuse(kind option, answer optionReply, format string, args ...any) error {
	return n.reply(kind, answer,
		[]byte(printable.Line(fmt.Sprintf(format, args...), maxErrorText)))
}

// isString reports whether b is a string that the protocol allows (section "Conventions").
func isString(b []byte) bool {
	return len(b) <= maxString && utf8.Valid(b) && !strings.ContainsRune(string(b), 0)
}

// chooseByName answers NBD_OPT_EXPORT_NAME, which cannot be refused: the connection ends instead.
func (n *negotiation) chooseByName(name string) error {
	if !isString([]byte(name)) {
		return errors.New("the export's name is not a valid string")
	}
	if err := n.choose(name); err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint64(nil, n.info.Size)
	b = binary.BigEndian.AppendUint16(b, transmissionFlags(&n.info, n.structured))
	if !n.noZeroes {
		b = append(b, make([]byte, legacyZeroes)...)
	}
	_, err := n.conn.Write(b)
	return err
}

// choose makes an export the one to use, and claims a place for its connection. The time that it
// waits for former connections extends the deadline.
func (n *negotiation) choose(name string) error {
	export := n.server.find(name)
	if export == nil {
		return errUnknownExport(name)
	}
	begun := time.Now()
	if err := n.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	place, err := n.server.reserve(export)
	if err != nil {
		return errors.Join(err, n.conn.SetDeadline(n.deadline.Add(time.Since(begun))))
	}
	n.export, n.name, n.info, n.place = export, name, export.Info(), place
	if err := n.conn.SetDeadline(n.deadline.Add(time.Since(begun))); err != nil {
		return err
	}
	n.context = n.context && n.contextExport == name
	return nil
}

// errUnknownExport is the name of an export that does not exist.
type errUnknownExport string

func (e errUnknownExport) Error() string {
	return "there is no export " + printable.Quote(string(e), printable.MaxName)
}

// list answers NBD_OPT_LIST.
func (n *negotiation) list() error {
	for _, export := range n.server.list() {
		data := binary.BigEndian.AppendUint32(nil, uint32(len(export.name)))
		data = append(data, export.name...)
		data = append(data, export.Info().Description...)
		if err := n.reply(optionList, replyServer, data); err != nil {
			return err
		}
	}
	return n.reply(optionList, replyAck, nil)
}

// hint adds the likely cause to an error of a handshake. A client whose certificate is of an
// authority that the server does not name sends none, with GnuTLS for instance.
func hint(err error) string {
	if strings.Contains(err.Error(), "client didn't provide a certificate") {
		return " (it has none, or none that an authority of the server's --tls-ca has signed)"
	}
	return ""
}

// startTLS answers NBD_OPT_STARTTLS and does the handshake (section "FORCEDTLS mode").
func (n *negotiation) startTLS(ctx context.Context) error {
	switch {
	case n.server.config.TLS == nil:
		return n.refuse(optionStartTLS, replyErrPolicy, "the server has no certificate")
	case n.encrypted:
		return n.refuse(optionStartTLS, replyErrInvalid, "TLS has been started")
	}
	if err := n.reply(optionStartTLS, replyAck, nil); err != nil {
		return err
	}
	conn := tls.Server(n.conn, n.server.config.TLS())
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w%s", printable.Error(err), hint(err))
	}
	// What was agreed in plain text may have been changed on the way.
	n.structured, n.extended, n.context = false, false, false
	n.conn, n.encrypted, n.refusal = conn, true, nil
	if peers := conn.ConnectionState().PeerCertificates; len(peers) > 0 {
		n.client = peers[0].Subject.CommonName
		if len(peers[0].DNSNames) > 0 {
			n.client = peers[0].DNSNames[0]
		}
		n.client = printable.Line(n.client, printable.MaxName)
	}
	return nil
}

// describe answers NBD_OPT_INFO and NBD_OPT_GO. Only the latter chooses the export.
func (n *negotiation) describe(kind option, data []byte) (bool, error) {
	name, wanted, ok := parseInfo(data)
	if !ok {
		return false, n.refuse(kind, replyErrInvalid, "the option's data is malformed")
	}
	if n.server.isClosing() {
		return false, n.refuse(kind, replyErrShutdown, "the server is shutting down")
	}
	export := n.server.find(name)
	if export == nil {
		n.refusal = errUnknownExport(name)
		return false, n.refuse(kind, replyErrUnknown, "%v", n.refusal)
	}
	info := export.Info()
	n.refusal = nil
	if kind == optionGo {
		if n.refusal = n.choose(name); n.refusal != nil {
			return false, n.refuse(kind, replyErrPolicy, "%v", n.refusal)
		}
		info = n.info
	}
	answers := [][]byte{binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(
		binary.BigEndian.AppendUint16(nil, infoExport), info.Size),
		transmissionFlags(&info, n.structured))}
	if wanted[infoName] {
		answers = append(answers, append(binary.BigEndian.AppendUint16(nil, infoName),
			export.name...))
	}
	if wanted[infoDescription] && info.Description != "" {
		answers = append(answers, append(binary.BigEndian.AppendUint16(nil, infoDescription),
			info.Description...))
	}
	// Any alignment is allowed, so the minimum is 1 (section "Block size constraints").
	b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, infoBlockSize), 1)
	b = binary.BigEndian.AppendUint32(b, info.PreferredBlock)
	answers = append(answers, binary.BigEndian.AppendUint32(b, MaxPayload))
	for _, answer := range answers {
		if err := n.reply(kind, replyInfo, answer); err != nil {
			return false, err
		}
	}
	return kind == optionGo, n.reply(kind, replyAck, nil)
}

// parseInfo splits the data of NBD_OPT_INFO and NBD_OPT_GO: the name, and the types of information
// that the client asks for.
func parseInfo(data []byte) (name string, wanted [infoBlockSize + 1]bool, ok bool) {
	text, rest, ok := cutString(data)
	if !ok || len(rest) < 2 {
		return "", wanted, false
	}
	count := int(binary.BigEndian.Uint16(rest))
	rest = rest[2:]
	if count > maxQueries || len(rest) != 2*count {
		return "", wanted, false
	}
	for ; len(rest) > 0; rest = rest[2:] {
		if kind := binary.BigEndian.Uint16(rest); int(kind) < len(wanted) {
			wanted[kind] = true
		}
	}
	return text, wanted, true
}

// cutString returns the string at the start of data, which follows its length in 32 bits.
func cutString(data []byte) (text string, rest []byte, ok bool) {
	if len(data) < 4 {
		return "", nil, false
	}
	length := binary.BigEndian.Uint32(data)
	data = data[4:]
	if uint64(length) > uint64(len(data)) || !isString(data[:length]) {
		return "", nil, false
	}
	return string(data[:length]), data[length:], true
}

// contexts answers NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
func (n *negotiation) contexts(kind option, data []byte) error {
	if kind == optionSetMetaContext {
		n.context = false // replaced even if the option fails
	}
	if !n.structured {
		return n.refuse(kind, replyErrInvalid, "negotiate structured replies first")
	}
	name, queries, ok := parseQueries(data)
	if !ok {
		return n.refuse(kind, replyErrInvalid, "the option's data is malformed")
	}
	if n.server.find(name) == nil {
		return n.refuse(kind, replyErrUnknown, "%v", errUnknownExport(name))
	}
	matched := len(queries) == 0 && kind == optionListMetaContext
	for _, query := range queries {
		matched = matched || query == metaContext ||
			(query == "base:" && kind == optionListMetaContext)
	}
	if matched {
		id := uint32(0) // reserved in a list
		if kind == optionSetMetaContext {
			id, n.context, n.contextExport = contextID, true, name
		}
		b := append(binary.BigEndian.AppendUint32(nil, id), metaContext...)
		if err := n.reply(kind, replyMetaContext, b); err != nil {
			return err
		}
	}
	return n.reply(kind, replyAck, nil)
}

// parseQueries splits the data of the options about metadata contexts.
func parseQueries(data []byte) (name string, queries []string, ok bool) {
	name, rest, ok := cutString(data)
	if !ok || len(rest) < 4 {
		return "", nil, false
	}
	count := binary.BigEndian.Uint32(rest)
	rest = rest[4:]
	if count > maxQueries {
		return "", nil, false
	}
	for range count {
		var query string
		if query, rest, ok = cutString(rest); !ok {
			return "", nil, false
		}
		queries = append(queries, query)
	}
	return name, queries, len(rest) == 0
}
