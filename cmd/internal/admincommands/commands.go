// SPDX-License-Identifier: Apache-2.0

// Package admincommands holds the commands that talk to a running daemon through its admin
// listener.
package admincommands

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// DefaultTimeout bounds the wait for a reply. It exceeds the time that a daemon waits for a reload.
const DefaultTimeout = 10 * time.Second

// NewCommands returns the commands status, top, sessions, reload, log-level, and trace, for a
// daemon.
func NewCommands(daemon Daemon) []*cobra.Command {
	return []*cobra.Command{newStatusCommand(daemon), newTopCommand(daemon),
		newSessionsCommand(daemon),
		newReloadCommand(daemon), newLogLevelCommand(daemon), newTraceCommand(daemon)}
}

// options are the flags that all commands share.
type options struct {
	Connection
	output  report.Output
	timeout time.Duration
}

// report prints the failure of an operation whose document is not an Outcome, and returns it.
func (o *options) report(cmd *cobra.Command, operation string, failure error) error {
	outcome := Outcome{Operation: operation}
	return outcome.Print(cmd, o.output, "", failure)
}

// add adds the flags. run is called with a client, and a context that ends after the timeout.
func (o *options) add(cmd *cobra.Command, daemon Daemon,
	run func(context.Context, *cobra.Command, *admin.Client, []string) error) {
	o.output = report.Text
	f := cmd.Flags()
	o.Add(cmd, daemon)
	o.output.AddFlag(f)
	f.DurationVar(&o.timeout, "timeout", DefaultTimeout, "how long to wait for the reply")
	cmd.RunE = func(cmd *cobra.Command, operands []string) error {
		if o.timeout <= 0 {
			return program.Usagef("--timeout %v: must be longer than 0, for instance %v", o.timeout,
				DefaultTimeout)
		}
		client, err := o.Client()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
		defer cancel()
		return run(ctx, cmd, client, operands)
	}
}

// failure gives an error of a request its exit code.
func failure(err error) error {
	switch status.CodeOf(err) {
	case status.NotConnected, status.TimeOut:
		return program.CannotConnect(err)
	case status.InvalidValue:
		return program.Usage(err)
	case status.NotFound, status.NotSupported:
		return program.Rejected(err)
	}
	return err
}

func newSessionsCommand(daemon Daemon) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List or end the sessions of a running relay or target",
	}
	cmd.AddCommand(newSessionsListCommand(daemon), newSessionsEndCommand(daemon))
	return cmd
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func newSessionsEndCommand(daemon Daemon) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "end SESSION",
		Short: "End a session at once",
		Long: `end ends the session with this number, which list, status and the log show. Its peer
gets SHUTDOWN for what is in flight, and may open another session: remove its right to
connect first to keep it out.`,
		Args: program.Operands("SESSION"),
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		id, err := strconv.ParseUint(operands[0], 10, 64)
		if err != nil {
			return program.Usagef("%q is not the number of a session: list them with \"sessions list\"",
				operands[0])
		}
		outcome := Outcome{Operation: operationEndSession, Session: id}
		err = listedBy("sessions list", client.EndSession(ctx, id))
		return outcome.Print(cmd, o.output, fmt.Sprintf("session %d ends", id), failure(err))
	})
	o.completeOperand(cmd, func(ctx context.Context, client *admin.Client) (words []string,
		err error) {
		sessions, err := client.Sessions(ctx)
		for _, s := range sessions {
			words = append(words, fmt.Sprintf("%d\t%s %s, volume %s", s.ID, s.Channel, s.Peer,
				orNone(s.Volume)))
		}
		return words, err
	})
	return cmd
}

// completionTimeout bounds how long a shell waits for the daemon.
const completionTimeout = time.Second

// completeOperand lets shells complete the first operand of a command with what the daemon has.
// Without the daemon, there is nothing to offer.
func (o *options) completeOperand(cmd *cobra.Command,
	list func(context.Context, *admin.Client) ([]string, error)) {
	cmd.ValidArgsFunction = func(_ *cobra.Command, operands []string, _ string) ([]string,
		cobra.ShellCompDirective) {
		client, err := o.Client()
		if err != nil || len(operands) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		defer cancel()
		words, _ := list(ctx, client)
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// listedBy names the command that lists what there is, if err is that something does not exist.
func listedBy(command string, err error) error {
	if status.CodeOf(err) != status.NotFound {
		return err
	}
	return fmt.Errorf("%w: \"%s\" lists those that there are", err, command)
}

func newLogLevelCommand(daemon Daemon) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Show or change what a running relay or target logs",
		Long: `log-level shows the lowest severity that the daemon logs, or changes it until the next
start or reload. It also takes the names and numbers of DOCA's log levels, from 20 to 70.`,
		ValidArgs: []string{"debug", "info", "warn", "error"},
		Args:      cobra.MaximumNArgs(1),
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		var err error
		if len(operands) > 0 {
			level, wrong := logging.ParseLevel(operands[0])
			if wrong != nil {
				return program.Usage(wrong)
			}
			if level > zapcore.ErrorLevel {
				return program.Usagef("a running daemon logs errors at least: use error, or log.level in its configuration")
			}
			err = client.SetLogLevel(ctx, level.String())
		}
		outcome := Outcome{Operation: operationLogLevel}
		if err == nil {
			outcome.LogLevel, err = client.LogLevel(ctx)
		}
		return outcome.Print(cmd, o.output, outcome.LogLevel, failure(err))
	})
	return cmd
}
