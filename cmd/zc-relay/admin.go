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

// statusOptions are the flags of "zc-relay status".
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
		Short: "Show how a running relay or target stands",
		Long: `status asks a daemon of this machine, through its admin listener, for its channels,
sessions, queues and workers. The JSON document is described by docs/status.schema.json.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.admin, "admin", ops.DefaultAdminAddress, "where the daemon listens for administration, as given to its --admin-listen")
	f.VarP(&o.output, "output", "o", "output format: text or json")
	f.DurationVar(&o.timeout, "timeout", defaultAdminTimeout, "how long to wait for the answer")
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
		return fmt.Errorf("the daemon at %s tells its status as %q, this program reads %q: use the program of the same version", o.admin, document.Schema, statusreport.Schema)
	}
	if o.output == report.JSON {
		_, err := cmd.OutOrStdout().Write(content) // as it came, with fields that this program may not know
		return err
	}
	return document.WriteText(cmd.OutOrStdout())
}

// drainer is a relay as the admin listener sees it.
type drainer struct{ *relay.Relay }

// DrainState implements ops.Drainer.
func (d drainer) DrainState() ops.DrainState {
	s := d.DrainStatus()
	state := ops.DrainState{Draining: s.Draining, Sessions: s.Sessions}
	if s.Draining {
		state.Since = new(s.Since.UTC())
	}
	return state
}

// drainOptions are the flags of "zc-relay drain".
type drainOptions struct {
	admin   string
	timeout retry.Bound
	resume  bool
}

// defaultDrainWait is how long sessions have to end unless told otherwise.
const defaultDrainWait = time.Minute

func newDrainCommand() *cobra.Command {
	o := drainOptions{timeout: retry.Within(defaultDrainWait)}
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Let a running relay take no new sessions, and wait for the end of the others",
		Long: `drain tells a relay of this machine, through its admin listener, to take no new
sessions. Clients that connect are told so, /readyz answers 503, and open
sessions go on. It waits until they have ended, and fails if some have not when
the time is up; the relay goes on draining. Afterwards it can be stopped without
anybody noticing, or take sessions again with --resume.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.admin, "admin", ops.DefaultAdminAddress, "where the relay listens for administration, as given to its --admin-listen")
	f.Var(&o.timeout, "timeout", `how long to wait for the end of the sessions: a duration, 0 for not at all, or "infinite"`)
	f.BoolVar(&o.resume, "resume", false, "take new sessions again")
	return cmd
}

func (o *drainOptions) run(cmd *cobra.Command) error {
	client, err := ops.NewAdminClient(o.admin)
	if err != nil {
		return program.Usage(fmt.Errorf("--admin: %w", err))
	}
	if o.resume {
		_, err := askDrain(cmd.Context(), client, http.MethodDelete)
		return program.CannotConnect(err)
	}
	state, err := askDrain(cmd.Context(), client, http.MethodPost)
	if err != nil {
		return program.CannotConnect(err)
	}
	line := program.NewStatusLine(cmd.ErrOrStderr())
	defer line.Clear()
	return o.await(cmd.Context(), client, state, func(s ops.DrainState) { line.Show("%d sessions are open", s.Sessions) })
}

// askDrain sends one request, which is answered at once.
func askDrain(ctx context.Context, client *ops.AdminClient, method string) (ops.DrainState, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultAdminTimeout)
	defer cancel()
	var state ops.DrainState
	answer, err := client.Do(ctx, method, ops.DrainPath, "")
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(answer, &state); err != nil {
		return state, fmt.Errorf("read the state of the drain: %w", err)
	}
	return state, nil
}

// drainPause is how often to ask whether the sessions have ended.
const drainPause = 200 * time.Millisecond

// await waits until no session is open.
func (o *drainOptions) await(ctx context.Context, client *ops.AdminClient, state ops.DrainState, show func(ops.DrainState)) error {
	begun := time.Now()
	for state.Sessions > 0 {
		show(state)
		if limit, limited := o.timeout.Duration(); limited && time.Since(begun) >= limit {
			return status.Errorf(status.TimeOut, "%d sessions are still open after %v; no new ones are taken", state.Sessions, limit)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d sessions are still open; no new ones are taken: %w", state.Sessions, context.Cause(ctx))
		case <-time.After(drainPause):
		}
		var err error
		if state, err = askDrain(ctx, client, http.MethodGet); err != nil {
			return program.CannotConnect(err)
		}
		if !state.Draining {
			return status.Errorf(status.BadState, "the relay takes new sessions again: somebody has resumed, or restarted, it")
		}
	}
	return nil
}
