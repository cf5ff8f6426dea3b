package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/ops"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/statusreport"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// statusOptions holds the flags of "zc-relay status".
type statusOptions struct {
	admin   string
	output  report.Output
	timeout time.Duration
}

// defaultAdminTimeout bounds a request to a daemon on this machine.
const defaultAdminTimeout = 5 * time.Second

func newStatusCommand() *cobra.Command {
	o := statusOptions{output: report.Text}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the status of a running relay or target",
		Long: `status queries a daemon on this machine, through its admin listener, for its channels,
sessions, queues and workers. docs/status.schema.json describes the JSON document.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.admin, "admin", ops.DefaultAdminAddress,
		"admin address of the daemon, as given to its --admin-listen")
	o.output.AddFlag(f)
	f.DurationVar(&o.timeout, "timeout", defaultAdminTimeout, "how long to wait for the reply")
	return cmd
}

func (o *statusOptions) run(cmd *cobra.Command) error {
	client, err := ops.NewAdminClient(o.admin)
	if err != nil {
		return program.Usage(fmt.Errorf("--admin: %w", err))
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	content, err := client.Do(ctx, http.MethodGet, "/status", "")
	if err != nil {
		return program.CannotConnect(err)
	}
	var document statusreport.Document
	if err := json.Unmarshal(content, &document); err != nil {
		return fmt.Errorf("read the status of the daemon at %s: %w", o.admin, err)
	}
	if document.Schema != statusreport.Schema {
		return fmt.Errorf("the daemon at %s reports its status as %q, but this program reads %q: use a program of the daemon's version",
			o.admin, document.Schema, statusreport.Schema)
	}
	if o.output == report.JSON {
		// unchanged, with fields that this program may not know
		_, err := cmd.OutOrStdout().Write(content)
		return err
	}
	return document.WriteText(cmd.OutOrStdout())
}

// drainer adapts a relay to the admin listener.
type drainer struct{ *relay.Relay }

// DrainState returns the progress of the drain.
func (d drainer) DrainState() ops.DrainState {
	s := d.DrainStatus()
	state := ops.DrainState{Draining: s.Draining, Sessions: s.Sessions}
	if s.Draining {
		state.Since = new(s.Since.UTC())
	}
	return state
}

// drainOptions holds the flags of "zc-relay drain".
type drainOptions struct {
	admin   string
	timeout retry.Bound
	resume  bool
}

// defaultDrainWait is the default time for sessions to end.
const defaultDrainWait = time.Minute

func newDrainCommand() *cobra.Command {
	o := drainOptions{timeout: retry.Within(defaultDrainWait)}
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Make a running relay reject new sessions, and wait until the open ones have ended",
		Long: `drain makes a relay on this machine reject new sessions, through its admin listener.
Clients that connect get the reason, /readyz returns 503, and open sessions
continue. drain waits until they have ended, and fails if some are still open after
the timeout; the relay continues to drain. A drained relay can be stopped without
affecting anyone, or accept sessions again with --resume.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.admin, "admin", ops.DefaultAdminAddress,
		"admin address of the relay, as given to its --admin-listen")
	f.Var(&o.timeout, "timeout",
		`how long to wait for the sessions to end: a duration, 0 for not at all, or "infinite"`)
	f.BoolVar(&o.resume, "resume", false, "accept new sessions again")
	return cmd
}

func (o *drainOptions) run(cmd *cobra.Command) error {
	client, err := ops.NewAdminClient(o.admin)
	if err != nil {
		return program.Usage(fmt.Errorf("--admin: %w", err))
	}
	if o.resume {
		_, err := requestDrain(cmd.Context(), client, http.MethodDelete)
		return program.CannotConnect(err)
	}
	state, err := requestDrain(cmd.Context(), client, http.MethodPost)
	if err != nil {
		return program.CannotConnect(err)
	}
	line := program.NewStatusLine(cmd.ErrOrStderr())
	defer line.Clear()
	return o.await(cmd.Context(), client, state,
		func(s ops.DrainState) { line.Show("%d sessions are open", s.Sessions) })
}

// requestDrain sends one request to the relay, which replies at once.
func requestDrain(ctx context.Context, client *ops.AdminClient,
	method string) (ops.DrainState, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultAdminTimeout)
	defer cancel()
	var state ops.DrainState
	reply, err := client.Do(ctx, method, ops.DrainPath, "")
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(reply, &state); err != nil {
		return state, fmt.Errorf("read the state of the drain: %w", err)
	}
	return state, nil
}

// drainPause is the interval of checks whether the sessions have ended.
const drainPause = 200 * time.Millisecond

// await waits until no session is open.
func (o *drainOptions) await(ctx context.Context, client *ops.AdminClient, state ops.DrainState,
	show func(ops.DrainState)) error {
	begun := time.Now()
	for state.Sessions > 0 {
		show(state)
		if limit, limited := o.timeout.Duration(); limited && time.Since(begun) >= limit {
			return status.Errorf(status.TimeOut,
				"%d sessions are still open after %v; the relay rejects new ones", state.Sessions,
				limit)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d sessions are still open; the relay rejects new ones: %w",
				state.Sessions, context.Cause(ctx))
		case <-time.After(drainPause):
		}
		var err error
		if state, err = requestDrain(ctx, client, http.MethodGet); err != nil {
			return program.CannotConnect(err)
		}
		if !state.Draining {
			return status.Errorf(status.BadState,
				"the relay accepts new sessions again: it was resumed or restarted")
		}
	}
	return nil
}
