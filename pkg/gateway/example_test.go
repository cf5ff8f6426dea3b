// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"context"
	"errors"
	"log"
	"net"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/gateway"
	"github.com/zc-relay/zc-relay/pkg/nbd"
)

// A program that serves a volume to NBD clients, with a worker for each queue of the volume. The
// relay must run.
func ExampleOf() {
	ctx := context.Background()
	disk, err := client.Open(ctx, client.Config{
		Provider: emulated.New(emulated.Options{}), Device: emulated.DefaultHostDevice, Queues: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:10809")
	if err != nil {
		log.Fatal(err)
	}
	export, err := gateway.Of(disk)
	if err != nil {
		log.Fatal(err)
	}
	server, err := nbd.NewServer(nbd.Config{Workers: disk.Info().Queues})
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(server.AddExport("disk", export), server.Serve(listener)); err != nil {
		log.Fatal(err)
	}

	<-disk.Done() // the volume is over

	// The server is first, because its connections use the memory of the volume.
	if err := errors.Join(server.Close(ctx), disk.Close(ctx)); err != nil {
		log.Fatal(err)
	}
}
