// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ChannelSource is where "channel add" gets a channel from.
type ChannelSource interface {
	// AddFlags adds a flag for each key of a channel, except for its name.
	AddFlags(f *pflag.FlagSet)
	// Load reads the YAML document of a file, "-" for input and "" for none, over which name and
	// the flags have their say.
	Load(name, file string, input io.Reader) (admin.NewChannel, error)
}

// NewChannelCommand returns the command channel, for a relay.
func NewChannelCommand(daemon Daemon, from ChannelSource) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "channel",
		Short: "List or change the channels of a running relay",
		Long: `channel lists, adds, removes, moves, and limits channels of a running relay.
Sessions of other channels do not notice.

The relay keeps the channels that were added here in a file of its own, channels.yaml in its state
directory, and serves them again after a restart. A channel of the configuration file is changed
there, and by a reload. CHANNEL is the name of a channel's service, or DEVICE/REPRESENTOR/NAME if
several have the name.`,
		Example: `  zc-relay channel add vm7 --representor b1:00.1 \
      --storage-server 10.0.0.5:7470 --volume disk7
  zc-relay channel limit vm7 --channel-iops 20000
  zc-relay channel move vm7 10.0.0.6:7470
  zc-relay channel remove vm7`,
	}
	cmd.AddCommand(newChannelListCommand(daemon), newChannelAddCommand(daemon, from),
		newChannelRemoveCommand(daemon), newChannelMoveCommand(daemon),
		newChannelLimitCommand(daemon))
	return cmd
}

func newChannelListCommand(daemon Daemon) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the channels with their targets, sessions, and limits",
		Long: `list shows the channels of the configuration, those that were added by command, and
those that were removed and wait for their last session. ORIGIN is configuration or administrator.`,
		Args: cobra.NoArgs,
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		_ []string) error {
		channels, err := client.Channels(ctx)
		if err != nil {
			return o.report(cmd, operationChannels, failure(err))
		}
		if o.output == report.JSON {
			return report.WriteJSON(cmd.OutOrStdout(),
				admin.ChannelList{Schema: admin.ChannelsSchema, Channels: channels})
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table,
			"CHANNEL\tSTATE\tTARGET\tLINK\tVOLUME\tSESSIONS\tIOPS\tBANDWIDTH\tORIGIN")
		for i := range channels {
			c := &channels[i]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", c.FullName, c.State,
				orNone(targetsOf(c)), orNone(c.Link), c.Volume, c.Sessions,
				orNone(c.QoS.Channel.IOPS), orNone(c.QoS.Channel.Bandwidth), orNone(c.Origin))
		}
		for i := range channels {
			c := &channels[i]
			if c.Reason != "" {
				fmt.Fprintf(table, "clients cannot connect to %s since %s: %s\n", c.FullName,
					c.Since.Format(time.RFC3339), c.Reason)
			}
			if c.LinkReason != "" {
				fmt.Fprintf(table, "the target of %s is not ready: %s\n", c.FullName, c.LinkReason)
			}
		}
		return table.Flush()
	})
	return cmd
}

// targetsOf returns the targets of a channel, the one that serves it alone if that is known.
func targetsOf(c *admin.Channel) string {
	switch {
	case c.Serving != "":
		return c.Serving
	case c.Target != "":
		return c.Target
	}
	return strings.Join(c.Targets, ",")
}

