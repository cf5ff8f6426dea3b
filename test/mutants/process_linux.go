// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxOutput is how much of a process's output is kept.
	maxOutput = 1 << 20
	// maxData bounds the memory of a process, because a mutant may allocate without end.
	maxData = 6 << 30
	// killPatience is how long a killed process may keep its output open.
	killPatience = 5 * time.Second
)

// run runs a command in dir, and returns what it has printed. After limit, it kills the command and
// what the command has started.
func run(ctx context.Context, limit time.Duration, dir string, environment []string,
	arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	command := exec.CommandContext(ctx, arguments[0], arguments[1:]...)
	command.Dir = dir
	command.Env = append(command.Environ(), environment...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	killGroup := func() error { return unix.Kill(-command.Process.Pid, unix.SIGKILL) }
	command.Cancel, command.WaitDelay = killGroup, killPatience
	var output boundedBuffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		return "", err
	}
	bound := unix.Rlimit{Cur: maxData, Max: maxData}
	if err := unix.Prlimit(command.Process.Pid, unix.RLIMIT_DATA, &bound, nil); err != nil {
		return "", errors.Join(err, killGroup(), command.Wait())
	}
	err := command.Wait()
	_ = killGroup() // processes that a test has left; there are none as a rule
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return string(output.text), err
}

// boundedBuffer keeps the beginning of what is written to it.
type boundedBuffer struct{ text []byte }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), maxOutput-len(b.text))]...)
	return len(p), nil
}
