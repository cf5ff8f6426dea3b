// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(t.TempDir(), "script", "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Quit)
	return p
}

func TestAProgramIsAwaitedAndStopped(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	p := start(t, "echo > '"+file+"'; exec sleep 60")
	err := p.Await(testkit.Context(t), func() bool { _, err := os.Stat(file); return err == nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("a program that SIGTERM ended: %v", err)
	}
}

func TestTheEndOfAProgramTellsItsLastWords(t *testing.T) {
	p := start(t, "echo out of luck >&2; exit 3")
	err := p.Await(testkit.Context(t), func() bool { return false })
	if !errors.Is(err, errEarly) || !strings.Contains(err.Error(), "exit status 3") ||
		!strings.Contains(err.Error(), "out of luck") {
		t.Errorf("error is %v", err)
	}
	if err := p.Stop(); err == nil {
		t.Error("a program that failed was stopped in order")
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	p := start(t, "exec sleep 60")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Await(ctx, func() bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestOutputIsReturnedAlsoOfAProgramThatFails(t *testing.T) {
	output, err := Output(testkit.Context(t), "sh", "-c", "echo result; echo reason >&2; exit 1")
	if string(output) != "result\n" || err == nil || !strings.Contains(err.Error(), "reason") {
		t.Errorf("output is %q, error %v", output, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := Output(ctx, "sleep", "60"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled program gives %v", err)
	}
}

func TestCPUTimeGrowsWithWork(t *testing.T) {
	before, err := CPUTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// CPU time is counted in ticks, and a busy machine may grant less than one for a long time.
	testkit.Eventually(t, "the work has used CPU time", func() bool {
		for begin := time.Now(); time.Since(begin) < time.Millisecond; {
		}
		after, err := CPUTime(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return after > before
	})
	if _, err := CPUTime(-1); err == nil {
		t.Error("no process has used CPU time")
	}
}
