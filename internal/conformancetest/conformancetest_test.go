package conformancetest_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/zc-relay/zc-relay/internal/conformancetest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// recorder is a test that records its verdict instead of reporting it.
type recorder struct {
	testing.TB
	verdict string
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(string, ...any) { r.end("skipped") }

func (r *recorder) Fatalf(string, ...any) { r.end("failed") }

func (r *recorder) end(verdict string) {
	r.verdict = verdict
	runtime.Goexit()
}

// judge runs SkipIfNotSupported as the body of a test and returns the verdict.
func judge(err error) string {
	r := &recorder{verdict: "unfinished"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conformancetest.SkipIfNotSupported(r, "open device", err)
		r.verdict = "passed"
	}()
	<-done
	return r.verdict
}

func TestOnlyNotSupportedSkipsATest(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "passed"},
		{status.NotSupported, "skipped"},
		{fmt.Errorf("open: %w", status.Errorf(status.NotSupported, "no such engine")), "skipped"},
		{errors.New("not supported"), "failed"},
		{status.NotFound, "failed"},
		{status.Errorf(status.IOFailed, "device does not answer"), "failed"},
	} {
		if got := judge(c.err); got != c.want {
			t.Errorf("error %v: the test %s, want it %s", c.err, got, c.want)
		}
	}
}
