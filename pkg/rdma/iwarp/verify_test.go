// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// damageCase is a frame that arrives damaged.
type damageCase struct {
	name    string
	payload int
	// frames returns valid frames that come first, and the frame to damage. Valid ones may change
	// memory from offset 4096 on.
	frames func(w *wireTest, payload []byte) (before, frame []byte)
}

var damageCases = []damageCase{
	{"Write", 5, func(w *wireTest, payload []byte) (before, frame []byte) {
		return nil, w.writeFrame(4096, payload)
	}},
	{"second segment of a Write", 5, func(w *wireTest, payload []byte) (before, frame []byte) {
		h := taggedHeader{op: opWrite, stag: w.memory.LocalKey(), offset: 4096}
		before = w.frame(h.append(nil, 4), payload[:4])
		h.last, h.offset = true, 4100
		return before, w.frame(h.append(nil, len(payload)), payload)
	}},
	{"Send", 5, func(w *wireTest, payload []byte) (before, frame []byte) {
		return nil, w.sendFrame(1, payload)
	}},
	{"Send with solicited event", 5, func(w *wireTest, payload []byte) (before, frame []byte) {
		h := untaggedHeader{op: opSendSolicited, last: true, sequence: 1}
		return nil, w.frame(h.append(nil, len(payload)), payload)
	}},
	{"second segment of a Send", 5, func(w *wireTest, payload []byte) (before, frame []byte) {
		h := untaggedHeader{op: opSend, sequence: 1}
		before = w.frame(h.append(nil, 4), payload[:4])
		h.last, h.offset = true, 4
		return before, w.frame(h.append(nil, len(payload)), payload)
	}},
	{"Read Request", 0, func(w *wireTest, _ []byte) (before, frame []byte) {
		return nil, w.readFrame(1, readRequest{sinkSTag: 7, length: 8,
			sourceSTag: w.memory.LocalKey()})
	}},
	{"Read Response", 5, func(w *wireTest, payload []byte) (before, frame []byte) {
		w.post(rdma.OpRead, 1, 4096, len(payload))
		h := taggedHeader{
			op: opReadResponse, last: true, stag: parseReadRequest(w.readFPDU()).sinkSTag,
		}
		return nil, w.frame(h.append(nil, len(payload)), payload)
	}},
	{"Terminate", 0, func(w *wireTest, _ []byte) (before, frame []byte) {
		return nil, appendTerminate(nil, violationNoReceive, w.sendFrame(1, nil), true)
	}},
	{"large Write", 60_001, func(w *wireTest, payload []byte) (before, frame []byte) {
		return nil, w.writeFrame(4096, payload)
	}},
	{"large Send", 60_001, func(w *wireTest, payload []byte) (before, frame []byte) {
		return nil, w.sendFrame(1, payload)
	}},
	{"large Read Response", 60_001, func(w *wireTest, payload []byte) (before, frame []byte) {
		w.post(rdma.OpRead, 1, 4096, len(payload))
		h := taggedHeader{
			op: opReadResponse, last: true, stag: parseReadRequest(w.readFPDU()).sinkSTag,
		}
		return nil, w.frame(h.append(nil, len(payload)), payload)
	}},
}

// TestDamagedFramesChangeNothing flips bits of each kind of frame in transit: every bit of a small
// frame's header, one bit of each byte behind it, and some bits of large frames. Whatever a bit
// means, the frame and all that follows it have no effect.
func TestDamagedFramesChangeNothing(t *testing.T) {
	for _, c := range damageCases {
		t.Run(c.name, func(t *testing.T) {
			_, frame := c.frames(newWireTest(t, true), make([]byte, c.payload))
			header := int(headerBytes[frame[3]&rdmapOpcodeOf])
			for position := range len(frame) {
				bits := []int{position % 8}
				inside := position > header && position < len(frame)-maxTrailer
				switch {
				case len(frame) < 1000 && position < header:
					bits = []int{0, 1, 2, 3, 4, 5, 6, 7}
				case len(frame) > 1000 && inside && position%9973 != 0:
					continue
				}
				for _, bit := range bits {
					checkDamage(t, c, position, bit)
				}
			}
		})
	}
}

