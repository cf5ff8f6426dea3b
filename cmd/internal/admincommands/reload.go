package admincommands

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/admin"
)

func newReloadCommand(daemon Daemon) *cobra.Command {
	var o options
	var pid int
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make a running relay or target read its configuration and certificates again",
		Long: `reload does what SIGHUP does, and reports the outcome, with the settings that need a
restart. What cannot be applied changes nothing. With --pid it needs no admin
listener: it sends SIGHUP to the daemon, whose log has the outcome.`,
		Args: cobra.NoArgs,
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		_ []string) error {
		outcome, sentence := Outcome{Operation: operationReload}, "reloaded"
		r, err := client.Reload(ctx)
		if err != nil {
			return outcome.Print(cmd, o.output, "", failure(err))
		}
		outcome.Reload = &r
		switch {
		case r.Error != "":
			err = fmt.Errorf("the reload failed: %s", r.Error)
		case r.Ended == nil:
			sentence = "the reload is in progress: status shows its outcome"
		case len(r.RestartPending) > 0:
			sentence += "; a restart is needed for: " + strings.Join(r.RestartPending, ", ")
		}
		return outcome.Print(cmd, o.output, sentence, err)
	})
	const pidFlag = "pid"
	cmd.Flags().IntVar(&pid, pidFlag, 0, "the `process` of the daemon, as $MAINPID of its unit")
	cmd.MarkFlagsMutuallyExclusive(adminFlag, pidFlag)
	cmd.MarkFlagsMutuallyExclusive(configFlag, pidFlag)
	ask := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, operands []string) error {
		if !cmd.Flags().Changed(pidFlag) {
			return ask(cmd, operands)
		}
		outcome := Outcome{Operation: operationReload}
		return outcome.Print(cmd, o.output, "", hangUp(pid))
	}
	return cmd
}

// hangUp sends SIGHUP to a process.
func hangUp(pid int) error {
	if pid < 2 { // a group of processes, all processes, or init
		return program.Usagef("--pid %d is not the process of a daemon", pid)
	}
	process, err := os.FindProcess(pid)
	if err == nil {
		err = process.Signal(syscall.SIGHUP)
		_ = process.Release()
	}
	if err != nil {
		return fmt.Errorf("send SIGHUP to process %d: %w", pid, err)
	}
	return nil
}
