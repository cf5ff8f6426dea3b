// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestRDMAPrivateDataIsMagicAndToken(t *testing.T) {
	d := RDMAPrivateData{Token: sixteen(0x30)}
	const want = "7a637231" + "303132333435363738393a3b3c3d3e3f"
	b := d.Append(nil)
	if got := hex.EncodeToString(b); got != want || len(b) != rdmaPrivateDataSize {
		t.Errorf("encoding %s of %d bytes, want %s", got, len(b), want)
	}
	padded := append(b, make([]byte, rdma.MaxPrivateData-len(b))...)
	for _, b := range [][]byte{b, padded} {
		if got, err := DecodeRDMAPrivateData(b); err != nil || got != d {
			t.Errorf("decoding %d bytes = %x, %v", len(b), got.Token, err)
		}
	}
}

func TestOtherPrivateDataIsRejected(t *testing.T) {
	valid := RDMAPrivateData{Token: sixteen(0x30)}.Append(nil)
	cases := []struct {
		name string
		b    []byte
		code status.Code
	}{
		{"nothing", nil, status.InvalidValue},
		{"one byte short", valid[:19], status.InvalidValue},
		{"more than fits", append(bytes.Clone(valid), make([]byte, 37)...), status.InvalidValue},
		{"other version", append([]byte("zcr2"), valid[4:]...), status.UnsupportedVersion},
		{"trailing garbage", append(bytes.Clone(valid), 0, 0, 7), status.InvalidValue},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got, err := DecodeRDMAPrivateData(c.b); !errors.Is(err, c.code) ||
				got != (RDMAPrivateData{}) {
				t.Errorf("decoding = %x, %v, want the code %v", got.Token, err, c.code)
			}
		})
	}
}

func FuzzRDMAPrivateData(f *testing.F) {
	f.Add(RDMAPrivateData{Token: sixteen(0x30)}.Append(nil))
	f.Add([]byte("zcr2"))
	f.Add(make([]byte, rdma.MaxPrivateData))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := DecodeRDMAPrivateData(b)
		if err == nil && !bytes.HasPrefix(b, d.Append(nil)) {
			t.Fatalf("%x was read as the token %x", b, d.Token)
		}
	})
}
