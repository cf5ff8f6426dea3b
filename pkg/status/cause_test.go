// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestEveryKnownCauseHasANameAndAText(t *testing.T) {
	for c, want := range map[status.Cause][2]string{
		status.CauseUnknown: {"other", "other"},
		5:                   {"EIO", "EIO (input/output error)"},
		28:                  {"ENOSPC", "ENOSPC (no space left on device)"},
		199:                 {"other", "other"},
		status.CauseTruncated: {"truncated",
			"truncated (the volume's file or device has become shorter)"},
		status.CauseVolumeFailed: {"volume_failed",
			"volume_failed (the volume has failed earlier; the target's log says why)"},
		1 << 31: {"other", "other"},
	} {
		if c.String() != want[0] || c.Error() != want[1] {
			t.Errorf("cause %d is %q, %q; want %q", uint32(c), c.String(), c.Error(), want)
		}
		if known := uint32(c) < uint32(status.CauseCount); c.Known() != known {
			t.Errorf("cause %d: Known is %v", uint32(c), !known)
		}
	}
}

func TestACauseMatchesItsErrorNumber(t *testing.T) {
	err := fmt.Errorf("write: %w: %w", status.IOFailed, status.Cause(syscall.EROFS))
	if !errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO) ||
		!errors.Is(err, status.IOFailed) || status.CodeOf(err) != status.IOFailed {
		t.Errorf("%v has code %v", err, status.CodeOf(err))
	}
	if errors.Unwrap(status.CauseTruncated) != nil || errors.Unwrap(status.CauseUnknown) != nil {
		t.Error("a cause that is no error number unwraps to one")
	}
}

func TestCauseOfFindsCausesAndErrorNumbers(t *testing.T) {
	for _, c := range []struct {
		err  error
		want status.Cause
	}{
		{nil, status.CauseUnknown},
		{status.IOFailed, status.CauseUnknown},
		{errors.New("odd"), status.CauseUnknown},
		{syscall.Errno(4000), status.CauseUnknown},
		{status.Errorf(status.IOFailed, "x: %w", syscall.ENOSPC), status.Cause(syscall.ENOSPC)},
		{&fs.PathError{Op: "open", Path: "/v", Err: syscall.EIO}, status.Cause(syscall.EIO)},
		{fmt.Errorf("x: %w", status.CauseTruncated), status.CauseTruncated},
	} {
		if got := status.CauseOf(c.err); got != c.want {
			t.Errorf("CauseOf(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

func TestParseErrnoKnowsErrorNumbersOnly(t *testing.T) {
	for name, want := range map[string]status.Cause{
		"ENOSPC": 28, "EHWPOISON": 133, "": 0, "other": 0, "truncated": 0, "IO_FAILED": 0,
	} {
		if got, ok := status.ParseErrno(name); got != want || ok != (want != 0) {
			t.Errorf("ParseErrno(%q) = %v, %v", name, uint32(got), ok)
		}
	}
}
