package iomsg_test

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

func BenchmarkEncode(b *testing.B) {
	buf := make([]byte, iomsg.Size)
	m := iomsg.Message{Type: iomsg.Read, UserData: 1, IOSize: 4096, StorageOffset: 1 << 30}
	b.ReportAllocs()
	for b.Loop() {
		iomsg.Encode(buf, &m)
	}
}

func BenchmarkDecode(b *testing.B) {
	buf := readGolden(b, "b33_io_read_request.bin")
	var m iomsg.Message
	b.ReportAllocs()
	for b.Loop() {
		iomsg.Decode(buf, &m)
	}
}
