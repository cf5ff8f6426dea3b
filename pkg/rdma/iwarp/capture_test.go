package iwarp_test

import (
	"encoding/binary"
	"sync"
)

// capture records a connection as the packets of a pcap file. It needs no
// privileges, because it does not look at a network: every packet carries one
// MPA frame or one FPDU.
type capture struct {
	mu      sync.Mutex
	file    []byte
	streams [2]capturedStream
	frames  int // FPDUs
}

type capturedStream struct {
	pending  []byte // bytes that are no whole frame yet
	opened   bool   // the MPA frame has been seen
	sequence uint32
}

// newCapture begins with the opening of a TCP connection.
func newCapture() *capture {
	c := &capture{}
	for _, field := range []uint32{0xa1b2c3d4, 4<<16 | 2, 0, 0, 1 << 18, linkTypeIPv4} {
		c.file = binary.LittleEndian.AppendUint32(c.file, field)
	}
	c.packet(toListener, tcpSYN, nil)
	c.packet(toDialer, tcpSYN|tcpACK, nil)
	c.packet(toListener, tcpACK, nil)
	return c
}

const (
	linkTypeIPv4 = 228
	tcpSYN       = 0x02
	tcpPSH       = 0x08
	tcpACK       = 0x10

	capturedMPAHeader = 20
)

// see takes the next piece of one direction.
func (c *capture) see(d direction, piece []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.streams[d]
	s.pending = append(s.pending, piece...)
	for {
		n := s.frameLength()
		if n == 0 || n > len(s.pending) {
			return
		}
		if s.opened {
			c.frames++
		}
		s.opened = true
		c.packet(d, tcpACK|tcpPSH, s.pending[:n])
		s.pending = s.pending[n:]
	}
}

// frameLength is the size of the frame that begins, 0 if it is not known yet.
func (s *capturedStream) frameLength() int {
	if !s.opened {
		if len(s.pending) < capturedMPAHeader {
			return 0
		}
		return capturedMPAHeader + int(binary.BigEndian.Uint16(s.pending[18:]))
	}
	if len(s.pending) < 2 {
		return 0
	}
	return (2+int(binary.BigEndian.Uint16(s.pending))+3)&^3 + 4
}

// packet appends an IPv4 packet with a TCP segment.
func (c *capture) packet(d direction, flags byte, payload []byte) {
	const headers = 20 + 20
	length := headers + len(payload)
	for _, field := range []uint32{0, 0, uint32(length), uint32(length)} {
		c.file = binary.LittleEndian.AppendUint32(c.file, field)
	}
	hosts := [2][4]byte{{10, 0, 0, 1}, {10, 0, 0, 2}}
	ports := [2]uint16{40000, 5123}
	from, to := int(d), 1-int(d)
	b := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(length))
	b = append(b, 0, 0, 0x40, 0, 64, 6, 0, 0)
	b = append(append(b, hosts[from][:]...), hosts[to][:]...)
	b = binary.BigEndian.AppendUint16(b, ports[from])
	b = binary.BigEndian.AppendUint16(b, ports[to])
	b = binary.BigEndian.AppendUint32(b, c.streams[from].sequence)
	b = binary.BigEndian.AppendUint32(b, c.streams[to].sequence)
	b = append(b, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	c.file = append(append(c.file, b...), payload...)
	c.streams[from].sequence += uint32(len(payload))
	if flags&tcpSYN != 0 {
		c.streams[from].sequence++
	}
}
