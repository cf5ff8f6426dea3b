// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package chain

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// TestADeviceReachesMemoryOfTheApplicationWithoutAFile uses memory that no other process can map.
func TestADeviceReachesMemoryOfTheApplicationWithoutAFile(t *testing.T) {
	bluefield(t, libdoca.Release3_3, libdoca.Device{}, libdoca.Device{})
	chain := chaintest.Start(t, over("mlx5_0", relay.ImportAuto))
	const size = 16 * chaintest.BlockSize
	mapped, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	config := chain.QueueConfig(2)
	config.Memory, config.MemorySize = memory.Wrap(mapped), 0
	v, err := client.Open(chain.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	q := v.Queue(0)
	want := chaintest.RandomBytes(chaintest.BlockSize, 1)
	copy(mapped[3*chaintest.BlockSize:], want)
	for tag, r := range []client.Request{
		{Type: client.Write, Memory: 3 * chaintest.BlockSize},
		{Type: client.Read, Memory: 9 * chaintest.BlockSize},
	} {
		r.Tag, r.Length = uint64(tag), chaintest.BlockSize
		if err := q.Submit(&r); err != nil {
			t.Fatal(err)
		}
		q.Ring()
		codes := chaintest.Collect(t, q, 1)
		if got := codes[r.Tag]; len(got) != 1 || got[0] != status.Success {
			t.Fatalf("request %d ended with %v", tag, got)
		}
	}
	if !bytes.Equal(mapped[9*chaintest.BlockSize:][:chaintest.BlockSize], want) {
		t.Error("what was written is not read")
	}
	if err := v.Close(chain.Context()); err != nil { // waits until the device has let go of it
		t.Error(err)
	}
	if err := v.AwaitMemory(chain.Context()); err != nil {
		t.Error(err)
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Error(err)
	}
}
