// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process is a running program.
type Process struct {
	Name   string
	Cmd    *exec.Cmd
	Stdout *Output
	Stderr *Output // where daemons log

	t     testing.TB
	ended chan struct{}
}

// Start starts a command. It collects the output, unless the command has a place for it. The
// process is killed at the end of the test if it still runs, and a test that has failed prints the
// end of the output.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Name: filepath.Base(cmd.Path), Cmd: cmd, Stdout: new(Output),
		Stderr: new(Output), t: t, ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.Stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.Stderr
	}
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = 10 * time.Second // for a child that outlives it and keeps the output open
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		p.Signal(syscall.SIGKILL)
		<-p.ended
		if t.Failed() {
			t.Logf("%v: %v\nstdout: %s\nstderr: %s", cmd, cmd.ProcessState, tail(p.Stdout),
				tail(p.Stderr))
		}
	})
	return p
}

func tail(o *Output) string {
	const most = 8000
	s := o.String()
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// Signal sends a signal, if the process still runs.
func (p *Process) Signal(s os.Signal) { _ = p.Cmd.Process.Signal(s) }

// Ended returns a channel that is closed when the process has ended and its output is complete.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// HasEnded reports whether the process has ended and its output is complete.
func (p *Process) HasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Wait waits for the process to exit and returns its exit code, or -1 if a signal killed it.
func (p *Process) Wait() int {
	p.t.Helper()
	Receive(p.t, p.Name+" exits", p.ended)
	return p.Cmd.ProcessState.ExitCode()
}

// IsKilledBy reports whether a signal has ended the process.
func (p *Process) IsKilledBy(s syscall.Signal) bool {
	if !p.HasEnded() {
		return false
	}
	status, ok := p.Cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == s
}

// Terminate sends SIGTERM and expects exit code 0.
func (p *Process) Terminate() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 0 {
		p.t.Errorf("%s exited with %d after SIGTERM", p.Name, code)
	}
}

// Kill kills the process and waits for its end.
func (p *Process) Kill() {
	p.t.Helper()
	p.Signal(syscall.SIGKILL)
	p.Wait()
}

// HasLogged reports whether the log of the process contains text.
func (p *Process) HasLogged(text string) bool { return p.Stderr.Contains(text) }

// AwaitLog waits until the log of the process contains text, and fails the test if the process ends
// without it.
func (p *Process) AwaitLog(text string) {
	p.t.Helper()
	if !p.AwaitLogOrEnd(text) {
		p.t.Fatalf("%s exited before it logged %q", p.Name, text)
	}
}

// AwaitLogOrEnd waits until the log of the process contains text, or the process has ended. It
// reports whether the log contains it.
func (p *Process) AwaitLogOrEnd(text string) (found bool) {
	p.t.Helper()
	Eventually(p.t, fmt.Sprintf("%s logs %q", p.Name, text), func() bool {
		// Only what is read after the end is all that there is.
		hasEnded := p.HasEnded()
		found = p.HasLogged(text)
		return found || hasEnded
	})
	return found
}

// Stop sends SIGSTOP and waits until every thread of the process has stopped.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGSTOP)
	Eventually(p.t, p.Name+" has stopped", func() bool { return p.hasStopped() || p.HasEnded() })
	if p.HasEnded() {
		p.t.Fatalf("%s exited before it was stopped", p.Name)
	}
}

// Continue lets a process that has stopped run again.
func (p *Process) Continue() { p.Signal(syscall.SIGCONT) }

func (p *Process) hasStopped() bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Cmd.Process.Pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		_, state, _ := strings.Cut(string(text), ") ")
		if !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// Descriptors returns how many files the process has open.
func (p *Process) Descriptors() int {
	p.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(entries)
}
