// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"encoding/binary"

	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// Magic numbers.
const (
	magicServer          uint64 = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption          uint64 = 0x49484156454f5054 // "IHAVEOPT"
	magicOptionReply     uint64 = 0x0003e889045565a9
	magicRequest         uint32 = 0x25609513
	magicSimpleReply     uint32 = 0x67446698
	magicStructuredReply uint32 = 0x668e33ef
	magicExtendedRequest uint32 = 0x21e41c71
	magicExtendedReply   uint32 = 0x6e8a278c
)

// Handshake and client flags have the same bits (sections "Handshake flags", "Client flags").
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// legacyZeroes is the padding behind the reply to NBD_OPT_EXPORT_NAME.
const legacyZeroes = 124

// Transmission flags (section "Transmission flags").
const (
	flagHasFlags        uint16 = 1 << 0
	flagReadOnly        uint16 = 1 << 1
	flagSendFlush       uint16 = 1 << 2
	flagSendFUA         uint16 = 1 << 3
	flagSendTrim        uint16 = 1 << 5
	flagSendWriteZeroes uint16 = 1 << 6
	flagSendDF          uint16 = 1 << 7
	flagCanMultiConn    uint16 = 1 << 8
	flagSendCache       uint16 = 1 << 10
	flagSendFastZero    uint16 = 1 << 11
)

// option is what a client asks for during the negotiation (section "Option types").
type option uint32

const (
	optionExportName      option = 1
	optionAbort           option = 2
	optionList            option = 3
	optionStartTLS        option = 5
	optionInfo            option = 6
	optionGo              option = 7
	optionStructuredReply option = 8
	optionListMetaContext option = 9
	optionSetMetaContext  option = 10
	optionExtendedHeaders option = 11
)

// optionReply is the type of an answer to an option (section "Option reply types").
type optionReply uint32

const (
	replyAck         optionReply = 1
	replyServer      optionReply = 2
	replyInfo        optionReply = 3
	replyMetaContext optionReply = 4

	replyErrUnsupported optionReply = 1<<31 + 1
	replyErrPolicy      optionReply = 1<<31 + 2
	replyErrInvalid     optionReply = 1<<31 + 3
	replyErrTLSRequired optionReply = 1<<31 + 5
	replyErrUnknown     optionReply = 1<<31 + 6
	replyErrShutdown    optionReply = 1<<31 + 7
	replyErrTooBig      optionReply = 1<<31 + 9
)

// Information types of NBD_OPT_INFO and NBD_OPT_GO.
const (
	infoExport      uint16 = 0
	infoName        uint16 = 1
	infoDescription uint16 = 2
	infoBlockSize   uint16 = 3
)

// Disconnect is the request type that is no command of a disk. The others are blockio.Command
// (section "Request types").
const Disconnect blockio.Command = 2

// Flags of requests that concern the connection only (section "Command flags").
const (
	dontFragment  blockio.CommandFlags = 1 << 2
	payloadLength blockio.CommandFlags = 1 << 5
)

// sessionFlags are the flags that a Session sees. The others concern the connection only.
const sessionFlags = blockio.FUA | blockio.NoHole | blockio.RequestOne | blockio.FastZero

// allowedFlags holds the flags that each command may have. Clients are known to set FUA on any
// command, which the specification allows.
var allowedFlags = [blockio.CommandCount]blockio.CommandFlags{
	blockio.Read: blockio.FUA | dontFragment, blockio.Write: blockio.FUA | payloadLength,
	Disconnect: blockio.FUA, blockio.Flush: blockio.FUA, blockio.Trim: blockio.FUA,
	blockio.Cache:       blockio.FUA,
	blockio.WriteZeroes: blockio.FUA | blockio.NoHole | blockio.FastZero,
	blockio.BlockStatus: blockio.FUA | blockio.RequestOne,
}

// Types of structured reply chunks (section "Structured reply types").
const (
	chunkNone           uint16 = 0
	chunkOffsetData     uint16 = 1
	chunkBlockStatus    uint16 = 5
	chunkBlockStatusExt uint16 = 6
	chunkError          uint16 = 1<<15 + 1

	chunkDone uint16 = 1 << 0 // flag: the last chunk of a reply
)

// Lengths of headers in bytes.
const (
	requestSize         = 28
	extendedRequestSize = 32
	simpleReplySize     = 16
	chunkHeaderSize     = 20
	extendedHeaderSize  = 32
)

// Flags of an extent in base:allocation (section "Metadata querying").
const (
	stateHole uint32 = 1 << 0
	stateZero uint32 = 1 << 1
)

// metaContext is the only metadata context, and contextID the number that stands for it.
const (
	metaContext        = "base:allocation"
	contextID   uint32 = 1
)

// header is a decoded request header.
type header struct {
	magic  uint32
	flags  blockio.CommandFlags
	kind   blockio.Command
	cookie uint64
	offset uint64
	length uint64
}

// decodeHeader decodes a request header in the compact or the extended form.
func decodeHeader(b []byte, extended bool) header {
	_ = b[requestSize-1]
	h := header{
		magic:  binary.BigEndian.Uint32(b),
		flags:  blockio.CommandFlags(binary.BigEndian.Uint16(b[4:])),
		kind:   blockio.Command(binary.BigEndian.Uint16(b[6:])),
		cookie: binary.BigEndian.Uint64(b[8:]),
		offset: binary.BigEndian.Uint64(b[16:]),
	}
	if extended {
		h.length = binary.BigEndian.Uint64(b[24:])
	} else {
		h.length = uint64(binary.BigEndian.Uint32(b[24:]))
	}
	return h
}

// transmissionFlags returns the flags of an export for a connection that has negotiated structured
// replies or not.
func transmissionFlags(info *blockio.Info, structured bool) uint16 {
	flags := flagHasFlags | flagSendFlush | flagSendFUA | flagCanMultiConn | flagSendCache
	if structured {
		flags |= flagSendDF
	}
	if info.ReadOnly {
		return flags | flagReadOnly
	}
	if info.CanTrim {
		flags |= flagSendTrim
	}
	if info.CanWriteZeroes {
		flags |= flagSendWriteZeroes | flagSendFastZero
	}
	return flags
}
