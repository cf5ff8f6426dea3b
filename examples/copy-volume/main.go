// SPDX-License-Identifier: Apache-2.0

// Command copy-volume copies one volume to another without copying data in this process: both
// volumes use the same memory. An interrupt ends it between two pieces, and it says how to go on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/zc-relay/zc-relay/examples/internal/disk"
	"github.com/zc-relay/zc-relay/pkg/client"
)

func main() {
	from, to := disk.Flags(flag.CommandLine, "from-"), disk.Flags(flag.CommandLine, "to-")
	start := flag.Int64("start", 0, "offset in bytes to begin at, as an earlier run has said")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, from(), to(), *start); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run copies a volume, and prints what it has done.
func run(ctx context.Context, from, to client.Config, start int64) error {
	if start < 0 || start%pieceSize != 0 {
		return fmt.Errorf("--start is %d, must be a multiple of %d", start, pieceSize)
	}
	c, err := open(ctx, from, to)
	if err != nil {
		return err
	}
	next, err := c.run(ctx, start)
	fmt.Printf("copied %d bytes\n", c.copied)
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("interrupted; go on with --start %d", next)
	}
	return errors.Join(err, c.close(context.WithoutCancel(ctx)))
}
