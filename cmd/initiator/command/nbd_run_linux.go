// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

// nbdRunFlags connect the gateway's life with that of other processes.
type nbdRunFlags struct {
	command        string
	printURI       bool
	exitWithParent bool
}

func (r *nbdRunFlags) add(f *pflag.FlagSet) {
	f.StringVar(&r.command, "run", "",
		"run this shell command with $uri, $unixsocket, $port and $exportname, end when it ends, "+
			"and exit with its code")
	f.BoolVar(&r.printURI, "print-uri", false,
		"print the URI of each export when the gateway is ready")
	f.BoolVar(&r.exitWithParent, "exit-with-parent", false,
		"end when the process that started this program has ended")
}

// errParentEnded is why a gateway with --exit-with-parent ends.
var errParentEnded = errors.New("the parent process has ended")

// watchParent calls stop when the parent process has ended, if asked for.
func (r *nbdRunFlags) watchParent(stop context.CancelCauseFunc) error {
	if !r.exitWithParent {
		return nil
	}
	ended, err := parentEnd()
	if err != nil {
		return fmt.Errorf("--exit-with-parent: %w", err)
	}
	go func() {
		<-ended
		stop(errParentEnded)
	}()
	return nil
}

// killDelay is how long a command may take to end after SIGTERM.
const killDelay = 5 * time.Second

// runningCommand is the command of --run.
type runningCommand struct {
	ended   chan error // gets its error, with its exit code
	running sync.WaitGroup
}

// wait waits until the command has ended.
func (r *runningCommand) wait() { r.running.Wait() }

// start runs the command, if there is one. The end of ctx ends it, and what it has started unless
// it may use the terminal: in a separate process group it could not read from that.
func (r *nbdRunFlags) start(ctx context.Context, cmd *cobra.Command,
	variables []string) *runningCommand {
	command := &runningCommand{ended: make(chan error, 1)}
	if r.command == "" {
		return command
	}
	shell := exec.CommandContext(ctx, "/bin/sh", "-c", r.command)
	shell.Stdin, shell.Stdout, shell.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(),
		cmd.ErrOrStderr()
	shell.Env = append(os.Environ(), variables...)
	apart := !output.IsTerminal(os.Stdin)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: apart}
	shell.Cancel = func() error {
		if apart {
			return syscall.Kill(-shell.Process.Pid, syscall.SIGTERM)
		}
		return shell.Process.Signal(syscall.SIGTERM)
	}
	shell.WaitDelay = killDelay
	command.running.Go(func() {
		err := shell.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code := exit.ExitCode()
			if state, ok := exit.Sys().(syscall.WaitStatus); ok && state.Signaled() {
				code = program.ExitSignal + int(state.Signal())
			}
			err = program.WithExitCode(code, fmt.Errorf("the command of --run has failed: %w", err))
		} else if shell.ProcessState != nil && shell.ProcessState.Success() {
			err = nil // although ctx has ended
		}
		command.ended <- err
	})
	return command
}
