//go:build cgo

package libdoca

import (
	"bytes"
	"testing"
)

// A descriptor comes from a peer: decode accepts exactly what encode makes.
func FuzzDescriptor(f *testing.F) {
	x := description{id: exportID{1, 2, 3}, access: 0x21, address: 0x7f0000001000, length: 4096,
		broker: "zc-libdoca-0123"}
	f.Add(x.encode(0))
	f.Add(x.encode(1))
	f.Add([]byte("zcdx\x01\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, kind, err := decode(b)
		if err != nil {
			return
		}
		if x.length == 0 || x.address+x.length < x.address {
			t.Errorf("accepted %d bytes at %#x", x.length, x.address)
		}
		if again := x.encode(kind); !bytes.Equal(again, b) {
			t.Errorf("%x is encoded as %x", b, again)
		}
	})
}
