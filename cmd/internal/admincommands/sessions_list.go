// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// defaultSessionsInterval is long enough for steady rates, and short enough for somebody who waits.
const defaultSessionsInterval = time.Second

func newSessionsListCommand(daemon Daemon) *cobra.Command {
	var o options
	interval := defaultSessionsInterval
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the open sessions, oldest first, with what they do",
		Long: `list shows the open sessions of a relay or target, oldest first. It reads their
counts twice and shows the rates between: IOs and bytes per second, the mean latency, and
how many IOs have failed since the session was opened. Without --interval, the JSON
document has no rates, but counts; docs/schemas/sessions.schema.json describes it.`,
		Args: cobra.NoArgs,
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		_ []string) error {
		if interval < 0 {
			return program.Usagef("--interval %v is negative", interval)
		}
		if o.output == report.JSON && !cmd.Flags().Changed("interval") {
			interval = 0
		}
		sessions, err := readSessions(ctx, client, interval)
		if err != nil {
			return o.report(cmd, operationSessions, failure(err))
		}
		if o.output == report.JSON {
			return report.WriteJSON(cmd.OutOrStdout(),
				admin.SessionList{Schema: admin.SessionsSchema, Sessions: sessions})
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "SESSION\tPEER\tCHANNEL\tVOLUME\tQUEUES\tRDMA\tOPEN FOR\tIOPS\t"+
			"THROUGHPUT\tLATENCY\tFAILED\tHOLDER\tCLIENT")
		for _, s := range sessions {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%s\t%v\t%s\t%d\t%s\t%s\n", s.ID, s.Peer,
				orNone(s.Channel), orNone(s.Volume), s.Queues,
				orNone(strings.Join(s.Transports, "+")), time.Since(s.Opened).Round(time.Second),
				ratesText(s.Rates), s.IO.Failed, orNone(s.HolderID), orNone(s.Client))
		}
		return table.Flush()
	})
	cmd.Flags().DurationVar(&interval, "interval", interval,
		"time between two readings, for rates; 0 reads once")
	return cmd
}

// ratesText returns the columns of the rates.
func ratesText(r *admin.Rates) string {
	if r == nil {
		return "-\t-\t-"
	}
	latency := "-"
	if r.LatencyNs != nil {
		latency = size.FormatDuration(time.Duration(*r.LatencyNs))
	}
	return fmt.Sprintf("%.0f\t%s\t%s", r.IOPS, size.FormatThroughput(r.Bytes), latency)
}

// readSessions lists the sessions, with the rates over an interval if that is not 0.
func readSessions(ctx context.Context, client *admin.Client,
	interval time.Duration) ([]admin.Session, error) {
	before, err := client.Sessions(ctx)
	if err != nil || interval == 0 {
		return before, err
	}
	begun := time.Now()
	if !retry.Sleep(ctx, interval) {
		return nil, context.Cause(ctx)
	}
	now, err := client.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	addRates(now, before, time.Since(begun).Seconds())
	return now, nil
}

// addRates adds to sessions the rates since they were listed before.
func addRates(now, before []admin.Session, seconds float64) {
	former := make(map[uint64]counts)
	for _, s := range before {
		former[s.ID] = countsOf(&s.IO)
	}
	for i := range now {
		s := &now[i]
		was, listed := former[s.ID]
		if !listed {
			continue
		}
		r := ratesBetween(countsOf(&s.IO), was, seconds)
		s.Rates = &admin.Rates{IOPS: r.ios, Bytes: r.bytes, Failed: r.failed}
		if r.latency > 0 {
			s.Rates.LatencyNs = new(uint64(r.latency))
		}
	}
}

func countsOf(io *admin.IO) counts {
	return counts{ios: io.Succeeded + io.Failed, failed: io.Failed, bytes: io.Bytes,
		sumNs: io.LatencyNs, inFlight: io.InFlight}
}
