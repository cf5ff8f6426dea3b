// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryKnownCodeHasItsOwnName(t *testing.T) {
	seen := map[string]bool{}
	for c := status.Success; int(c) < status.CodeCount; c++ {
		name := c.String()
		if name == "" || strings.HasPrefix(name, "CODE_") || seen[name] {
			t.Errorf("code %d has name %q", uint32(c), name)
		}
		seen[name] = true
	}
	if got := status.Code(99).String(); got != "CODE_99" {
		t.Errorf("an unknown code prints as %q", got)
	}
}

func TestNumbersMatchDOCA(t *testing.T) {
	for code, want := range map[status.Code]uint32{
		status.Success: 0, status.Again: 5, status.InvalidValue: 6, status.TimeOut: 9,
		status.ConnectionReset: 11, status.IOFailed: 17, status.Unexpected: 22,
		status.TooBig: 27, status.Skipped: 30,
	} {
		if uint32(code) != want {
			t.Errorf("%v is %d, want %d", code, uint32(code), want)
		}
	}
}

func TestErrorsMatchByCodeAndByCause(t *testing.T) {
	cause := syscall.EIO
	err := fmt.Errorf("flush: %w", status.Errorf(status.IOFailed, "fdatasync %q: %w", "/v", cause))
	if !errors.Is(err, status.IOFailed) || errors.Is(err, status.Again) {
		t.Errorf("%v does not match by its code alone", err)
	}
	if !errors.Is(err, cause) {
		t.Errorf("%v lost its cause", err)
	}
	if want := `flush: fdatasync "/v": input/output error [IO_FAILED]`; err.Error() != want {
		t.Errorf("text is %q, want %q", err, want)
	}
}

func TestATextHasTheCodeOfItsCause(t *testing.T) {
	inner := status.Errorf(status.BadConfig, "off here")
	for err, want := range map[error]string{
		status.Errorf(status.BadConfig, "read: %w", inner):    "read: off here [BAD_CONFIG]",
		status.Errorf(status.NotConnected, "read: %w", inner): "read: off here [BAD_CONFIG]",
		status.Errorf(status.Again, "%w: mend it", inner):     "off here [BAD_CONFIG]: mend it",
		status.Errorf(status.Again, "%w: %w", status.ErrClosed, inner): "closed by this program: " +
			"off here [BAD_CONFIG]",
		status.Errorf(status.Again, "core [ALL] [3"): "core [ALL] [3 [AGAIN]",
		status.Errorf(status.Again, "%w", errors.Join(inner, errors.New("b"))): "off here " +
			"[BAD_CONFIG]\nb [AGAIN]",
	} {
		if err.Error() != want {
			t.Errorf("text is %q, want %q", err, want)
		}
	}
	err := status.Errorf(status.NotConnected, "read: %w", inner)
	if status.CodeOf(err) != status.NotConnected || !errors.Is(err, status.BadConfig) {
		t.Errorf("the code of %q is %v", err, status.CodeOf(err))
	}
}

func TestOneCodeKeepsThatOfTheCause(t *testing.T) {
	for text, want := range map[string]string{
		"a [CONNECTION_RESET] [NOT_CONNECTED] [CONNECTION_RESET]: b [IN_USE]": "a: b [IN_USE]",
		"a [AUTHENTICATION] [NOT_CONNECTED]: b":                               "a [AUTHENTICATION]: b",
		"a [CODE_77] [UNKNOWN]\nb [UNKNOWN]":                                  "a [CODE_77]\nb [UNKNOWN]",
		"the cores [ALL] [IN_USE]":                                            "the cores [ALL] [IN_USE]",
		"[CODE_] [CODE_x] [":                                                  "[CODE_] [CODE_x] [",
		"[IN_USE] [FULL]":                                                     "[IN_USE] [FULL]",
		"":                                                                    "",
	} {
		if got := status.OneCode(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestTextOmitsCodesAndNothingElse(t *testing.T) {
	inner := status.Errorf(status.NotConnected, "gone")
	for want, err := range map[string]error{
		"gone":                              inner,
		"read: gone":                        status.Errorf(status.Again, "read: %w", inner),
		"target: gone: start it first":      fmt.Errorf("target: %w: start it first", inner),
		"dial [::1]:7470 [refused], [], [A": errors.New("dial [::1]:7470 [refused], [], [A"),
		"gone\nread [disk]":                 errors.Join(inner, errors.New("read [disk]")),
	} {
		if got := status.Text(err); got != want {
			t.Errorf("text of %q is %q, want %q", err, got, want)
		}
	}
}

func TestCodeOfFindsTheClosestCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want status.Code
	}{
		{nil, status.Success},
		{status.Again, status.Again},
		{fmt.Errorf("x: %w", status.TooBig), status.TooBig},
		{context.DeadlineExceeded, status.TimeOut},
		{context.Canceled, status.Shutdown},
		{&fs.PathError{Op: "open", Path: "/v", Err: syscall.ENOENT}, status.NotFound},
		{&fs.PathError{Op: "open", Path: "/v", Err: syscall.EACCES}, status.NotPermitted},
		{syscall.ENOSPC, status.IOFailed},
		{syscall.ECONNRESET, status.ConnectionReset},
		{syscall.EMFILE, status.OperatingSystem},
		{errors.New("odd"), status.Unknown},
	} {
		if got := status.CodeOf(c.err); got != c.want {
			t.Errorf("CodeOf(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

func TestErrorsMatchThoseOfPackageOS(t *testing.T) {
	for _, c := range []struct {
		err, matches, other error
		code                status.Code
	}{
		{status.ErrClosed, os.ErrClosed, os.ErrPermission, status.Shutdown},
		{status.ErrReadOnly, os.ErrPermission, os.ErrClosed, status.NotPermitted},
	} {
		err := fmt.Errorf("volume: %w", c.err)
		if !errors.Is(err, c.matches) || !errors.Is(err, c.code) || errors.Is(err, c.other) ||
			status.CodeOf(err) != c.code {
			t.Errorf("%v has code %v, or matches the wrong errors", err, status.CodeOf(err))
		}
	}
}

func TestContextErrorMatchesTheEndAndTheCause(t *testing.T) {
	cause := errors.New("the user is impatient")
	expired, cancel := context.WithDeadlineCause(t.Context(), time.Unix(0, 0), cause)
	defer cancel()
	plain, end := context.WithCancel(t.Context())
	end()
	if err := status.ContextError(expired); !errors.Is(err, cause) ||
		!errors.Is(err, context.DeadlineExceeded) || err.Error() != cause.Error() ||
		status.CodeOf(err) != status.TimeOut {
		t.Errorf("a context with a cause has ended with %v", err)
	}
	if err := status.ContextError(plain); err != context.Canceled {
		t.Errorf("a context has ended with %v", err)
	}
	if err := status.ContextError(t.Context()); err != nil {
		t.Errorf("a context that has not ended has ended with %v", err)
	}
}
