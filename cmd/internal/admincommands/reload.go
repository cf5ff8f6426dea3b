package admincommands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func newReloadCommand(daemon Daemon) *cobra.Command {
	var o options
	var pid int
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make a running relay or target read its configuration and certificates again",
		Long: `reload does what SIGHUP does, and reports what the daemon has applied, what waits
for a restart, and what has failed. What cannot be applied changes nothing. It exits with 0 if all
settings of the file are in effect, with 5 if some wait for a restart, and with 1 if something has
failed. A daemon without a configuration file and certificates has nothing to read: exit code 2.

With --pid it serves a unit: settings that wait for a restart are no failure. It needs no admin
listener: unless the process is the packaged daemon, which it asks, it sends SIGHUP, and the log of
the process and "systemctl status" have the outcome.`,
		Args: cobra.NoArgs,
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		_ []string) error {
		return o.reload(ctx, cmd, client)
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
		if o.reaches(cmd.Context(), pid) {
			// A unit that runs on with former settings has not failed to reload.
			err := ask(cmd, operands)
			if program.ExitCode(err) == program.ExitRestart {
				fmt.Fprintln(cmd.ErrOrStderr(), err)
				err = nil
			}
			return err
		}
		outcome := Outcome{Operation: operationReload}
		return outcome.Print(cmd, o.output, fmt.Sprintf("sent SIGHUP to process %d: its log and "+
			"\"systemctl status\" have the outcome", pid), hangUp(pid))
	}
	return cmd
}

// reload makes a daemon reload, and prints the outcome.
func (o *options) reload(ctx context.Context, cmd *cobra.Command, client *admin.Client) error {
	outcome := Outcome{Operation: operationReload}
	r, err := client.Reload(ctx)
	if err != nil {
		return outcome.Print(cmd, o.output, "", failure(err))
	}
	outcome.Reload = &r
	err = r.Err()
	switch {
	case errors.Is(err, status.NotSupported):
		err = program.Rejected(err)
	case err != nil && r.Ended != nil:
		err = fmt.Errorf("the reload failed: %w", err)
	}
	if o.output == report.Text {
		writeReload(cmd.OutOrStdout(), &r)
	}
	if err = outcome.Print(cmd, o.output, "", err); err == nil && len(r.RestartPending) > 0 {
		err = program.WithExitCode(program.ExitRestart, fmt.Errorf(
			"restart pending: %s: restart the daemon to apply the configuration file",
			strings.Join(r.RestartPending, ", ")))
	}
	return err
}

// writeReload writes what a reload has done, for people. The error of the command says the rest.
func writeReload(w io.Writer, r *admin.Reload) {
	isDone := r.Ended != nil && r.Error == ""
	switch {
	case isDone && r.ConfigFile == "" && r.Certificates:
		fmt.Fprintln(w, "reloaded the certificates; the daemon has no configuration file")
	case isDone && r.ConfigFile != "" && len(r.Applied) == 0:
		fmt.Fprintf(w, "reloaded %s: no setting has changed\n", r.ConfigFile)
	case isDone && r.ConfigFile != "":
		fmt.Fprintf(w, "reloaded %s\n", r.ConfigFile)
	case isDone: // by a daemon of a former release
		fmt.Fprintln(w, "reloaded")
	}
	for _, c := range r.Applied {
		fmt.Fprintf(w, "applied (%s): %v\n", c.Effect, c)
	}
	for _, c := range r.Failed {
		fmt.Fprintf(w, "not applied: %v\n", c)
	}
	if len(r.RestartPending) > 0 && r.Err() != nil {
		fmt.Fprintf(w, "restart pending: %s\n", strings.Join(r.RestartPending, ", "))
	}
}

// reaches reports whether the daemon at the default address is a process.
func (o *options) reaches(ctx context.Context, pid int) bool {
	client, err := o.Client()
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	content, err := client.Status(ctx)
	var daemon struct{ PID int }
	return err == nil && json.Unmarshal(content, &daemon) == nil && daemon.PID == pid
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
