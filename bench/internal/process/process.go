// SPDX-License-Identifier: Apache-2.0

// Package process runs the programs to measure.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopTimeout bounds the end of a program after SIGTERM.
const stopTimeout = 15 * time.Second

// tailLength is the number of bytes of a program's output that errors repeat.
const tailLength = 2000

// Process is a program that runs until it is stopped.
type Process struct {
	name  string
	cmd   *exec.Cmd
	log   string // where its standard error goes
	ended chan struct{}
	err   error // why it ended; valid after ended
}

// Start starts a program; its output goes to a file in directory.
func Start(directory, name string, command ...string) (*Process, error) {
	log, err := os.Create(filepath.Join(directory, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &Process{name: name, cmd: exec.Command(command[0], command[1:]...), log: log.Name(),
		ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// It must neither outlive this program nor receive the terminal's SIGINT before it does.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// ID returns the process id.
func (p *Process) ID() int { return p.cmd.Process.Pid }

// Stop ends the program, and returns an error unless it ends normally.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("%s did not exit within %v of SIGTERM%s", p.name, stopTimeout,
			p.lastOutput())
	}
	if p.err != nil && !endedBySIGTERM(p.cmd.ProcessState) {
		return fmt.Errorf("%s: %w%s", p.name, p.err, p.lastOutput())
	}
	return nil
}

// quitTimeout bounds the end of a program that exits by itself.
const quitTimeout = time.Second

// Quit ends a program that normally exits when its only client has disconnected. The exit code has
// no meaning.
func (p *Process) Quit() {
	select {
	case <-p.ended:
	case <-time.After(quitTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

func endedBySIGTERM(state *os.ProcessState) bool {
	s, ok := state.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGTERM
}

// Await waits until ready returns true. It fails if the program or ctx ends first.
func (p *Process) Await(ctx context.Context, ready func() bool) error {
	const interval = 10 * time.Millisecond
	for !ready() {
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended early: %w%s", p.name, errors.Join(p.err, errEarly),
				p.lastOutput())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w%s", p.name, context.Cause(ctx), p.lastOutput())
		case <-time.After(interval):
		}
	}
	return nil
}

var errEarly = errors.New("it must run until it is stopped")

// Log returns the output of the program so far, from standard output and standard error.
func (p *Process) Log() ([]byte, error) { return os.ReadFile(p.log) }

// lastOutput returns the end of the program's output, for errors.
func (p *Process) lastOutput() string {
	content, err := p.Log()
	if err != nil || len(content) == 0 {
		return ""
	}
	return "\n" + tail(content)
}

func tail(content []byte) string {
	if len(content) > tailLength {
		content = content[len(content)-tailLength:]
	}
	return strings.TrimSpace(string(content))
}

// Output runs a program to its end and returns its standard output, even if it fails.
func Output(ctx context.Context, command ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return stdout.Bytes(), fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err,
			tail(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}
