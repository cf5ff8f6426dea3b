package iomsg_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// Bytes 0 to 51 are fields; the rest is written as zeroes.
func FuzzDecode(f *testing.F) {
	names, err := filepath.Glob("testdata/*.bin")
	if err != nil || len(names) == 0 {
		f.Fatalf("no golden files: %v", err)
	}
	for _, name := range names {
		f.Add(readGolden(f, filepath.Base(name)))
	}
	f.Add(bytes.Repeat([]byte{0xff}, iomsg.Size))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < iomsg.Size {
			return
		}
		var m iomsg.Message
		iomsg.Decode(data, &m)
		encoded := bytes.Repeat([]byte{0xff}, iomsg.Size)
		iomsg.Encode(encoded, &m)
		if !bytes.Equal(encoded[:52], data[:52]) || !bytes.Equal(encoded[52:], make([]byte, 12)) {
			t.Fatalf("%x became %x", data[:iomsg.Size], encoded)
		}
	})
}
