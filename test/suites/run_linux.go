// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// step is a command of a run.
type step struct {
	// command is a line for the shell, and is also what a developer types to repeat the step.
	command string
	// budget is how many seconds the processors should need for the step, 0 for no budget.
	budget float64
}

// outcome is what a step has done.
type outcome struct {
	step
	wall, processors time.Duration
	output           *bytes.Buffer // of a step that did not write to the terminal
	err              error
}

// stepTimeout ends a step that hangs. Go programs then print the stacks of their goroutines.
const stepTimeout = 40 * time.Minute

// run runs the step and writes its output to w.
func (s step) run(ctx context.Context, w io.Writer) outcome {
	o := outcome{step: s}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", s.command)
	shell.Stdout, shell.Stderr = w, w
	// The group is signaled as a whole: the shell would not pass a signal on.
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	shell.Cancel = func() error {
		signal := syscall.SIGTERM
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			signal = syscall.SIGQUIT
		}
		return syscall.Kill(-shell.Process.Pid, signal)
	}
	shell.WaitDelay = time.Minute

	begun := time.Now()
	o.err = shell.Run()
	o.wall = time.Since(begun)
	if state := shell.ProcessState; state != nil {
		o.processors = state.UserTime() + state.SystemTime()
	}
	if ctx.Err() != nil {
		o.err = fmt.Errorf("ended after %.0f s: %w", o.wall.Seconds(), context.Cause(ctx))
	}
	return o
}

// String describes the outcome in a line.
func (o outcome) String() string {
	text := fmt.Sprintf("%5.0f s, processors %5.0f s", o.wall.Seconds(), o.processors.Seconds())
	if o.budget > 0 {
		text += fmt.Sprintf(" of %4.0f s", o.budget)
	}
	return text + "  " + o.command
}

// runAll runs lanes of steps beside each other, and the steps of a lane one after the other. The
// first lane writes to w at once; the steps of other lanes do so when they have ended. The first
// step that fails ends the run: what it has printed is the last thing printed.
func runAll(ctx context.Context, w io.Writer, lanes ...[]step) ([]outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan outcome)
	ended := make(chan struct{})
	for i, lane := range lanes {
		go func() {
			defer func() { ended <- struct{}{} }()
			for _, s := range lane {
				var o outcome
				if i == 0 {
					fmt.Fprintf(w, "\n=== %s\n", s.command)
					o = s.run(ctx, w)
				} else {
					output := &bytes.Buffer{}
					o = s.run(ctx, output)
					o.output = output
				}
				outcomes <- o
				if o.err != nil {
					return
				}
			}
		}()
	}

	var done []outcome
	var failed *outcome
	for running := len(lanes); running > 0; {
		select {
		case <-ended:
			running--
		case o := <-outcomes:
			switch {
			case o.err == nil:
				if o.output != nil {
					fmt.Fprintf(w, "\n=== %s\n%s", o.command, o.output)
				}
				fmt.Fprintf(w, "=== %v\n", o)
				done = append(done, o)
			case failed == nil:
				failed = &o
				cancel()
			}
		}
	}
	if failed == nil {
		return done, nil
	}
	if failed.output != nil {
		fmt.Fprintf(w, "\n=== %s\n%s", failed.command, failed.output)
	}
	return done, fmt.Errorf("%w\nrepeat it with: %s", failed.err, failed.command)
}
