// SPDX-License-Identifier: Apache-2.0

// Command key-value-store keeps keys and values on a volume, by the client's blocking methods. What
// it has synced survives whatever happens to the relay and the target.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/zc-relay/zc-relay/examples/internal/disk"
	"github.com/zc-relay/zc-relay/pkg/client"
)

func main() {
	config := disk.Flags(flag.CommandLine, "")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: key-value-store [flags] put KEY VALUE | get KEY")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(context.Background(), config(), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run carries out a command.
func run(ctx context.Context, config client.Config, arguments []string) (err error) {
	volume, err := client.Open(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, volume.Close(ctx)) }()
	s, err := openStore(volume)
	if err != nil {
		return err
	}
	switch {
	case len(arguments) == 3 && arguments[0] == "put":
		return errors.Join(s.put(ctx, arguments[1], []byte(arguments[2])), s.sync(ctx))
	case len(arguments) == 2 && arguments[0] == "get":
		value, err := s.get(ctx, arguments[1])
		if err == nil {
			fmt.Printf("%s\n", value)
		}
		return err
	}
	return errors.New("usage: put KEY VALUE, or get KEY")
}
