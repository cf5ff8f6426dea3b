package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestATargetThatWakesUpTooLateFindsNoWayToTheBuffer(t *testing.T) {
	const depth, size = 32, 128 << 10
	c := startChain(t, "disk=memory:64MiB")
	v, err := client.Open(testContext(t), client.Config{
		Provider: emulated.New(emulated.Options{Directory: filepath.Join(c.dir, "comch")}),
		Device:   emulated.DefaultHostDevice, Queues: 1, Depth: depth, BufferSize: size,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	if _, err := v.WriteAt(bytes.Repeat([]byte{0xEE}, depth*size), 0); err != nil {
		t.Fatal(err)
	}
	c.target.signal(syscall.SIGSTOP)
	eventually(t, "every thread of the target has stopped", c.target.stopped)
	q := v.Queue(0)
	for i := range uint64(depth) {
		if err := q.Submit(&client.Request{Type: iomsg.Read, Length: size, Offset: i * size, Memory: i * size, Tag: i}); err != nil {
			t.Fatal(err)
		}
	}
	q.Flush()
	failed := 0
	results := make([]client.Result, depth)
	eventually(t, "every read has failed", func() bool {
		for _, r := range results[:q.Poll(results)] {
			if failed++; r.Code == status.Success {
				t.Error("a read of a stopped target succeeded")
			}
		}
		return failed == depth
	})
	want := bytes.Repeat([]byte{0x11}, len(v.Memory()))
	copy(v.Memory(), want)
	c.target.signal(syscall.SIGCONT)
	c.target.awaitLog("session ended") // it has found its connections gone
	time.Sleep(100 * time.Millisecond)
	if !bytes.Equal(v.Memory(), want) {
		t.Error("the target has written into a buffer that was given back")
	}
}

// stopped reports whether no thread of a process runs any more.
func (p *process) stopped() bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		_, state, _ := strings.Cut(string(text), ") ")
		if !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}
