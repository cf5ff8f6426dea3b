// SPDX-License-Identifier: Apache-2.0

package emulated_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// The DPU and the host are two programs on one machine that meet in a directory. Here one program
// is both. Example of package comch shows what they can do then.
func Example() {
	ctx := context.Background()
	directory, err := os.MkdirTemp("", "emulated-example")
	check(err)
	defer os.RemoveAll(directory)

	// On the DPU: device 03:00.0, which represents function b1:00.0 of the host.
	dpu := emulated.New(emulated.Options{Directory: directory})
	server, err := dpu.Listen(ctx, comch.ServerConfig{Device: emulated.DefaultDevice,
		Representor: emulated.DefaultRepresentor, Name: "greeter"})
	check(err)

	// On the host, for which the device is that function.
	host := emulated.New(emulated.Options{Directory: directory})
	services, err := emulated.UnixSockets(directory).Services()
	check(err)
	for _, s := range services {
		fmt.Printf("%q for %s\n", s.Name, s.Representor)
	}
	client, err := host.Connect(ctx, comch.ClientConfig{Device: emulated.DefaultHostDevice,
		Name: "greeter"})
	check(err)
	accepted, err := server.Accept(ctx)
	check(err)
	check(client.Send(ctx, []byte("hello")))
	message, err := accepted.Receive(ctx)
	check(err)
	fmt.Printf("%s\n", message)

	check(client.Close())
	check(accepted.Close())
	check(server.Close())
	// Output:
	// "greeter" for b1:00.0
	// hello
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
