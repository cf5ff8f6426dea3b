// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// awaitDisconnected polls the side until its connection ends, and returns the status of
// OpDisconnected.
func (s *side) awaitDisconnected(t *testing.T) rdma.CompletionStatus {
	t.Helper()
	var completions [16]rdma.Completion
	for deadline := time.Now().Add(testkit.Patience); time.Now().Before(deadline); {
		for _, c := range completions[:s.queue.Poll(completions[:])] {
			if c.Opcode == rdma.OpDisconnected {
				s.disconnected = true
				return c.Status
			}
		}
	}
	t.Fatal("the connection did not end")
	panic("unreachable")
}

func TestPeerCloseWhileSendingIsOrderly(t *testing.T) {
	for range 10 {
		t.Run("while sending", func(t *testing.T) {
			l := newLink(t, false)
			for range 8 {
				err := l.x.conn.PostSend([]rdma.SendRequest{{
					Opcode: rdma.OpWrite, Local: l.x.segment(0, 1<<20),
					RemoteAddress: l.y.memory.Base(), RemoteKey: l.y.memory.RemoteKey(),
				}})
				if err != nil {
					t.Fatal(err)
				}
			}
			l.x.conn.Flush()
			l.y.conn.Close()
			l.y.awaitDisconnected(t)
			outcome := l.x.awaitDisconnected(t)
			if err := l.x.conn.Err(); outcome != rdma.StatusSuccess || err != nil {
				t.Errorf("an orderly end by the peer is reported as %v, %v", outcome, err)
			}
		})
	}
}

func TestAResetDropsWhatWasSent(t *testing.T) {
	l := newLink(t, false)
	err := l.x.conn.PostSend([]rdma.SendRequest{{
		Opcode: rdma.OpWrite, Local: l.x.segment(0, 1<<20),
		RemoteAddress: l.y.memory.Base(), RemoteKey: l.y.memory.RemoteKey(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.x.conn.Flush()
	rdma.Reset(l.x.conn)
	l.x.awaitDisconnected(t)
	l.y.awaitDisconnected(t)
	if err := l.y.conn.Err(); !errors.Is(err, status.ConnectionReset) {
		t.Errorf("the peer sees %v instead of a reset", err)
	}
	if err := l.x.conn.Err(); err != nil {
		t.Errorf("the side that has reset the connection says that it has failed: %v", err)
	}
}

func TestAbortAfterCloseTouchesNoDescriptor(t *testing.T) {
	var x, y rdma.Connection
	t.Run("open and close", func(t *testing.T) {
		l := newLink(t, false)
		x, y = l.x.conn, l.y.conn
	})
	// The files get the numbers of the descriptors that have been closed.
	dir := t.TempDir()
	var files []*os.File
	for i := range 16 {
		f, err := os.Create(filepath.Join(dir, string(rune('a'+i))))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	x.Abort()
	y.Abort()
	for _, f := range files {
		if info, err := f.Stat(); err != nil || info.Size() != 0 {
			t.Errorf("%s: %d bytes, %v", f.Name(), info.Size(), err)
		}
		_ = f.Close()
	}
}
