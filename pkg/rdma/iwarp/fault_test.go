// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// inaccessibleMemory returns imported memory whose pages have all become inaccessible. That happens
// when the memory's owner punches holes and no pages are left to fill them.
func inaccessibleMemory(t *testing.T, pages int) *memory.Region {
	t.Helper()
	size := pages * os.Getpagesize()
	fd, err := unix.MemfdCreate("fault_test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	if err != nil {
		t.Fatal(err)
	}
	region, err := memory.Import(fd, 0, uint64(size), uint64(size),
		memory.PCIRead|memory.PCIWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = region.Close() })
	if err := unix.Mprotect(region.Bytes(), unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return region
}

func TestInaccessibleMemoryFailsOnlyItsConnection(t *testing.T) {
	const pages = 16
	large := pages * os.Getpagesize() / 2
	for name, use := range map[string]func(w *wireTest, r *registration.Region){
		"small Write by the peer": func(w *wireTest, r *registration.Region) {
			w.write(tagged(w, taggedHeader{op: opWrite, last: true, stag: r.LocalKey()}, 64))
		},
		"large Write by the peer": func(w *wireTest, r *registration.Region) {
			frame := tagged(w, taggedHeader{op: opWrite, last: true, stag: r.LocalKey()}, 60_000)
			// Send the header first, so that the payload is received directly.
			w.write(frame[:taggedBytes])
			w.pollUntil("the header", func() bool {
				return w.conn.receiver.stage == stagePayload || w.conn.receiver.partial.have > 0
			})
			w.write(frame[taggedBytes:])
		},
		"small Read by the peer": func(w *wireTest, r *registration.Region) {
			w.write(w.readFrame(1, readRequest{length: 64, sourceSTag: r.LocalKey()}))
		},
		"large Read by the peer": func(w *wireTest, r *registration.Region) {
			w.write(w.readFrame(1, readRequest{length: uint32(large), sourceSTag: r.LocalKey()}))
		},
		"Send by this side": func(w *wireTest, r *registration.Region) {
			local := rdma.Segment{Key: r.LocalKey(), Length: uint32(large)}
			request := rdma.SendRequest{Opcode: rdma.OpSend, Local: local}
			if err := w.conn.PostSend([]rdma.SendRequest{request}); err != nil {
				w.Fatal(err)
			}
		},
	} {
		for _, c := range []struct{ useCRC, inMemory bool }{
			{false, false}, {true, false}, {false, true}, {true, true},
		} {
			t.Run(name, func(t *testing.T) {
				own, peer := network.Stream(nil), network.Stream(nil)
				if c.inMemory {
					own, peer = memoryPair(t)
				} else {
					own, peer = tcpPair(t)
				}
				w := newWireTestOver(t, c.useCRC, own, peer)
				r := w.register(inaccessibleMemory(t, pages), allRights)
				if !r.Untrusted() {
					t.Fatal("imported memory is trusted")
				}
				use(w, r)
				err := w.awaitEnd()
				e := terminateOf(t, err)
				if e.Layer != layerRDMAP || e.Type != kindLocalCatastrophic || e.Remote {
					t.Errorf("ended with %v", e)
				}
				if !errors.Is(err, status.IOFailed) {
					t.Errorf("ended with %v", err)
				}
			})
		}
	}
}
