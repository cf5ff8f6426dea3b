package main

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// reconnectFlags say whether, and by which policy, a volume is reopened that
// was lost.
type reconnectFlags struct {
	set          *pflag.FlagSet
	enabled      bool
	attempts     retry.Count
	timeout      retry.Bound
	firstPause   time.Duration
	longestPause time.Duration
}

// reconnectDetails are the flags that have no meaning without --reconnect.
var reconnectDetails = []string{"reconnect-attempts", "reconnect-timeout", "reconnect-first-pause", "reconnect-longest-pause"}

func (r *reconnectFlags) add(f *pflag.FlagSet) {
	r.set = f
	r.attempts, r.timeout = retry.AnyNumber(), retry.Within(client.DefaultReconnectTotal)
	f.BoolVar(&r.enabled, "reconnect", false, "reopen the volume when it is lost, and repeat what that has left open")
	f.Var(&r.attempts, "reconnect-attempts", `attempts to reopen the volume after each loss: a number, 0 for none, or "infinite"`)
	f.Var(&r.timeout, "reconnect-timeout", `how long after a loss attempts may begin: a duration, 0 for no time at all, or "infinite"`)
	f.DurationVar(&r.firstPause, "reconnect-first-pause", retry.DefaultFirstPause, "pause after the first attempt that fails; each further one is twice as long")
	f.DurationVar(&r.longestPause, "reconnect-longest-pause", client.DefaultReconnectLongestPause, "longest pause between attempts")
}

// policy is nil if the volume is not to be reopened.
func (r *reconnectFlags) policy() (*retry.Policy, error) {
	if !r.enabled {
		for _, name := range reconnectDetails {
			if r.set.Changed(name) {
				return nil, program.Usagef("--%s has no meaning without --reconnect", name)
			}
		}
		return nil, nil
	}
	if r.firstPause <= 0 || r.longestPause < r.firstPause {
		return nil, program.Usagef("--reconnect-first-pause %v must be positive, and --reconnect-longest-pause %v not shorter", r.firstPause, r.longestPause)
	}
	return &retry.Policy{Attempts: r.attempts, Total: r.timeout, FirstPause: r.firstPause, LongestPause: r.longestPause}, nil
}

// exceptLoss is err, but nil for the loss of writes that no flush had the
// occasion to tell: the report does.
func exceptLoss(err error) error {
	if errors.Is(err, client.ErrWritesLost) {
		return nil
	}
	return err
}
