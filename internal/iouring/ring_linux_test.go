// SPDX-License-Identifier: Apache-2.0

package iouring

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// newTestRing makes a ring, or skips the test where the kernel has none.
func newTestRing(t *testing.T, config Config) *Ring {
	r, err := New(config)
	if errors.Is(err, status.NotSupported) || errors.Is(err, status.NotPermitted) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func variants() map[string]Config {
	return map[string]Config{
		"64 bytes":    {Entries: 8},
		"128 bytes":   {Entries: 8, LargeEntries: true},
		"cooperative": {Entries: 8, Cooperative: true},
	}
}

func TestEntriesComplete(t *testing.T) {
	for name, config := range variants() {
		t.Run(name, func(t *testing.T) {
			r := newTestRing(t, config)
			var found [8]Completion
			next := uint64(0)
			for range 1000 { // many times around both rings
				for i := range uint64(5) {
					if !r.PushNop(next + i) {
						t.Fatal("no room")
					}
				}
				if err := r.Enter(5); err != nil {
					t.Fatal(err)
				}
				if n := r.Reap(found[:]); n != 5 {
					t.Fatalf("%d completions, want 5", n)
				}
				for _, c := range found[:5] {
					if c != (Completion{UserData: next}) {
						t.Fatalf("found %+v, want that of entry %d", c, next)
					}
					next++
				}
			}
			if r.HasCompletions() {
				t.Error("there are more completions")
			}
		})
	}
}

func TestAFullRingHasNoRoomUntilEnter(t *testing.T) {
	r := newTestRing(t, Config{Entries: 8})
	for i := range uint64(8) {
		if !r.PushNop(i) {
			t.Fatalf("no room for entry %d", i)
		}
	}
	if r.PushNop(8) || r.PushCommand(0, 0, 8) != nil {
		t.Fatal("room for a ninth entry")
	}
	if err := r.Enter(8); err != nil {
		t.Fatal(err)
	}
	if !r.PushNop(8) {
		t.Fatal("no room after Enter")
	}
	var few [3]Completion
	for want := 8; want > 0; {
		n := r.Reap(few[:])
		if n == 0 || n > want {
			t.Fatalf("%d completions with %d left", n, want)
		}
		want -= n
	}
}

// A file whose driver knows no commands rejects one, which shows that it has arrived there.
func TestACommandReachesTheDriver(t *testing.T) {
	for name, config := range variants() {
		t.Run(name, func(t *testing.T) {
			r := newTestRing(t, config)
			file, err := os.Open("/dev/zero")
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			command := r.PushCommand(int(file.Fd()), 1, 42)
			want := CommandSize
			if config.LargeEntries {
				want = LargeCommandSize
			}
			if len(command) != want {
				t.Fatalf("room for %d bytes, want %d", len(command), want)
			}
			if err := r.Enter(1); err != nil {
				t.Fatal(err)
			}
			var found [1]Completion
			if n := r.Reap(found[:]); n != 1 || found[0].UserData != 42 || found[0].Result >= 0 {
				t.Fatalf("found %d completions: %+v", n, found)
			}
		})
	}
}

func TestCompletionsMakeTheDescriptorReadable(t *testing.T) {
	r := newTestRing(t, Config{Entries: 4})
	readable := func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(r.Descriptor()), Events: unix.POLLIN}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
	if readable() {
		t.Error("readable without completions")
	}
	r.PushNop(1)
	if err := r.Enter(1); err != nil {
		t.Fatal(err)
	}
	if !readable() {
		t.Error("not readable with a completion")
	}
}

func TestErrorsSayWhatTheKernelLacks(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.ENOSYS: "has no io_uring", unix.EPERM: "switched off", unix.EINVAL: "Linux 5.19",
		unix.ENOMEM: "LimitMEMLOCK", unix.EMFILE: "refuses",
	} {
		if err := explain(errno); !strings.Contains(err.Error(), want) || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	for _, entries := range []int{0, -1, MaxEntries + 1} {
		if _, err := New(Config{Entries: entries}); !errors.Is(err, status.InvalidValue) {
			t.Errorf("%d entries: %v", entries, err)
		}
	}
}