func newChannelAddCommand(daemon Daemon, from ChannelSource) *cobra.Command {
	var o options
	var file string
	cmd := &cobra.Command{
		Use:   "add [NAME]",
		Short: "Serve another channel, and keep it over restarts",
		Long: `add makes the relay serve another channel. NAME is that of its Comch service, and the
flags are the keys of a channel in the configuration file. --file reads these keys from a YAML
document; NAME and the flags override it. What is not given has its default.

The relay keeps the channel until it is removed. add succeeds when that is durable, and clients can
connect. If they cannot yet, because a representor is missing for instance, add says so and succeeds
as well: the relay tries again.`,
		Example: `  zc-relay channel add vm7 --representor b1:00.1 \
      --storage-server 10.0.0.5:7470 --volume disk7
  zc-relay channel add -f - <<'END'
  name: vm7
  representor: "b1:00.1"
  target: 10.0.0.5:7470
  volume: disk7
  qos: {channel: {iops: 20000}}
  END`,
		Args: cobra.MaximumNArgs(1),
	}
	from.AddFlags(cmd.Flags())
	program.ExplainFlag(cmd, "name", "the name is an operand: channel add NAME")
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		name := ""
		if len(operands) > 0 {
			name = operands[0]
		}
		n, err := from.Load(name, file, cmd.InOrStdin())
		if err != nil {
			return program.Usage(err)
		}
		c, err := client.AddChannel(ctx, n)
		if err != nil {
			return o.report(cmd, operationAddChannel, failure(err))
		}
		sentence := fmt.Sprintf("serving channel %s, volume %s at %s", c.FullName, c.Volume,
			targetsOf(&c))
		if c.Reason != "" {
			sentence = fmt.Sprintf("channel %s is kept, but clients cannot connect yet, and the "+
				"relay tries again: %s", c.FullName, c.Reason)
		}
		return o.printChannel(cmd, &c, sentence+linkProblem(ctx, client, &c))
	})
	cmd.Flags().StringVarP(&file, "file", "f", "",
		"YAML document with the keys of the channel; - is standard input")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

// linkPatience is how long a command waits for the relay to find out whether the target of a
// channel can serve it.
const linkPatience = 3 * time.Second

// linkProblem waits until the relay knows whether the target of a channel can serve it, updates the
// channel, and returns what to add to a sentence about it: why its clients cannot open a session
// now. A wrong address or name is then known at once, and not when a client comes.
func linkProblem(ctx context.Context, client *admin.Client, c *admin.Channel) string {
	for end := time.Now().Add(linkPatience); ; {
		all, err := client.Channels(ctx)
		if err != nil {
			return ""
		}
		i := slices.IndexFunc(all,
			func(other admin.Channel) bool { return other.FullName == c.FullName })
		if i < 0 {
			return ""
		}
		switch *c = all[i]; {
		case c.Link == string(relay.LinkReady):
			return ""
		case c.LinkReason != "":
			return "; sessions cannot be opened yet, and the relay tries again: " + c.LinkReason
		case time.Now().After(end) || !retry.Sleep(ctx, linkPatience/30):
			return "; the relay does not know yet whether its target can serve it"
		}
	}
}

// printChannel prints a channel as JSON, or a sentence about it.
func (o *options) printChannel(cmd *cobra.Command, c *admin.Channel, sentence string) error {
	if o.output == report.JSON {
		return report.WriteJSON(cmd.OutOrStdout(),
			admin.ChannelList{Schema: admin.ChannelsSchema, Channels: []admin.Channel{*c}})
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), sentence)
	return err
}

func newChannelRemoveCommand(daemon Daemon) *cobra.Command {
	var o options
	var force bool
	cmd := &cobra.Command{
		Use:   "remove CHANNEL",
		Short: "Drain and end the sessions of a channel, and forget it",
		Long: `remove forgets a channel that was added by command, stops offering it to clients, waits
for the requests in flight, for shutdown.drain_timeout at most, and ends the sessions. Clients that
reconnect do not find the service until the channel is back.`,
		Args: program.Operands("CHANNEL"),
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		outcome := Outcome{Operation: operationRemoveChannel, Channel: operands[0]}
		return outcome.Print(cmd, o.output, fmt.Sprintf("channel %s is removed", operands[0]),
			channelFailure(client.RemoveChannel(ctx, operands[0], force)))
	})
	o.completeOperand(cmd, channelNames)
	addForce(cmd, &force)
	return cmd
}

func addForce(cmd *cobra.Command, force *bool) {
	cmd.Flags().BoolVar(force, "force", false,
		"do not wait for the requests in flight, which then fail at their clients")
}

