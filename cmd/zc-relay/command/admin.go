// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/admincommands"
	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// daemon is where commands find a relay.
var daemon = admincommands.Daemon{Address: adminserver.DefaultRelayAdminAddress,
	Variable: "ZC_RELAY_ADMIN",
	AddressIn: func(file string) (address, tokenFile string, err error) {
		c, err := loadFile(file)
		if err != nil {
			return "", "", err
		}
		return c.Operations.Admin, c.Operations.AdminTokenFile, nil
	}}

// adminView is a relay as its admin listener needs it.
type adminView struct{ *relay.Relay }

// DrainState returns the progress of a drain.
func (a adminView) DrainState() admin.DrainState {
	s := a.DrainStatus()
	state := admin.DrainState{Draining: s.Draining, Sessions: s.Sessions}
	if s.Draining {
		state.Since = new(s.Since.UTC())
	}
	return state
}

// AdminSessions lists the sessions of all channels.
func (a adminView) AdminSessions() []admin.Session {
	var all []admin.Session
	for _, c := range a.Channels() {
		for i := range c.OpenSessions {
			s := &c.OpenSessions[i]
			peer := "host"
			if !s.ClientUnknown {
				peer = fmt.Sprintf("process %d of user %d", s.ClientPID, s.ClientUID)
			}
			var transports []string
			for _, q := range s.Queues {
				transports = append(transports, q.Transport)
			}
			all = append(all, admin.Session{ID: s.ID, Opened: s.Opened, Channel: c.FullName,
				Peer: peer, Volume: c.Volume, Queues: len(s.Queues), Client: s.ClientName,
				IO:         adminserver.CountIO(s.Counters.Total()),
				Transports: adminserver.DistinctTransports(transports)})
		}
	}
	slices.SortFunc(all, func(x, y admin.Session) int { return cmp.Compare(x.ID, y.ID) })
	return all
}

// drainOptions holds the flags of "zc-relay drain".
type drainOptions struct {
	admincommands.Connection
	timeout retry.Bound
	resume  bool
	output  report.Output
}

// defaultDrainWait is the default time for sessions to end.
const defaultDrainWait = time.Minute

func newDrainCommand() *cobra.Command {
	o := drainOptions{timeout: retry.Within(defaultDrainWait), output: report.Text}
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
	o.Add(cmd, daemon)
	f.Var(&o.timeout, "timeout",
		`how long to wait for the sessions to end: a duration, 0 for not at all, or "infinite"`)
	f.BoolVar(&o.resume, "resume", false, "accept new sessions again")
	o.output.AddFlag(f)
	return cmd
}

func (o *drainOptions) run(cmd *cobra.Command) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	outcome := admincommands.Outcome{Operation: admincommands.OperationDrain}
	send := client.Drain
	if o.resume {
		outcome.Operation, send = admincommands.OperationResume, client.Resume
	}
	state, err := request(cmd.Context(), send)
	if err != nil {
		return outcome.Print(cmd, o.output, "", program.CannotConnect(err))
	}
	outcome.Drain = &state
	if !o.resume {
		line := program.NewStatusLine(cmd.ErrOrStderr())
		err = o.await(cmd.Context(), client, &state,
			func() { line.Show("%s open", openSessions(state.Sessions)) })
		line.Clear()
	}
	sentence := "drained: no session is open, and the relay rejects new ones"
	if o.resume {
		sentence = "the relay accepts new sessions"
	}
	return outcome.Print(cmd, o.output, sentence, err)
}

func openSessions(n int) string {
	if n == 1 {
		return "1 session is"
	}
	return fmt.Sprintf("%d sessions are", n)
}

// request bounds the time of a request, to which the relay replies at once.
func request(ctx context.Context, send func(context.Context) (admin.DrainState, error)) (
	admin.DrainState, error) {
	ctx, cancel := context.WithTimeout(ctx, admincommands.DefaultTimeout)
	defer cancel()
	return send(ctx)
}

// drainPause is the interval of checks whether the sessions have ended.
const drainPause = 200 * time.Millisecond

// await waits until no session is open, and keeps state up to date.
func (o *drainOptions) await(ctx context.Context, client *admin.Client, state *admin.DrainState,
	show func()) error {
	begun := time.Now()
	for state.Sessions > 0 {
		show()
		if limit, limited := o.timeout.Duration(); limited && time.Since(begun) >= limit {
			return status.Errorf(status.TimeOut, "%s still open after %v; the relay rejects new ones "+
				"(\"sessions list\" shows them, \"sessions end\" ends one, \"drain --resume\" accepts new "+
				"ones again)", openSessions(state.Sessions), limit)
		}
		if !retry.Sleep(ctx, drainPause) {
			return fmt.Errorf("%s still open; the relay rejects new ones: %w",
				openSessions(state.Sessions), context.Cause(ctx))
		}
		now, err := request(ctx, client.DrainState)
		if err != nil {
			return program.CannotConnect(err)
		}
		*state = now
		if !state.Draining {
			return status.Errorf(status.BadState,
				"the relay accepts new sessions again: it was resumed or restarted")
		}
	}
	return nil
}
