// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package ibv

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestErrorsGiveSymbolicNameAndRemedy(t *testing.T) {
	for _, c := range []struct {
		errno unix.Errno
		code  status.Code
		texts []string
	}{
		{unix.EACCES, status.NotPermitted, []string{
			"do it", "EACCES", "permission denied", "/dev/infiniband",
		}},
		{unix.ENODEV, status.NotFound, []string{"ENODEV", "rdma link"}},
		{unix.ECONNREFUSED, status.ConnectionAborted, []string{"ECONNREFUSED"}},
		{unix.EIO, status.OperatingSystem, []string{"EIO"}},
	} {
		err := wrap("do it", c.errno)
		if !errors.Is(err, c.errno) || !errors.Is(err, c.code) {
			t.Errorf("error %q does not match %v and %v", err, c.errno, c.code)
		}
		for _, text := range c.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("error %q lacks %q", err, text)
			}
		}
	}
}

func TestLockedMemoryLimitIsExplained(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
		t.Fatal(err)
	}
	limited := before
	limited.Cur = min(before.Max, 64<<10)
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limited); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
			t.Error(err)
		}
	}()
	err := wrap("register memory", unix.ENOMEM)
	const hint = "RLIMIT_MEMLOCK allows 64 KiB"
	if !errors.Is(err, status.NoMemory) || !strings.Contains(err.Error(), hint) {
		t.Errorf("error %q does not match %v, or lacks %q", err, status.NoMemory, hint)
	}
}

func TestWorkStatusesHaveSymbolicNames(t *testing.T) {
	for s, want := range map[WorkStatus]string{
		WorkSuccess:       "IBV_WC_SUCCESS",
		WorkFlushed:       "IBV_WC_WR_FLUSH_ERR",
		WorkRemoteAccess:  "IBV_WC_REM_ACCESS_ERR",
		WorkRetryExceeded: "IBV_WC_RETRY_EXC_ERR",
		WorkGeneral:       "IBV_WC_GENERAL_ERR",
		99:                "IBV_WC_99",
	} {
		if got := s.String(); got != want {
			t.Errorf("status %d is %q, want %q", uint32(s), got, want)
		}
	}
}

func TestPathMTUsConvertBothWays(t *testing.T) {
	for code, bytes := range []int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096} {
		if code == 0 {
			continue
		}
		if mtuBytes(uint32(code)) != bytes || uint32(mtuOf(bytes)) != uint32(code) {
			t.Errorf("path MTU code %d is %d bytes, and %d bytes are code %d; want %d bytes",
				code, mtuBytes(uint32(code)), bytes, mtuOf(bytes), bytes)
		}
	}
}