func newChannelMoveCommand(daemon Daemon) *cobra.Command {
	var o options
	var force bool
	cmd := &cobra.Command{
		Use:   "move CHANNEL TARGET...",
		Short: "Give a channel another target, where sessions reopen",
		Long: `move gives a channel that was added by command other targets: HOST:PORT of one, or of
several that take over from one another. New sessions use them at once. Sessions at a former target
complete the requests in flight, for shutdown.drain_timeout at most, and are ended; clients that
reconnect reopen the volume at the new target. That has to have the same volume: a client does not
reopen one with another UUID.`,
		Args: program.Operands("CHANNEL", "TARGET..."),
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		to := admin.ChannelTargets{Targets: operands[1:]}
		if len(operands) == 2 {
			to = admin.ChannelTargets{Target: operands[1]}
		}
		c, err := client.MoveChannel(ctx, operands[0], to, force)
		if err != nil {
			return o.report(cmd, operationMoveChannel, channelFailure(err))
		}
		return o.printChannel(cmd, &c, fmt.Sprintf("channel %s has moved to %s", c.FullName,
			strings.Join(operands[1:], ","))+linkProblem(ctx, client, &c))
	})
	o.completeOperand(cmd, channelNames)
	addForce(cmd, &force)
	return cmd
}

func newChannelLimitCommand(daemon Daemon) *cobra.Command {
	var o options
	var limits admin.ChannelQoS
	cmd := &cobra.Command{
		Use:   "limit CHANNEL",
		Short: "Change the rate limits of a channel, also for open sessions",
		Long: `limit changes the rate limits of a channel that was added by command, at once and for
open sessions, too. What is not given stays as it is; infinite ends a limit.`,
		Args: program.Operands("CHANNEL"),
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		if limits == (admin.ChannelQoS{}) {
			return program.Usagef("no limit is given: for instance --channel-iops 20000")
		}
		c, err := client.LimitChannel(ctx, operands[0], limits)
		if err != nil {
			return o.report(cmd, operationLimitChannel, channelFailure(err))
		}
		return o.printChannel(cmd, &c, fmt.Sprintf("channel %s: %s; each session: %s", c.FullName,
			limitsOf(&c.QoS.Channel), limitsOf(&c.QoS.Session)))
	})
	o.completeOperand(cmd, channelNames)
	f := cmd.Flags()
	for _, level := range []struct {
		name, whose string
		limits      *admin.RateLimits
	}{{"channel", "of all sessions together", &limits.Channel},
		{"session", "of each session", &limits.Session}} {
		f.StringVar(&level.limits.IOPS, level.name+"-iops", "",
			"IOs per second "+level.whose+", or infinite")
		f.StringVar(&level.limits.Bandwidth, level.name+"-bandwidth", "",
			"data per second "+level.whose+", or infinite")
		f.StringVar(&level.limits.Burst, level.name+"-burst", "",
			"how long unused IOs and bytes add up for a burst")
	}
	return cmd
}

// limitsOf describes rate limits.
func limitsOf(limits *admin.RateLimits) string {
	return fmt.Sprintf("iops %s, bandwidth %s, burst %s", limits.IOPS, limits.Bandwidth,
		limits.Burst)
}

// channelFailure gives an error of a change of a channel its exit code.
func channelFailure(err error) error {
	err = listedBy("channel list", err)
	if errors.Is(err, status.BadState) { // of the configuration
		return program.Rejected(err)
	}
	return failure(err)
}

// channelNames returns the channels that commands can change, for completion.
func channelNames(ctx context.Context, client *admin.Client) (words []string, err error) {
	channels, err := client.Channels(ctx)
	count := make(map[string]int)
	for i := range channels {
		count[channels[i].Name]++
	}
	for i := range channels {
		c := &channels[i]
		if c.Origin != admin.OriginAdministrator {
			continue
		}
		name := c.Name
		if count[name] > 1 {
			name = c.FullName
		}
		words = append(words, fmt.Sprintf("%s\t%s, volume %s", name, c.FullName, c.Volume))
	}
	return words, err
}
