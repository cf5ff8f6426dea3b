// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// lateRelays is how often a relay is stopped until its client has timed out, and then continued.
var lateRelays = 3

// Block i of the volume holds original(i) before a try, and written(i) afterwards if the write to
// it was carried out. The application fills the buffers that it has back with poison.
func original(i int) byte { return byte(i) }
func written(i int) byte  { return 0x80 | byte(i) }

const poison = 0x55

// lateRelayConfig returns the configuration of a client that gives up on its relay soon.
func (c *chain) lateRelayConfig(depth int, size uint32) client.Config {
	config := c.clientConfig(depth)
	config.BufferSize = size
	config.IOTimeout, config.ReleaseTimeout = 200*time.Millisecond, 100*time.Millisecond
	config.Reconnect = &retry.Policy{Total: retry.Within(testkit.Patience),
		FirstPause: 10 * time.Millisecond, LongestPause: 100 * time.Millisecond}
	return config
}

func TestARelayThatContinuesTooLateSpoilsNothing(t *testing.T) {
	t.Parallel()
	const depth, size = 32, 64 << 10
	c := startObservedChain(t, "disk=memory:64MiB")
	config := c.clientConfig(depth)
	config.BufferSize, config.SyncDepth = size, 0
	checker, err := client.Open(testkit.Context(t), config)
	if err != nil {
		t.Fatal(err)
	}
	defer checker.Abort()
	content := make([]byte, depth*size)
	for try := range lateRelays {
		for i := range depth {
			copy(content[i*size:], bytes.Repeat([]byte{original(i)}, size))
		}
		if _, err := checker.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
		c.outlastRelay(depth, size)
		if _, err := checker.ReadAt(content, 0); err != nil {
			t.Fatal(err)
		}
		for i := range depth {
			block := content[i*size:][:size]
			if !bytes.Equal(block, bytes.Repeat([]byte{original(i)}, size)) &&
				(i%2 == 0 || !bytes.Equal(block, bytes.Repeat([]byte{written(i)}, size))) {
				t.Errorf("try %d: block %d holds data that was never submitted for it, "+
					"from %#x to %#x", try, i, block[0], block[size-1])
			}
		}
	}
}

// outlastRelay reads the even blocks and writes the odd ones while the relay is stopped, uses the
// buffers again once it has them back, and continues the relay.
func (c *chain) outlastRelay(depth int, size uint64) {
	t := c.t
	t.Helper()
	v, err := client.Open(testkit.Context(t), c.lateRelayConfig(depth, uint32(size)))
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	q := v.Queue(0)
	for i := range depth {
		copy(q.Memory()[uint64(i)*size:], bytes.Repeat([]byte{written(i)}, int(size)))
	}
	c.relay.Stop()
	for i := range uint64(depth) {
		kind := client.Read
		if i%2 == 1 {
			kind = client.Write
		}
		if err := q.Submit(&client.Request{Type: kind, Length: uint32(size), Offset: i * size,
			Memory: i * size, Tag: i}); err != nil {
			t.Fatal(err)
		}
	}
	q.Ring()
	reusable := make([]bool, depth)
	results := make([]client.Result, depth)
	for failed := 0; failed < depth; {
		testkit.Eventually(t, "a request fails", func() bool {
			n := q.Poll(results)
			for _, r := range results[:n] {
				reusable[r.Tag] = !r.Quarantined
				if r.Code == status.Success {
					t.Error("a request succeeded while the relay was stopped")
				}
			}
			failed += n
			return n > 0
		})
	}
	used := q.Memory()
	for i, reusable := range reusable {
		if reusable {
			copy(used[uint64(i)*size:][:size], bytes.Repeat([]byte{poison}, int(size)))
		}
	}
	c.relay.Continue()
	var submitted error
	testkit.Eventually(t, "the queue has a session, for which the former one had to end", func() bool {
		submitted = q.Submit(&client.Request{Type: client.Read, Length: uint32(size)})
		return !errors.Is(submitted, status.Again)
	})
	for i, reusable := range reusable {
		if reusable && bytes.Count(used[uint64(i)*size:][:size], []byte{poison}) != int(size) {
			t.Errorf("buffer %d was written after the application had it back", i)
		}
	}
	if !errors.Is(submitted, client.ErrMemoryReplaced) {
		t.Errorf("a read into memory that the relay had kept: %v", submitted)
	}
	if fresh := q.SwitchMemory(); bytes.Count(fresh, []byte{0}) != len(fresh) {
		t.Error("the new memory was written")
	}
}

func TestBlockingMethodsOutlastAStoppedRelay(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	c := startObservedChain(t, "disk=memory:64MiB")
	config := c.lateRelayConfig(0, 64<<10)
	config.Queues, config.Depth, config.SyncDepth = 0, 0, 4
	config.IOTimeout = time.Second
	core, logged := observer.New(zap.WarnLevel)
	config.Logger = zap.New(core)
	v, err := client.Open(testkit.Context(t), config)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	for try := range byte(2) {
		c.relay.Stop()
		want := bytes.Repeat([]byte{try + 1}, size)
		wrote := make(chan error, 1)
		go func() {
			_, err := v.WriteAt(want, 0)
			wrote <- err
		}()
		testkit.Eventually(t, "the client gives up on the relay", func() bool {
			return logged.FilterMessageSnippet("has not released the data memory").Len() > int(try)
		})
		c.relay.Continue()
		if err := <-wrote; err != nil {
			t.Fatalf("write: %v", err)
		}
		got := make([]byte, size)
		if _, err := v.ReadAt(got, 0); err != nil {
			t.Fatalf("read: %v", err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("try %d: the volume does not hold what was written", try)
		}
	}
}
