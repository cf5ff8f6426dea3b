// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// TestTheBufferOfARequestThatWasCutOffIsNotUsedAgain ends a volume while a silent relay has a
// write. Others wait for the write's buffer. If one of them put its data there, a relay that
// continues would write that to the block of the first.
func TestTheBufferOfARequestThatWasCutOffIsNotUsedAgain(t *testing.T) {
	const soon = 50 * time.Millisecond
	waits := client.Config{IOTimeout: testkit.Patience}
	fails := client.Config{IOTimeout: testkit.Patience, ReleaseTimeout: soon}
	reopens := client.Config{IOTimeout: testkit.Patience, ReleaseTimeout: soon,
		Reconnect: &retry.Policy{Total: retry.Within(testkit.Patience)}}
	givesUp := reopens
	givesUp.Reconnect = &retry.Policy{Attempts: retry.Times(1)}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	closes := func(v *client.Volume) { _ = v.Close(cancelled) }
	for name, c := range map[string]struct {
		config client.Config
		dies   bool                 // the relay's server
		end    func(*client.Volume) // nil if the volume ends by itself
		want   status.Code
	}{
		"Abort":                  {waits, false, (*client.Volume).Abort, status.Shutdown},
		"Close":                  {waits, false, closes, status.Shutdown},
		"Abort instead of again": {reopens, false, (*client.Volume).Abort, status.Shutdown},
		"Close instead of again": {reopens, false, closes, status.Shutdown},
		"Abort while it reopens": {reopens, true, (*client.Volume).Abort, status.Shutdown},
		"Close while it reopens": {reopens, true, closes, status.Shutdown},
		"a failure":              {fails, true, nil, status.ConnectionReset},
		"a failure to reopen":    {givesUp, true, nil, status.TimeOut},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSilentRelay(t)
			c.config.SyncDepth = 1
			v := r.openForBlocking(c.config)
			outcomes := make(chan error, 4)
			write := func(data string, blocks int, offset int64) {
				_, err := v.WriteAt(bytes.Repeat([]byte(data), blocks*testBlock), offset)
				outcomes <- err
			}
			go write("1", 1, 0)
			buffer := r.request().RequesterOffset
			for i := range int64(3) {
				go write("2", 2, (1+2*i)*testBlock)
			}
			awaitGoroutinesIn(t, "(*syncIO).acquire", 3)
			if c.dies {
				r.cancel()
			}
			if c.end != nil {
				if c.dies {
					awaitGoroutinesIn(t, "(*life).awaitSession", 1)
				}
				c.end(v)
			}
			for range cap(outcomes) {
				if err := <-outcomes; !errors.Is(err, c.want) {
					t.Errorf("a write ended with %v", err)
				}
			}
			if _, err := v.WriteAt(bytes.Repeat([]byte("3"), testBlock), 0); err == nil {
				t.Error("a volume without a session has written something")
			}
			kept := <-r.imported
			defer release(t, kept)
			expectContent(t, "after the end", kept, buffer, '1')
		})
	}
}

// awaitGoroutinesIn waits until so many goroutines, or more, are in a method of the client.
func awaitGoroutinesIn(t *testing.T, method string, count int) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	testkit.Eventually(t, method+" has been called", func() bool {
		all := string(stacks[:runtime.Stack(stacks, true)])
		return strings.Count(all, "/pkg/client."+method+"(") >= count
	})
}

// expectContent expects a block of one value in memory that the relay has imported.
func expectContent(t *testing.T, when string, m *memory.Region, offset uint64, want byte) {
	t.Helper()
	got := make([]byte, testBlock)
	if err := m.CopyOut(got, offset); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.Repeat([]byte{want}, testBlock)) {
		t.Errorf("%s, the buffer begins with %q, want %q", when, got[0], want)
	}
}

// TestACallTakesNoBufferInQuarantine loses a session while a call uses the only slot. The slot is
// then still in the memory that the relay has not released.
func TestACallTakesNoBufferInQuarantine(t *testing.T) {
	r := newSilentRelay(t)
	v := r.openForBlocking(client.Config{SyncDepth: 1, IOTimeout: testkit.Patience,
		ReleaseTimeout: 50 * time.Millisecond,
		Reconnect: &retry.Policy{Total: retry.Within(testkit.Patience),
			FirstPause: time.Millisecond}})
	giveBack := v.BorrowSlot()
	r.cut()
	<-r.started
	_, _ = r.consumers[0].Close(), r.producers[0].Close()
	r.consumers, r.producers = r.consumers[1:], r.producers[1:]
	testkit.Eventually(t, "the volume has been reopened",
		func() bool { return v.Reconnections().Count == 1 })
	giveBack()
	written := make(chan error, 1)
	go func() {
		_, err := v.WriteAt(bytes.Repeat([]byte("2"), testBlock), 0)
		written <- err
	}()
	request := r.request()
	former, current := <-r.imported, <-r.imported
	defer release(t, former)
	defer release(t, current)
	expectContent(t, "in quarantine", former, request.RequesterOffset, 0)
	expectContent(t, "in the new memory", current, request.RequesterOffset, '2')
	r.respond(request)
	if err := <-written; err != nil {
		t.Error(err)
	}
}
