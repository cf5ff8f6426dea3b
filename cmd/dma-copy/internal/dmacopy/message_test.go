// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var everyMessage = []message{
	offer{}, offer{hasFile: true, size: 1<<63 - 1}, plan{direction: ToHost, slots: 8,
		chunkSize: 1 << 20, size: 3 << 30},
	export{address: 1, length: 2, descriptor: []byte("descriptor")}, filled{chunk: 1 << 40,
		length: 7, checksum: 0xdeadbeef},
	released{chunk: 9}, end{size: 1 << 40, checksum: 1}, outcome{}, outcome{code: status.NotFound,
		text: "it is gone"}, alive{},
}

var allowUnexported = cmp.AllowUnexported(offer{}, plan{}, export{}, filled{}, released{}, end{},
	outcome{})

func TestMessagesReadBackAsTheyWere(t *testing.T) {
	for _, m := range everyMessage {
		got, err := parse(encode(m))
		if err != nil {
			t.Errorf("%+v: %v", m, err)
		}
		if difference := cmp.Diff(m, got, allowUnexported); difference != "" {
			t.Error(difference)
		}
		if len(encode(m)) > 4080 {
			t.Errorf("%T has %d bytes", m, len(encode(m)))
		}
	}
	long := outcome{code: status.Unknown, text: strings.Repeat("x", 10*maxText)}
	if got, err := parse(encode(long)); err != nil || len(got.(outcome).text) != maxText {
		t.Errorf("a long text became %d bytes, error %v", len(got.(outcome).text), err)
	}
}

func TestMessagesOfOtherLengthsAreRefused(t *testing.T) {
	for _, m := range everyMessage {
		b := encode(m)
		for _, bad := range [][]byte{b[:len(b)-1], append(bytes.Clone(b), 0), b[:headerSize-1],
			nil} {
			if _, err := parse(bad); err == nil && m.kind() != kindExport {
				t.Errorf("%T of %d bytes instead of %d was accepted", m, len(bad), len(b))
			}
		}
	}
	for _, size := range []int{0, comch.MaxExportLength + 1} {
		if _, err := parse(encode(export{descriptor: make([]byte, size)})); !errors.Is(err,
			status.InvalidValue) {
			t.Errorf("a descriptor of %d bytes gave %v", size, err)
		}
	}
	newer := encode(alive{})
	newer[4]++
	if _, err := parse(newer); !errors.Is(err, status.UnsupportedVersion) {
		t.Errorf("a newer version gave %v", err)
	}
	if _, err := parse(directionMessage{}.append(nil)); err == nil || !strings.Contains(err.Error(),
		"--compat") {
		t.Errorf("a message of the original gave %v", err)
	}
}

