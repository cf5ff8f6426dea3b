// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"encoding/binary"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// TestTsharkDecodesSession lets Wireshark's dissectors decode a whole session: connection setup,
// all kinds of messages, and a Terminate.
func TestTsharkDecodesSession(t *testing.T) {
	testkit.RequireTools(t, "tshark")
	c := newCapture()
	runCapturedSession(t, c.record, connectWithCRC)
	c.dissect(t)
}

// dissect checks that tshark recognizes everything.
func (c *capture) dissect(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "session.pcap")
	if err := os.WriteFile(path, c.file, 0o600); err != nil {
		t.Fatal(err)
	}
	// Heuristic dissectors of payloads are disabled, so that they do not claim the bytes.
	out, err := exec.Command("tshark", "-o", "tcp.try_heuristic_first:TRUE",
		"--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct",
		"-r", path, "-V").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	text := string(out)
	if good := strings.Count(text, "(Good CRC32)"); good != c.frames {
		t.Errorf("%d of %d FPDUs have a good CRC", good, c.frames)
	}
	for _, bad := range []string{"Bad CRC", "Malformed", "Unknown"} {
		if n := strings.Count(text, bad); n > 0 {
			t.Errorf("tshark prints %q %d times", bad, n)
		}
	}
	for _, want := range []string{
		"OpCode: Write (0x0)", "OpCode: Read Request (0x1)", "OpCode: Read Response (0x2)",
		"OpCode: Send (0x3)", "OpCode: Terminate (0x7)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no frame is decoded with %q", want)
		}
	}
}

func connectWithCRC(t *testing.T, via func(netip.AddrPort) netip.AddrPort) *link {
	t.Helper()
	return connectVia(t, true, via)
}

// runCapturedSession runs a session through a proxy, whose bytes observe gets.
func runCapturedSession(
	t *testing.T, observe func(direction, []byte),
	connect func(t *testing.T, via func(netip.AddrPort) netip.AddrPort) *link,
) {
	t.Helper()
	p := proxy{piece: func(direction) int { return 64 << 10 }, observe: observe}
	t.Run("session", func(t *testing.T) {
		l := connect(t, func(a netip.AddrPort) netip.AddrPort { return p.start(t, a) })
		fillWith(l.x.bytes, capturedText)
		fillWith(l.y.bytes, capturedText)
		for _, size := range []int{0, 1, 64, 4096, 200_000} {
			l.y.receive(t, 1, 64)
			l.x.chain(t, l.y, size)
			l.await(t, l.y, 1)
			l.await(t, l.x, 2)
			l.x.read(t, l.y, size)
			l.await(t, l.x, 1)
		}
		l.x.post[0] = rdma.SendRequest{
			Opcode: rdma.OpWrite, Local: l.x.segment(0, 64),
			RemoteKey: l.y.memory.RemoteKey() ^ 0x55,
		}
		l.x.start(t, 1)
		for !l.x.disconnected || !l.y.disconnected {
			l.x.progress(t)
			l.y.progress(t)
		}
	})
}

// capturedText is what the memory of both sides holds.
const capturedText = "content of a volume; "

func fillWith(b []byte, text string) {
	for len(b) > 0 {
		b = b[copy(b, text):]
	}
}

// capture records a connection as the packets of a pcap file. It gets its input from a proxy and
// not from a network interface, so it needs no privileges. Every packet carries one MPA frame or
// one FPDU.
type capture struct {
	mu      sync.Mutex
	file    []byte
	streams [2]capturedStream
	frames  int // FPDUs
}

type capturedStream struct {
	pending  []byte // bytes of an incomplete frame
	opened   bool   // the MPA frame has been seen
	sequence uint32
}

// newCapture returns a capture that starts with a TCP handshake.
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

// record adds the next piece of one direction.
func (c *capture) record(d direction, piece []byte) {
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

// frameLength returns the length of the frame at the start of pending, or 0 if it is not known yet.
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

// packet appends an IPv4 packet that contains a TCP segment.
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
