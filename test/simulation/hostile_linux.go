// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// hostileHost is a client that has opened a volume of its own, and writes garbage into all memory
// that it shares with the relay.
type hostileHost struct {
	process *process
	random  *rand.Rand // of the scheduler
	volume  *client.Volume
	absurd  *iomsg.Message // what it sends in place of its next request, unless nil
	shared  [][]byte       // mappings of every memory file that was passed
	left    bool
}

const scratchChannel = "scratch"

func (w *world) admitHostileHost() {
	if len(w.hostile) > 0 {
		return // its volume has one user
	}
	p := w.newProcess("hostile", relayAddress(0))
	h := &hostileHost{process: p, random: w.random}
	p.passed = h.share
	w.hostile = append(w.hostile, h)
	p.run(func(ctx context.Context) error {
		a := application{world: w, process: p, channel: scratchChannel}
		config := a.config()
		config.Provider = comchtest.Tamper(config.Provider, h.tamper)
		volume, err := client.Open(ctx, config)
		if err != nil {
			return err
		}
		w.mu.Lock()
		h.volume = volume
		w.mu.Unlock()
		<-ctx.Done()
		volume.Abort()
		return nil
	})
}

// share maps a memory file that has been passed to or from the host.
func (h *hostileHost) share(descriptor int) {
	var stat unix.Stat_t
	if h.left || unix.Fstat(descriptor, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	memory, err := unix.Mmap(descriptor, 0, int(stat.Size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err == nil {
		h.shared = append(h.shared, memory)
	}
}

// scribble changes some shared memory, or submits a request that makes no sense.
func (h *hostileHost) scribble() {
	if h.volume != nil && h.random.IntN(3) == 0 {
		queue := h.volume.Queue(0)
		h.absurd = &iomsg.Message{
			Type: iomsg.Type(h.random.IntN(16)), Flags: iomsg.Flags(h.random.Uint32()),
			IOSize: h.random.Uint32N(1 << 14), StorageOffset: h.random.Uint64N(1 << 24),
			RequesterOffset: h.random.Uint64N(1 << 20),
		}
		_ = queue.Submit(&client.Request{Type: client.Flush})
		queue.Ring()
		h.absurd = nil
		return
	}
	memory := h.shared[h.random.IntN(len(h.shared))]
	for range 1 + h.random.IntN(4) {
		at := h.random.IntN(len(memory) / 8)
		if h.random.IntN(2) == 0 {
			at = h.random.IntN(min(64, len(memory)/8)) // the indices are at the front
		}
		word := memory[at*8:][:8]
		switch h.random.IntN(3) {
		case 0:
			binary.LittleEndian.PutUint64(word, h.random.Uint64())
		case 1:
			changed := binary.LittleEndian.Uint32(word) + h.random.Uint32N(64)
			binary.LittleEndian.PutUint32(word, changed)
		default:
			word[h.random.IntN(8)] ^= 1 << h.random.IntN(8)
		}
	}
}

// tamper turns a request into the absurd one, if there is one.
func (h *hostileHost) tamper(message []byte) {
	if h.absurd == nil {
		return
	}
	var original iomsg.Message
	iomsg.Decode(message, &original)
	h.absurd.UserData = original.UserData
	iomsg.Encode(message, h.absurd)
}

// leave ends the host and releases what it has mapped.
func (h *hostileHost) leave(w *world) {
	if h.left {
		return
	}
	h.left = true
	for _, memory := range h.shared {
		_ = unix.Munmap(memory)
	}
	h.shared = nil
	w.kill(h.process)
	w.bury(h.process)
}

// strangers is how many connections a hostile network opens.
const strangers = 12

// admitHostileNetwork opens connections to the ports of a target. Some are silent, some send
// garbage, and some of these then half-close. One comes from the relay's machine and replays what
// the relay has sent on an RDMA connection.
func (w *world) admitHostileNetwork(target netip.Addr, seed uint64) {
	p := w.newProcess("stranger", netip.AddrFrom4([4]byte{10, 0, 9, 9}))
	w.strangers = append(w.strangers, p)
	p.run(func(ctx context.Context) error {
		random := rand.New(rand.NewPCG(seed, 4))
		for i := range strangers {
			port := pick(random, uint16(controlPort), uint16(rdmaPort))
			stream, err := p.host.Dial(ctx, p.address, netip.AddrPortFrom(target, port))
			if err != nil {
				continue
			}
			defer stream.Close()
			if i%3 == 0 {
				continue
			}
			garbage := make([]byte, 4+random.IntN(2000))
			for j := range garbage {
				garbage[j] = byte(random.Uint32())
			}
			if i%3 == 2 { // a length that looks right
				binary.BigEndian.PutUint32(garbage, 64)
			}
			_, _ = stream.Write(garbage)
			if i%2 == 0 {
				_ = stream.CloseWrite()
			}
		}
		<-ctx.Done()
		return nil
	})
	recording := w.internet.recording(target)
	if recording == nil {
		return
	}
	thief := w.newProcess("thief", relayAddress(0))
	w.strangers = append(w.strangers, thief)
	thief.run(func(ctx context.Context) error {
		stream, err := thief.host.Dial(ctx, thief.address, netip.AddrPortFrom(target, rdmaPort))
		if err != nil {
			return err
		}
		defer stream.Close()
		_, _ = stream.Write(recording)
		_ = stream.SetReadDeadline(time.Now().Add(time.Minute))
		var reply [mpaReplyBytes]byte
		if _, err := io.ReadFull(stream, reply[:]); err == nil &&
			bytes.HasPrefix(reply[:], []byte(mpaReplyKey)) && reply[mpaFlags]&mpaReject == 0 {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.violate("the target accepts an RDMA connection with a token that was used before")
		}
		<-ctx.Done()
		return nil
	})
}

// An MPA reply begins with a key of 16 bytes, flags, the revision, and the length of the private
// data (RFC 5044 section 7.1.1).
const (
	mpaReplyKey   = "MPA ID Rep Frame"
	mpaReplyBytes = 20
	mpaFlags      = 16
	mpaReject     = 0x20
)