func checkDamage(t *testing.T, c damageCase, position, bit int) {
	w := newWireTest(t, true)
	defer w.tearDown()
	name := fmt.Sprintf("byte %d, bit %d", position, bit)
	// A damaged STag finds memory.
	for _, difference := range []uint32{1 << 31, 1 << 26} {
		w.registerAs(w.memory.LocalKey()^difference, memory.Wrap(make([]byte, 32<<10)))
	}
	w.receive(5, 4096, 100_000)
	payload := bytes.Repeat([]byte("damaged "), c.payload/8+1)[:c.payload]
	before, frame := c.frames(w, payload)
	w.write(w.writeFrame(0, []byte("legitimate")), before)
	w.pollUntil("the valid frames", func() bool {
		r := &w.conn.receiver
		return w.memory.Bytes()[0] != 0 && (len(before) == 0 || r.tagged.open || r.untagged.open)
	})
	want := w.allMemory()

	frame = bytes.Clone(frame)
	frame[position] ^= 1 << bit
	after := bytes.Join([][]byte{
		w.writeFrame(16384, []byte("after")), w.sendFrame(1, []byte("after")),
		w.readFrame(1, readRequest{length: 8, sourceSTag: w.memory.LocalKey()}),
	}, nil)
	if cut := len(frame) / 2; bit%2 == 0 {
		w.write(frame[:cut])
		w.poll()
		w.write(frame[cut:], after)
	} else {
		w.write(frame, after)
	}
	_ = w.peer.CloseWrite()
	err := w.awaitEnd()

	var terminate []byte
	var e *TerminateError
	if fpduBytes(frame) > len(frame)+len(after) {
		if errors.As(err, &e) || !errors.Is(err, status.ConnectionReset) {
			t.Errorf("%s: a frame that never ends is reported as %v", name, err)
		}
	} else {
		terminate = appendTerminate(nil, violationCRC, nil, true)
		if !errors.As(err, &e) || e.Remote || e.Layer != layerLLP || e.Code != violationCRC.code {
			t.Errorf("%s: ended with %v, want a CRC error", name, err)
		}
	}
	if got, err := io.ReadAll(w.peer); err != nil || !bytes.Equal(got, terminate) {
		t.Errorf("%s: the peer received %x, %v, want only a Terminate", name, got, err)
	}
	for _, completion := range w.completions {
		if completion.Status == rdma.StatusSuccess {
			t.Errorf("%s: %v completes successfully", name, completion.Opcode)
		}
	}
	for i, memory := range w.allMemory() {
		if !bytes.Equal(memory, want[i]) {
			t.Errorf("%s: memory %d was changed", name, i)
		}
	}
}

// registerAs registers memory under the given STag.
func (w *wireTest) registerAs(stag uint32, region *memory.Region) {
	w.Helper()
	w.device.Table.Rekey(w.register(region, allRights), stag)
}

// allMemory returns a copy of all memory that is registered on the device.
func (w *wireTest) allMemory() (copies [][]byte) {
	for _, r := range w.device.Table.Regions() {
		copies = append(copies, bytes.Clone(r.Bytes()))
	}
	return copies
}

// TestDamageInAnyPieceOfTheStreamIsFound damages one frame of a long stream that arrives in pieces
// of all sizes: the frames before it arrive, and nothing behind it does.
func TestDamageInAnyPieceOfTheStreamIsFound(t *testing.T) {
	const frames, damaged = 40, 23
	for _, size := range []int{1, 400, 1500, 7_000, 20_000, 65_000} {
		for _, piece := range []int{size/3 + 1, 65_536, 200_000} {
			w := newWireTest(t, true)
			want := bytes.Clone(w.memory.Bytes())
			var stream []byte
			for i := range frames {
				data := bytes.Repeat([]byte{byte(i + 1)}, size)
				frame := w.writeFrame(uint64(i*100), data)
				if i == damaged {
					frame[len(frame)/2] ^= 0x10
				}
				if i < damaged {
					copy(want[i*100:], data)
				}
				stream = append(stream, frame...)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for len(stream) > 0 {
					n := min(piece, len(stream))
					if _, err := w.peer.Write(stream[:n]); err != nil {
						return // the connection has ended
					}
					stream = stream[n:]
				}
			}()
			e := terminateOf(t, w.awaitEnd())
			if e.Layer != layerLLP || e.Code != violationCRC.code {
				t.Errorf("frames of %d bytes in pieces of %d: ended with %v", size, piece, e)
			}
			if !bytes.Equal(w.memory.Bytes(), want) {
				t.Errorf("frames of %d bytes in pieces of %d: memory differs", size, piece)
			}
			_ = w.peer.Close()
			<-done
		}
	}
}
