package iwarp_test

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// TestTsharkDecodesASession has Wireshark's dissectors read a whole session:
// set-up, all kinds of messages, and a Terminate.
func TestTsharkDecodesASession(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	c := newCapture()
	runCapturedSession(t, c)
	path := filepath.Join(t.TempDir(), "session.pcap")
	if err := os.WriteFile(path, c.file, 0o600); err != nil {
		t.Fatal(err)
	}
	// Heuristic dissectors of payloads must not claim the bytes.
	out, err := exec.Command(tshark, "-o", "tcp.try_heuristic_first:TRUE",
		"--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct", "-r", path, "-V").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	text := string(out)
	if good := strings.Count(text, "(Good CRC32)"); good != c.frames {
		t.Errorf("%d of %d FPDUs have a good CRC", good, c.frames)
	}
	for _, bad := range []string{"Bad CRC", "Malformed", "Unknown"} {
		if n := strings.Count(text, bad); n > 0 {
			t.Errorf("tshark says %q %d times", bad, n)
		}
	}
	for _, want := range []string{
		"OpCode: Write (0x0)", "OpCode: Read Request (0x1)", "OpCode: Read Response (0x2)", "OpCode: Send (0x3)",
		"OpCode: Terminate (0x7)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no frame with %q", want)
		}
	}
}

func runCapturedSession(t *testing.T, c *capture) {
	t.Helper()
	p := proxy{piece: func() int { return 64 << 10 }, see: c.see}
	t.Run("session", func(t *testing.T) {
		l := connectVia(t, true, func(a netip.AddrPort) netip.AddrPort { return p.start(t, a) })
		for _, size := range []int{0, 1, 64, 4096, 200_000} {
			l.y.receive(t, 1, 64)
			l.x.chain(t, l.y, size)
			l.await(t, l.y, 1)
			l.await(t, l.x, 2)
			l.x.read(t, l.y, size)
			l.await(t, l.x, 1)
		}
		l.x.post[0] = rdma.SendRequest{Opcode: rdma.OpWrite, Local: l.x.segment(0, 64), RemoteKey: l.y.memory.RemoteKey() ^ 0x55}
		l.x.start(t, 1)
		for !l.x.gone || !l.y.gone {
			l.x.progress(t)
			l.y.progress(t)
		}
	})
}
