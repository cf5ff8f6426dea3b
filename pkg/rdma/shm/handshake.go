// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A handshake is one packet in each direction: a request, and a reply that accepts or rejects it.
// Little-endian, without padding:
//
//	offset size
//	0      4    magic "zcsm"
//	4      1    version 1
//	5      1    kind: 1 request, 2 accept, 3 reject
//	6      2    Reads from one peer at a time (request and accept)
//	8      2    Reads outstanding
//	10     16   address of the sender, IPv4 mapped into IPv6
//	26     2    its port
//	28     1    length of the private data
//	29     56   private data, or the reason of a reject; zeros behind its length
//	85     1    number of lent regions
//	86     13·n per region: key u32, length u64, writable u8
//
// A request and an accept carry descriptors: the outbox, and then the lent regions in their order.
const (
	handshakeMagic   = 0x6d73637a
	handshakeVersion = 1
	fixedBytes       = 86
	lentBytes        = 13
	maxPacket        = fixedBytes + rdma.MaxLent*lentBytes
	maxReadDepth     = 1024
)

// packetKind says what a packet of the handshake is.
type packetKind uint8

const (
	packetRequest packetKind = iota + 1
	packetAccept
	packetReject
)

// packet is a packet of the handshake, without its descriptors.
type packet struct {
	kind          packetKind
	inboundReads  int
	outboundReads int
	address       netip.AddrPort
	privateData   []byte
	lent          []lentOffer
}

// lentOffer announces a lent region.
type lentOffer struct {
	key      uint32
	length   uint64
	writable bool
}

func (p *packet) encode() []byte {
	b := make([]byte, fixedBytes, maxPacket)
	binary.LittleEndian.PutUint32(b, handshakeMagic)
	b[4], b[5] = handshakeVersion, byte(p.kind)
	binary.LittleEndian.PutUint16(b[6:], uint16(p.inboundReads))
	binary.LittleEndian.PutUint16(b[8:], uint16(p.outboundReads))
	address := netip.IPv6Unspecified().As16()
	if p.address.IsValid() {
		address = p.address.Addr().As16()
	}
	copy(b[10:], address[:])
	binary.LittleEndian.PutUint16(b[26:], p.address.Port())
	b[28] = byte(copy(b[29:29+rdma.MaxPrivateData], p.privateData))
	b[85] = byte(len(p.lent))
	for _, l := range p.lent {
		b = binary.LittleEndian.AppendUint32(b, l.key)
		b = binary.LittleEndian.AppendUint64(b, l.length)
		writable := byte(0)
		if l.writable {
			writable = 1
		}
		b = append(b, writable)
	}
	return b
}

// parsePacket checks and decodes a packet.
func parsePacket(b []byte) (packet, error) {
	if len(b) < fixedBytes {
		return packet{}, badPacket("it has %d bytes, not at least %d", len(b), fixedBytes)
	}
	if magic := binary.LittleEndian.Uint32(b); magic != handshakeMagic {
		return packet{}, badPacket("it begins with %#x", magic)
	}
	if b[4] != handshakeVersion {
		return packet{}, status.Errorf(status.UnsupportedVersion,
			"handshake has version %d, and this program knows only %d", b[4], handshakeVersion)
	}
	p := packet{
		kind:          packetKind(b[5]),
		inboundReads:  int(binary.LittleEndian.Uint16(b[6:])),
		outboundReads: int(binary.LittleEndian.Uint16(b[8:])),
	}
	length, count := int(b[28]), int(b[85])
	switch {
	case p.kind < packetRequest || p.kind > packetReject:
		return packet{}, badPacket("its kind is %d", p.kind)
	case p.inboundReads > maxReadDepth || p.outboundReads > maxReadDepth:
		return packet{}, badPacket("read depths %d and %d exceed %d", p.inboundReads,
			p.outboundReads, maxReadDepth)
	case length > rdma.MaxPrivateData:
		return packet{}, badPacket("%d bytes of private data exceed %d", length,
			rdma.MaxPrivateData)
	case count > rdma.MaxLent || p.kind == packetReject && count > 0:
		return packet{}, badPacket("it lends %d regions", count)
	case len(b) != fixedBytes+count*lentBytes:
		return packet{}, badPacket("it has %d bytes with %d lent regions", len(b), count)
	}
	p.address = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[10:26])).Unmap(),
		binary.LittleEndian.Uint16(b[26:]))
	p.privateData = append([]byte(nil), b[29:29+length]...)
	for i := range count {
		l := b[fixedBytes+i*lentBytes:]
		offer := lentOffer{key: binary.LittleEndian.Uint32(l),
			length: binary.LittleEndian.Uint64(l[4:]), writable: l[12] == 1}
		if l[12] > 1 || offer.length == 0 {
			return packet{}, badPacket("lent region %d has %d bytes and flag %d", i,
				offer.length, l[12])
		}
		p.lent = append(p.lent, offer)
	}
	return p, nil
}

func badPacket(format string, arguments ...any) error {
	return status.Errorf(status.InvalidValue, "malformed handshake: %s",
		fmt.Sprintf(format, arguments...))
}
