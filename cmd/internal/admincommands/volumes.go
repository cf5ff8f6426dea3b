// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// NewVolumeCommand returns the command volume, for a target.
func NewVolumeCommand(daemon Daemon) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "List or change the volumes of a running target",
		Long: `volume lists, adds, removes, and resizes volumes of a running target, and takes them from
clients. Sessions of other volumes do not notice.

The configuration file is what survives a restart: put there what is to stay. A reload leaves a
volume that was added here alone, unless the file has a volume of that name, and serves a volume of
the file again that was removed here.`,
	}
	cmd.AddCommand(newVolumeListCommand(daemon), newVolumeAddCommand(daemon),
		newVolumeRemoveCommand(daemon), newVolumeResizeCommand(daemon),
		newVolumePreemptCommand(daemon))
	return cmd
}

func newVolumeListCommand(daemon Daemon) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the volumes with their sessions, owners, and rights",
		Args:  cobra.NoArgs,
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		_ []string) error {
		volumes, err := client.Volumes(ctx)
		if err != nil {
			return o.report(cmd, operationVolumes, failure(err))
		}
		if o.output == report.JSON {
			return report.WriteJSON(cmd.OutOrStdout(),
				admin.VolumeList{Schema: admin.VolumesSchema, Volumes: volumes})
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "VOLUME\tKIND\tSIZE\tUUID\tACCESS\tSESSIONS\tHELD BY\tHOLDER\tRIGHTS\tFROM\tSTATE")
		for i := range volumes {
			v := &volumes[i]
			fmt.Fprintf(table, "%s\t%s\t%v\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", v.Name, v.Kind,
				size.Bytes(v.Size), v.UUID, accessOf(v), v.Sessions, orNone(v.Holder),
				orNone(v.HolderID), rightsOf(v), v.Origin, v.State)
		}
		for i := range volumes {
			if v := &volumes[i]; v.Reason != "" {
				fmt.Fprintf(table, "%s is %s since %s: %s\n", v.Name, v.State,
					v.Since.Format(time.RFC3339), v.Reason)
			}
		}
		return table.Flush()
	})
	return cmd
}

func accessOf(v *admin.Volume) string {
	access := "read-write"
	if v.ReadOnly {
		access = "read-only"
	}
	if v.Exclusive {
		access += ",exclusive"
	}
	return access
}

func rightsOf(v *admin.Volume) string {
	var rights []string
	for _, group := range []struct {
		may    string
		relays []string
	}{{"read", v.Readers}, {"write", v.Writers}, {"own", v.Owners}, {"preempt", v.Preemptors}} {
		if len(group.relays) > 0 {
			rights = append(rights, group.may+":"+strings.Join(group.relays, ","))
		}
	}
	if rights == nil {
		return "all relays"
	}
	return strings.Join(rights, " ")
}

func newVolumeAddCommand(daemon Daemon) *cobra.Command {
	var o options
	var added admin.NewVolume
	var blockSize size.Bytes
	cmd := &cobra.Command{
		Use:   "add NAME=BACKEND",
		Short: "Open a volume and serve it until the target ends",
		Long: `add opens a volume and serves it. BACKEND is ` + volume.BackendForms + `.

It lasts until it is removed or the target ends. To keep it, put it into the configuration file as
well: a reload then finds it served as the file says, and touches nothing.`,
		Args: program.Operands("NAME=BACKEND"),
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		var found bool
		added.Name, added.Backend, found = strings.Cut(operands[0], "=")
		if !found {
			return program.Usagef("%q is not NAME=BACKEND: write for instance disk=memory:1GiB", operands[0])
		}
		if uint64(blockSize) > volume.MaxBlockSize {
			return program.Usagef("--block-size %v is larger than %v", blockSize,
				size.Bytes(volume.MaxBlockSize))
		}
		for _, right := range []string{"reader", "writer", "owner", "preemptor"} {
			relays, _ := cmd.Flags().GetStringSlice(right) // the flag is one
			if cmd.Flags().Changed(right) && (len(relays) == 0 || slices.Contains(relays, "")) {
				return program.Usagef("--%s is empty: give it the name of a relay, or leave it out "+
					"to let all relays do everything", right)
			}
		}
		added.BlockSize = uint32(blockSize)
		v, err := client.AddVolume(ctx, added)
		if err != nil {
			return o.report(cmd, operationAddVolume, failure(err))
		}
		return o.printVolume(cmd, v, fmt.Sprintf("serving volume %s, %v, UUID %s", v.Name,
			size.Bytes(v.Size), v.UUID))
	})
	f := cmd.Flags()
	f.Var(&blockSize, "block-size", "block size, a power of two; 0 is the default of the "+
		"configuration file")
	f.StringSliceVar(&added.Readers, "reader", nil,
		"`relay` that may read, by a name in its certificate; repeatable; without any --reader, --writer, --owner, and --preemptor all relays may do everything")
	f.StringSliceVar(&added.Writers, "writer", nil, "`relay` that may read and write; repeatable")
	f.StringSliceVar(&added.Owners, "owner", nil,
		"`relay` that may read, write, and open the volume exclusively; repeatable")
	f.StringSliceVar(&added.Preemptors, "preemptor", nil,
		"`relay` that may preempt the holder of the volume, and do what an owner may; repeatable")
	return cmd
}

