// SPDX-License-Identifier: Apache-2.0

package blockcopy_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/blockcopy"
	"github.com/zc-relay/zc-relay/internal/seedtest"
)

// longest is more than any length at which the way of copying changes.
const longest = 80 << 10

var kinds = map[string]func(dst, src, next []byte){
	"Store": func(dst, src, _ []byte) { blockcopy.Store(dst, src) },
	"Load":  blockcopy.Load,
}

// TestItCopiesAsCopyDoes copies within one array, so that ranges may overlap, and checks every byte
// of it.
func TestItCopiesAsCopyDoes(t *testing.T) {
	for name, copyBlock := range kinds {
		t.Run(name, func(t *testing.T) {
			seedtest.Check(t, func(t *rapid.T) {
				offset := rapid.IntRange(0, longest)
				length := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(1000, 1100),
					rapid.IntRange(0, longest))
				memory := make([]byte, 3*longest)
				for i := range memory {
					memory[i] = byte(i ^ i>>8)
				}
				want := bytes.Clone(memory)
				dst, src := offset.Draw(t, "dst"), offset.Draw(t, "src")
				if rapid.Bool().Draw(t, "apart") {
					src += longest
				}
				toLength, fromLength := length.Draw(t, "to"), length.Draw(t, "from")
				toLength, fromLength = min(toLength, longest), min(fromLength, longest)
				copy(want[dst:dst+toLength], want[src:src+fromLength])
				next := memory[offset.Draw(t, "next"):][:length.Draw(t, "ahead")]
				copyBlock(memory[dst:dst+toLength], memory[src:src+fromLength], next)
				if !bytes.Equal(memory, want) {
					t.Fatal("the memory differs from what copy does")
				}
			})
		})
	}
}

// TestOverlappingRangesKeepTheirContent moves ranges by little, in both directions.
func TestOverlappingRangesKeepTheirContent(t *testing.T) {
	for name, copyBlock := range kinds {
		for _, length := range []int{100, 1 << 10, 5000, longest} {
			for _, distance := range []int{1, 63, 128, length - 1} {
				for _, up := range []bool{false, true} {
					dst, src := 0, distance
					if up {
						dst, src = src, dst
					}
					memory := make([]byte, length+distance)
					for i := range memory {
						memory[i] = byte(i ^ i>>8)
					}
					want := bytes.Clone(memory)
					copy(want[dst:][:length], want[src:][:length])
					copyBlock(memory[dst:][:length], memory[src:][:length], want)
					if !bytes.Equal(memory, want) {
						t.Errorf("%s of %d bytes from %d to %d differs from what copy does", name,
							length, src, dst)
					}
				}
			}
		}
	}
}

// mapPages maps a readable page in front of one that faults.
func mapPages(tb testing.TB) []byte {
	tb.Helper()
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(memory) })
	if err := unix.Mprotect(memory[page:], unix.PROT_NONE); err != nil {
		tb.Fatal(err)
	}
	return memory
}

func TestWhatIsLoadedAheadNeedNotBeReadable(t *testing.T) {
	memory := mapPages(t)
	half := len(memory) / 2
	blockcopy.Load(make([]byte, half), memory[:half], memory[half:])
}

// A fault can be recovered from, as one of copy can.
func TestFaultsArePanics(t *testing.T) {
	memory := mapPages(t)
	other := make([]byte, len(memory))
	for name, copyBlock := range kinds {
		for side, ranges := range map[string][2][]byte{
			"dst": {memory, other}, "src": {other, memory},
		} {
			t.Run(name+" "+side, func(t *testing.T) {
				defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
				defer func() {
					fault, ok := recover().(interface{ Addr() uintptr })
					if !ok || fault.Addr()%uintptr(len(memory)/2) != 0 {
						t.Errorf("the fault is %v", fault)
					}
				}()
				copyBlock(ranges[0], ranges[1], other)
			})
		}
	}
}

// BenchmarkCopy copies blocks to and from scattered places of memory larger than the caches.
func BenchmarkCopy(b *testing.B) {
	volume := make([]byte, 256<<20)
	for i := range volume {
		volume[i] = byte(i)
	}
	const cached = 32 // blocks
	for _, size := range []int{4 << 10, 16 << 10, 128 << 10} {
		warm := make([]byte, cached*size)
		place := func(i int) []byte { return volume[i*7919%(len(volume)/size)*size:][:size] }
		for _, c := range []struct {
			name      string
			copyBlock func(i int, warm []byte)
		}{
			{"out/copy", func(i int, warm []byte) { copy(warm, place(i)) }},
			{"out/Load", func(i int, warm []byte) { blockcopy.Load(warm, place(i), place(i+1)) }},
			{"in/copy", func(i int, warm []byte) { copy(place(i), warm) }},
			{"in/Store", func(i int, warm []byte) { blockcopy.Store(place(i), warm) }},
		} {
			b.Run(fmt.Sprintf("%s/%dKiB", c.name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(size))
				for i := 0; b.Loop(); i++ {
					c.copyBlock(i, warm[i%cached*size:][:size])
				}
			})
		}
	}
}
