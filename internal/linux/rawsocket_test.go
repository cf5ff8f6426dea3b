// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/linux"
)

// TestWhatIsGatheredArrives sends vectors of many sizes, more than the socket takes at once, and
// receives them in pieces.
func TestWhatIsGatheredArrives(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	random := rand.New(rand.NewPCG(1, 2))
	memory := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(memory) // never fails

	var g linux.Gather
	var got []byte
	target, tail := make([]byte, 100<<10), make([]byte, 1000)
	for start := 0; start < len(memory); {
		g.Reset()
		for g.Count() < linux.MaxVectors && start < len(memory) {
			n := min(1+random.IntN(40<<10), len(memory)-start)
			first := 1 + random.IntN(n)
			g.Add(memory[start:][:first])
			g.Extend(n - first)
			start += n
		}
		for left := g.Bytes(); left > 0; {
			unsent := 0
			for b := range g.Vectors() {
				unsent += len(b)
			}
			if left != g.Bytes() || left != unsent {
				t.Fatalf("%d bytes are left, of vectors with %d: want %d", g.Bytes(), unsent, left)
			}
			n, errno := linux.Send(pair[0], &g)
			if errno != 0 && errno != unix.EAGAIN {
				t.Fatal(errno)
			}
			g.Advance(n)
			left -= n
			n, errno = linux.Receive(pair[1], target, tail)
			if errno != 0 && errno != unix.EAGAIN {
				t.Fatal(errno)
			}
			got = append(got, target[:min(n, len(target))]...)
			got = append(got, tail[:max(n-len(target), 0)]...)
		}
	}
	for len(got) < len(memory) {
		n, errno := linux.Receive(pair[1], target, nil)
		if errno != 0 {
			t.Fatal(errno)
		}
		got = append(got, target[:n]...)
	}
	if !bytes.Equal(got, memory) {
		t.Error("what arrived is not what was sent")
	}
}
