// SPDX-License-Identifier: Apache-2.0

// Command outlive-failures writes blocks of a volume, flushes, and reads them again, whatever
// happens to the relay and the target. It drives a queue from an event loop of its own, epoll, and
// looks after everything that a queue leaves to its program: it repeats what a session has left
// unfinished, takes data out of memory that a silent relay keeps, and writes again what a target
// may have lost.
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
	config := disk.Flags(flag.CommandLine, "")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, config()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run works until ctx ends, and prints what it has done.
func run(ctx context.Context, config client.Config) error {
	v, err := client.Open(ctx, configure(config))
	if err != nil {
		return err
	}
	w := newWriter(v)
	err = w.loop(ctx)
	fmt.Printf("%d rounds, %+v\n", w.rounds.Load(), v.Reconnections())
	return errors.Join(err, v.Close(context.WithoutCancel(ctx)))
}