// printVolume prints a volume as JSON, or a sentence about it.
func (o *options) printVolume(cmd *cobra.Command, v admin.Volume, sentence string) error {
	if o.output == report.JSON {
		return report.WriteJSON(cmd.OutOrStdout(),
			admin.VolumeList{Schema: admin.VolumesSchema, Volumes: []admin.Volume{v}})
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), sentence)
	return err
}

func newVolumeResizeCommand(daemon Daemon) *cobra.Command {
	var o options
	var to admin.VolumeSize
	cmd := &cobra.Command{
		Use:   "resize NAME [SIZE]",
		Short: "Change the size of a volume while clients use it",
		Long: `resize extends the file of a volume to SIZE; clients see it within a second or two. Without
SIZE, it looks at once whether a device or an image has grown, which the target otherwise does every
second.

A smaller size loses what is beyond it. It needs --shrink, and that no session has the volume
open.`,
		Args: program.Operands("NAME", "[SIZE]"),
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		if len(operands) > 1 {
			bytes, err := size.Parse(operands[1])
			if err == nil && bytes == 0 {
				err = errors.New("a volume has at least one block")
			}
			if err != nil {
				return program.Usage(err)
			}
			to.Size = uint64(bytes)
		}
		v, err := client.ResizeVolume(ctx, operands[0], to)
		if errors.Is(err, status.BadState) {
			err = program.Rejected(fmt.Errorf("%w: add --shrink if you mean it", err))
		}
		if err != nil {
			return o.report(cmd, operationResizeVolume, failure(listedBy("volume list", err)))
		}
		return o.printVolume(cmd, v, fmt.Sprintf("volume %s has %v", v.Name, size.Bytes(v.Size)))
	})
	o.completeOperand(cmd, volumeNames)
	cmd.Flags().BoolVar(&to.Shrink, "shrink", false,
		"allow a smaller size: what is beyond it is lost")
	return cmd
}

func newVolumeRemoveCommand(daemon Daemon) *cobra.Command {
	var o options
	var force bool
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Drain and end the sessions of a volume, and close it",
		Long: `remove refuses new sessions at once, waits for the requests in flight, for
shutdown.drain_timeout at most, ends the sessions, makes the content durable, and closes the volume.
Its content stays, except that of a volume in memory. Clients that reconnect get NOT_FOUND until the
volume is back.

If the file has the volume, the next reload or start serves it again.`,
		Args: program.Operands("NAME"),
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		outcome := Outcome{Operation: operationRemoveVolume, Volume: operands[0]}
		return outcome.Print(cmd, o.output, fmt.Sprintf("volume %s is removed", operands[0]),
			failure(listedBy("volume list", client.RemoveVolume(ctx, operands[0], force))))
	})
	o.completeOperand(cmd, volumeNames)
	cmd.Flags().BoolVar(&force, "force", false,
		"do not wait for the requests in flight, which then fail at their clients")
	return cmd
}

func newVolumePreemptCommand(daemon Daemon) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "preempt NAME HOLDER",
		Short: "Take a volume from a client that has it open",
		Long: `preempt ends all sessions of the client that HOLDER names, which "volume list", "sessions list",
and the errors of other clients show. It returns when nothing of the client can change the volume
any more. The client gets IN_USE for what is in flight, and does not reopen the volume by itself.

HOLDER names what a client has open now. If that is over and another client has the volume, preempt
fails, names that client, and changes nothing; if nobody has it, preempt has nothing to do. To give
the volume to another client at the same time, start that one with --preempt HOLDER instead.

Requests that the storage does not finish within the timeout make preempt fail with IN_PROGRESS: the
client is gone even so, and nobody else can open the volume before they have finished.`,
		Args: program.Operands("NAME", "HOLDER"),
	}
	o.add(cmd, daemon, func(ctx context.Context, cmd *cobra.Command, client *admin.Client,
		operands []string) error {
		name, holder := operands[0], operands[1]
		err := listedBy("volume list", client.PreemptHolder(ctx, name, holder))
		if errors.Is(err, status.InUse) {
			err = program.Rejected(err)
		}
		outcome := Outcome{Operation: operationPreempt, Volume: name, Holder: holder}
		return outcome.Print(cmd, o.output,
			fmt.Sprintf("holder %s does not have volume %s now", holder, name), failure(err))
	})
	o.completeOperand(cmd, volumeNames)
	return cmd
}

// volumeNames returns the names of the daemon's volumes for completion.
func volumeNames(ctx context.Context, client *admin.Client) (words []string, err error) {
	volumes, err := client.Volumes(ctx)
	for i := range volumes {
		v := &volumes[i]
		words = append(words, fmt.Sprintf("%s\t%s, %v", v.Name, v.Kind, size.Bytes(v.Size)))
	}
	return words, err
}
