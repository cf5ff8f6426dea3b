// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/admin"
)

// defaultTraceTime is how long to trace unless the user says otherwise.
const defaultTraceTime = 10 * time.Second

func newTraceCommand(daemon Daemon) *cobra.Command {
	var connection Connection
	var duration time.Duration
	format := report.Text
	cmd := &cobra.Command{
		Use:   "trace FILE",
		Short: "Trace sampled IOs through a running relay or target",
		Long: `trace records when the daemon got and completed each IO that a client samples, and
when it passed it on (initiator bench --trace, client.Config.Tracer), for --duration or
until Ctrl-C. It writes FILE for Chrome's trace viewer and Perfetto. An IO has the same
ID in the files of client, relay and target; jq joins them into one:

  jq -s '{traceEvents: map(.traceEvents) | add}' initiator.json relay.json target.json

The daemon keeps the first 16384 IOs; the file says how many more there were.`,
		Args: program.Operands("FILE"),
	}
	f := cmd.Flags()
	connection.Add(cmd, daemon)
	f.DurationVar(&duration, "duration", defaultTraceTime, "how long to trace")
	format.AddFlag(f)
	cmd.RunE = func(cmd *cobra.Command, operands []string) error {
		if duration <= 0 {
			return program.Usagef("--duration %v is not positive", duration)
		}
		client, err := connection.Client()
		if err != nil {
			return err
		}
		file, err := output.Create(operands[0])
		if err != nil {
			return program.Usage(err)
		}
		outcome := Outcome{Operation: operationTrace}
		content, err := traceFor(cmd.Context(), client, duration)
		if err = failure(err); err == nil {
			_, err = file.Sink().Write(content)
		}
		if err = file.Finish(err); err == nil {
			outcome.Trace = &Trace{File: operands[0]}
			outcome.Trace.IOs, err = countIOs(content)
		}
		if err == nil && format == report.Text {
			fmt.Fprintln(cmd.ErrOrStderr(), summaryOf(outcome.Trace.IOs))
		}
		return outcome.Print(cmd, format, "", err)
	}
	return cmd
}

func summaryOf(ios int) string {
	if ios == 0 {
		return "traced no IO: a client has to sample them, for instance \"initiator bench --trace FILE\""
	}
	return fmt.Sprintf("traced IOs: %d", ios)
}

// countIOs returns how many IOs are in a trace.
func countIOs(content []byte) (int, error) {
	var trace struct {
		Events []struct {
			ID string `json:"id"`
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(content, &trace); err != nil {
		return 0, fmt.Errorf("read the trace: %w", err)
	}
	distinct := make(map[string]bool)
	for _, e := range trace.Events {
		distinct[e.ID] = true
	}
	delete(distinct, "")
	return len(distinct), nil
}

// traceFor traces for a time, or until ctx ends, and returns the trace.
func traceFor(ctx context.Context, client *admin.Client, duration time.Duration) ([]byte, error) {
	starting, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	if err := client.StartTrace(starting); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultTimeout)
	defer cancel()
	return client.StopTrace(ending)
}
