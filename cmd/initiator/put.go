package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/transfer"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

// standardStream is the file name that stands for standard input or output.
const standardStream = "-"

func newPutCommand(connection *connectionFlags) *cobra.Command {
	flags := transferFlags{connection: connection}
	cmd := &cobra.Command{
		Use:   "put FILE",
		Short: "Copy a file to the volume",
		Long: `put copies FILE, or standard input if it is "-", to the volume and flushes it.
Nothing is written if the file is larger than the space. A part of a block is
written by reading, changing and writing back the block.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return put(cmd, &flags, args[0]) },
	}
	flags.add(cmd.Flags())
	return cmd
}

func put(cmd *cobra.Command, flags *transferFlags, path string) error {
	ctx := cmd.Context()
	source, size, closeSource, err := openSource(ctx, cmd.InOrStdin(), path)
	if err != nil {
		return err
	}
	defer closeSource()
	v, config, err := flags.open(ctx, 1)
	if err != nil {
		return err
	}
	tell := newTransferProgress(cmd.ErrOrStderr())
	config.Observe = tell.observe
	moved, err := transfer.Put(ctx, config, source, size, uint64(flags.offset))
	err = closeVolume(ctx, v, named(path, err))
	tell.end("put "+path, moved, err)
	return err
}

func named(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%q: %w", path, err)
}

// openSource opens what is to be put, and tells its size if that is known.
func openSource(ctx context.Context, stdin io.Reader, path string) (source io.Reader, size uint64, end func(), err error) {
	if path == standardStream {
		source, end := interruptible(ctx, stdin)
		return source, transfer.UnknownSize, end, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, nil, program.Usage(err)
	}
	end = func() { _ = file.Close() } // only read
	about, err := file.Stat()
	if err == nil && about.IsDir() {
		err = program.Usagef("%q is a directory", path)
	}
	if err != nil {
		end()
		return nil, 0, nil, err
	}
	if !about.Mode().IsRegular() {
		return file, transfer.UnknownSize, end, nil
	}
	return file, uint64(about.Size()), end, nil
}

// interruptible makes a reader that ends with ctx, even while nothing comes
// from source: a terminal or pipe may be silent for ever. Closing the ends of
// the pipe between them never fails.
func interruptible(ctx context.Context, source io.Reader) (io.Reader, func()) {
	reader, writer := io.Pipe()
	go func() {
		_, err := io.CopyBuffer(writer, source, make([]byte, transferBufferSize))
		_ = writer.CloseWithError(err)
	}()
	stop := context.AfterFunc(ctx, func() { _ = writer.CloseWithError(context.Cause(ctx)) })
	return reader, func() {
		stop()
		_ = reader.Close()
	}
}
