// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAFileOfTheCallerIsMappedAndCanBeLent(t *testing.T) {
	for name, seals := range map[string]int{"without seals": 0,
		"with all seals": unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL} {
		t.Run(name, func(t *testing.T) {
			fd := memfd(t, 8192, seals)
			r, err := memory.Map(fd, 8192)
			if err != nil {
				t.Fatal(err)
			}
			if r.Untrusted() || !r.Mapped() || r.Len() != 8192 || r.Base() != address(r.Bytes()) ||
				r.Descriptor() == fd {
				t.Errorf("the region has %d bytes, untrusted %v", r.Len(), r.Untrusted())
			}
			copy(r.Bytes()[4096:], "owner")
			imported := importOf(t, lend(t, r)) // a peer accepts it
			got := make([]byte, 5)
			if err := imported.CopyOut(got, 4096); err != nil || string(got) != "owner" {
				t.Errorf("the peer finds %q, %v", got, err)
			}
			closeRegion(t, imported)
			if err := unix.Ftruncate(fd, 4096); !errors.Is(err, unix.EPERM) {
				t.Errorf("the file can shrink: %v", err)
			}
			closeRegion(t, r)
			if err := unix.Close(fd); err != nil {
				t.Errorf("the caller's descriptor is closed: %v", err)
			}
		})
	}
}

func TestAFileThatPeersWouldRejectIsNotMapped(t *testing.T) {
	plain, err := unix.MemfdCreate("plain", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(plain, 8192); err != nil {
		t.Fatal(err)
	}
	good := memfd(t, 8192, 0)
	for name, c := range map[string]struct {
		fd     int
		length uint64
		want   status.Code
	}{
		"that cannot be sealed": {plain, 8192, status.InvalidValue},
		"that is too short":     {good, 8193, status.InvalidValue},
		"that is empty":         {good, 0, status.TooBig},
		"that does not exist":   {-1, 1, status.InvalidValue},
	} {
		r, err := memory.Map(c.fd, c.length)
		if err == nil {
			closeRegion(t, r)
		}
		if !errors.Is(err, c.want) {
			t.Errorf("a file %s: %v", name, err)
		}
	}
	if err := errors.Join(unix.Close(plain), unix.Close(good)); err != nil {
		t.Error(err)
	}
}

func TestARegionHasOneUserOrOnesThatShareIt(t *testing.T) {
	r := memory.Wrap(make([]byte, 8))
	claim := func(alone, succeeds bool) func() {
		t.Helper()
		release, err := r.Claim(alone)
		if (err == nil) != succeeds || err != nil && !errors.Is(err, status.InUse) {
			t.Fatalf("claim alone %v: %v", alone, err)
		}
		return release
	}
	first := claim(false, true)
	second := claim(false, true)
	claim(true, false)
	first()
	first() // has no effect
	claim(true, false)
	second()
	alone := claim(true, true)
	claim(true, false)
	claim(false, false)
	alone()
	claim(false, true)
}
