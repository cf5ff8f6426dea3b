package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/transfer"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/size"
)

func newGetCommand(connection *connectionFlags) *cobra.Command {
	flags := transferFlags{connection: connection}
	var length size.Bytes
	cmd := &cobra.Command{
		Use:   "get FILE",
		Short: "Copy the volume to a file",
		Long: `get copies the volume, or a range of it, to FILE, or to standard output if it is
"-", which uses a single queue. A file appears, or changes, only when it is
complete and on disk.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g := getRequest{flags: &flags, path: args[0], length: uint64(length), toEnd: !cmd.Flags().Changed("length")}
			return g.run(cmd)
		},
	}
	flags.add(cmd.Flags())
	cmd.Flags().Var(&length, "length", "how much (default: to the end of the volume)")
	return cmd
}

// getRequest is what one call of get asks for.
type getRequest struct {
	flags  *transferFlags
	path   string
	length uint64
	toEnd  bool
}

func (g *getRequest) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	v, config, err := g.flags.open(ctx, -1)
	if err != nil {
		return err
	}
	tell := newTransferProgress(cmd.ErrOrStderr())
	config.Observe = tell.observe
	moved, err := g.transfer(ctx, config, cmd.OutOrStdout())
	err = closeVolume(ctx, v, named(g.path, err))
	tell.end("get "+g.path, moved, err)
	return err
}

func (g *getRequest) transfer(ctx context.Context, config transfer.Config, stdout io.Writer) (uint64, error) {
	info, offset := config.Volume.Info(), uint64(g.flags.offset)
	if offset > info.Size || (!g.toEnd && g.length > info.Size-offset) {
		return 0, program.Usagef("%d bytes at offset %d are outside volume %q of %d bytes", g.length, offset, info.Name, info.Size)
	}
	if g.toEnd {
		g.length = info.Size - offset
	}
	if g.path == standardStream {
		return transfer.Get(ctx, config, output.Stream{Writer: stdout}, offset, g.length)
	}
	target, err := output.Create(g.path)
	if err != nil {
		return 0, err
	}
	moved, err := transfer.Get(ctx, config, target.Sink(), offset, g.length)
	return moved, target.Finish(err)
}