// FuzzMessage checks that an accepted message encodes to the same bytes.
func FuzzMessage(f *testing.F) {
	for _, m := range everyMessage {
		f.Add(encode(m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		testkit.CheckBounded(t, err)
		if err == nil && !bytes.Equal(encode(m), b) {
			t.Errorf("%x was read as %+v, which is %x", b, m, encode(m))
		}
	})
}

// goldenOriginal holds messages as the original sends them.
var goldenOriginal = map[string]originalMessage{
	"dma_direction_file_in_host.bin": directionMessage{fileInHost: true,
		fileSize: 1048576},
	"dma_direction_file_not_in_host.bin":       directionMessage{},
	"dma_direction_dpu_reply_file_on_dpu.bin":  directionMessage{fileSize: 123456789},
	"dma_direction_dpu_reply_file_on_host.bin": directionMessage{fileInHost: true},
	"dma_export_descriptor.bin": exportMessage{hostAddress: 0x7f00deadb000,
		descriptor: []byte("0123456789:;<=>?")},
	"dma_status_failure.bin": statusMessage{},
	"dma_status_success.bin": statusMessage{success: true},
}

func originalFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "original", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOriginalMessagesHaveTheOriginalsBytes(t *testing.T) {
	for name, want := range goldenOriginal {
		b := originalFile(t, name)
		if got := want.append(nil); !bytes.Equal(got, b) {
			t.Errorf("%s: %+v is encoded as %x, the original has %x", name, want, got, b)
		}
		got, err := parseOriginal(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if difference := cmp.Diff(want, got, cmp.AllowUnexported(directionMessage{},
			exportMessage{}, statusMessage{})); difference != "" {
			t.Errorf("%s: %s", name, difference)
		}
	}
}

func TestPaddingOfOriginalMessagesHoldsAnything(t *testing.T) {
	b := originalFile(t, "dma_direction_file_in_host.bin")
	b[5], b[6], b[7] = 0xff, 0xee, 0xdd
	if m, err := parseOriginal(b); err != nil ||
		m != goldenOriginal["dma_direction_file_in_host.bin"] {
		t.Errorf("%+v, error %v", m, err)
	}
}

func TestOriginalMessagesOfOtherLengthsAreRefused(t *testing.T) {
	for name, m := range goldenOriginal {
		b := m.append(nil)
		bad := [][]byte{b[:len(b)-1], nil, {1}}
		if _, isExport := m.(exportMessage); !isExport {
			bad = append(bad, append(bytes.Clone(b), 0))
		}
		for _, other := range bad {
			if _, err := parseOriginal(other); err == nil {
				t.Errorf("%s of %d bytes instead of %d was accepted", name, len(other), len(b))
			}
		}
	}
	// The original reads past the end of a message with a wrong length.
	lying := exportMessage{descriptor: []byte("descriptor")}.append(nil)
	for _, length := range []byte{0, 11, 34, 255} {
		lying[23] = length
		if _, err := parseOriginal(lying); !errors.Is(err, status.InvalidValue) {
			t.Errorf("a descriptor of 10 bytes that says %d gave %v", length, err)
		}
	}
}

func FuzzOriginalMessage(f *testing.F) {
	for name := range goldenOriginal {
		f.Add(originalFile(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseOriginal(b)
		testkit.CheckBounded(t, err)
		if err != nil {
			return
		}
		again, err := parseOriginal(m.append(nil))
		if err != nil || !cmp.Equal(m, again, cmp.AllowUnexported(directionMessage{},
			exportMessage{}, statusMessage{})) {
			t.Errorf("%+v reads back as %+v, error %v", m, again, err)
		}
	})
}

func TestPlansDivideFilesWithoutGapsAndWithinTheWindow(t *testing.T) {
	for _, size := range []uint64{0, 1, 9, 10, 11, 39, 40, 41, 1 << 62} {
		p := divide(ToDPU, size, &Config{ChunkSize: 10, Slots: 4})
		if err := p.validate(&input{size: size}); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if size > 1<<20 {
			continue
		}
		total := uint64(0)
		for chunk := range p.chunks() {
			total += p.length(chunk)
			if p.slot(chunk)+p.length(chunk) > p.window() || p.length(chunk) == 0 {
				t.Errorf("%d bytes: chunk %d has %d bytes at %d of %d", size, chunk,
					p.length(chunk), p.slot(chunk), p.window())
			}
		}
		if total != size {
			t.Errorf("%d bytes are divided into %d", size, total)
		}
	}
}

func TestBadPlansAreRefused(t *testing.T) {
	good := plan{direction: ToHost, slots: 1, chunkSize: 1, size: 1}
	if err := good.validate(nil); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*plan){
		"no direction":    func(p *plan) { p.direction = 0 },
		"wrong direction": func(p *plan) { p.direction = ToDPU },
		"odd direction":   func(p *plan) { p.direction = 3 },
		"no slots":        func(p *plan) { p.slots = 0 },
		"many slots":      func(p *plan) { p.slots = maxSlots + 1 },
		"empty chunks":    func(p *plan) { p.chunkSize = 0 },
		"large chunks":    func(p *plan) { p.chunkSize = maxChunkSize + 1 },
		"large window":    func(p *plan) { p.chunkSize, p.slots = maxChunkSize, maxSlots },
		"huge file":       func(p *plan) { p.size = 1 << 63 },
	} {
		p := good
		spoil(&p)
		if p.validate(nil) == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if (plan{direction: ToDPU, slots: 1, chunkSize: 1, size: 2}).validate(&input{size: 1}) == nil {
		t.Error("another size than the file's was accepted")
	}
}
