// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"bytes"
	"testing"

	"github.com/zc-relay/zc-relay/internal/broker"
)

// A descriptor comes from a peer: Parse accepts exactly what Encode makes.
func FuzzDescriptor(f *testing.F) {
	d := broker.Descriptor{ID: broker.ID{1, 2, 3}, Access: 0x21, Address: 0x7f0000001000,
		Length: 4096, Name: "zc-libdoca-0123"}
	f.Add(d.Encode())
	d.Kind = 1
	f.Add(d.Encode())
	f.Add([]byte("zcdx\x01\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := broker.Parse(b)
		if err != nil {
			return
		}
		if d.Length == 0 || d.Address+d.Length < d.Address {
			t.Errorf("accepted %d bytes at %#x", d.Length, d.Address)
		}
		if again := d.Encode(); !bytes.Equal(again, b) {
			t.Errorf("%x is encoded as %x", b, again)
		}
	})
}
