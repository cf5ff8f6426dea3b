// SPDX-License-Identifier: Apache-2.0

package prefetch_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/prefetch"
)

func TestAnyPieceOfMemoryCanBePrefetchedAndStaysAsItIs(t *testing.T) {
	memory := make([]byte, 512)
	for i := range memory {
		memory[i] = byte(i)
	}
	prefetch.Memory(nil)
	for begin := range 130 {
		for end := begin; end <= 260; end++ {
			prefetch.Memory(memory[begin:end])
		}
	}
	for i := range memory {
		if memory[i] != byte(i) {
			t.Fatalf("byte %d became %#x", i, memory[i])
		}
	}
}

func TestMemoryThatCannotBeReadIsLeftAlone(t *testing.T) {
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	if err := unix.Mprotect(memory[page:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	prefetch.Memory(memory)
}

// BenchmarkSend passes 4 KiB blocks, scattered over memory larger than the caches, to the kernel,
// sixteen per call, as a target does for random reads.
func BenchmarkSend(b *testing.B) {
	const blockSize, blocks = 4096, 16
	for _, prefetched := range []bool{false, true} {
		b.Run(fmt.Sprintf("prefetched=%v", prefetched), func(b *testing.B) {
			volume := make([]byte, 256<<20)
			for i := range volume {
				volume[i] = byte(i)
			}
			sink, err := unix.MemfdCreate("sink", unix.MFD_CLOEXEC)
			if err != nil {
				b.Fatal(err)
			}
			defer unix.Close(sink)
			pieces := make([][]byte, blocks)
			random := rand.New(rand.NewPCG(1, 2))
			b.SetBytes(blocks * blockSize)
			for b.Loop() {
				for i := range pieces {
					pieces[i] = volume[random.IntN(len(volume)/blockSize)*blockSize:][:blockSize]
					if prefetched {
						prefetch.Memory(pieces[i])
					}
				}
				if _, err := unix.Pwritev(sink, pieces, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
