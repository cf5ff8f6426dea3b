// SPDX-License-Identifier: Apache-2.0

package testkit_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// skipper is a test that records its verdict instead of reporting it.
type skipper struct {
	testing.TB
	verdict string
}

func (s *skipper) Helper() {}

func (s *skipper) Skipf(string, ...any) { s.end("skipped") }

func (s *skipper) Fatalf(string, ...any) { s.end("failed") }

func (s *skipper) end(verdict string) {
	s.verdict = verdict
	runtime.Goexit()
}

// verdictOf runs the body of a test and returns its verdict.
func verdictOf(t *testing.T, body func(testing.TB)) string {
	s := &skipper{TB: t, verdict: "unfinished"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		body(s)
		s.verdict = "passed"
	}()
	<-done
	return s.verdict
}

func TestOnlyCompleteBuildsRunRepetitions(t *testing.T) {
	verdict := verdictOf(t, func(t testing.TB) { testkit.OnlyComplete(t, "another test") })
	if (verdict == "skipped") == testkit.IsComplete() {
		t.Errorf("the repetition %s; the build is complete: %v", verdict, testkit.IsComplete())
	}
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
		got := verdictOf(t, func(t testing.TB) { testkit.RequireTools(t, c.tools...) })
		if got != c.want {
			t.Errorf("CI=%q, tools %q: the test %s, want it %s", c.ci, c.tools, got, c.want)
		}
	}
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
		got := verdictOf(t, func(t testing.TB) {
			testkit.SkipIfNotSupported(t, "open device", c.err)
		})
		if got != c.want {
			t.Errorf("error %v: the test %s, want it %s", c.err, got, c.want)
		}
	}
}
