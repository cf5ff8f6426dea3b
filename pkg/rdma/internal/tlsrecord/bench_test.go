// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"fmt"
	"testing"
)

func forSizes(b *testing.B, run func(b *testing.B, suite uint16, size int)) {
	for _, suite := range sortedSuites() {
		for _, size := range benchmarkSizes {
			b.Run(fmt.Sprintf("%s/%d", suiteNames[suite], size), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				run(b, suite, size)
			})
		}
	}
}

func BenchmarkSeal(b *testing.B) {
	forSizes(b, func(b *testing.B, suite uint16, size int) {
		s, _ := newSessions(b, suite)
		record := make([]byte, size+Overhead)
		for b.Loop() {
			s.out.sequence = 0
			s.Seal(record, size)
		}
	})
}

// BenchmarkOpen includes a copy, because opening changes the record.
func BenchmarkOpen(b *testing.B) {
	forSizes(b, func(b *testing.B, suite uint16, size int) {
		client, server := newSessions(b, suite)
		sealed := client.sealed(string(make([]byte, size)))
		record := make([]byte, len(sealed))
		for b.Loop() {
			copy(record, sealed)
			server.in.sequence = 0
			if _, err := server.Open(record); err != nil {
				b.Fatal(err)
			}
		}
	})
}
