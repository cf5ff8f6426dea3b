package tooltest_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/zc-relay/zc-relay/internal/tooltest"
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

// judge runs Require as the body of a test and returns the verdict.
func judge(tools ...string) string {
	r := &recorder{verdict: "unfinished"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tooltest.Require(r, tools...)
		r.verdict = "passed"
	}()
	<-done
	return r.verdict
}

func TestAMissingToolSkipsATestExceptInContinuousIntegration(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ci    string
		tools []string
		want  string
	}{
		{"", []string{"go", program}, "passed"},
		{"true", []string{"go", program}, "passed"},
		{"", []string{"go", "no-such-tool"}, "skipped"},
		{"true", []string{"go", "no-such-tool"}, "failed"},
		{"", []string{"/no/such/file"}, "skipped"},
		{"true", []string{"/no/such/file"}, "failed"},
	} {
		t.Setenv("CI", c.ci)
		if got := judge(c.tools...); got != c.want {
			t.Errorf("CI=%q, tools %q: the test %s, want it %s", c.ci, c.tools, got, c.want)
		}
	}
}
