// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/comch/hook"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A client's connections fail as long as a switch is on.
func ExampleWrap() {
	directory, err := os.MkdirTemp("", "example")
	must(err)
	defer os.RemoveAll(directory)
	rule, err := fault.Parse("comch:connect:while=outage:error=NOT_FOUND")
	must(err)
	injector, err := fault.New([]fault.Rule{rule}, nil)
	must(err)
	provider := hook.Wrap(emulated.New(emulated.Options{Directory: directory}),
		hook.Config{Injector: injector})
	ctx := context.Background()
	server, err := provider.Listen(ctx, comch.ServerConfig{Name: "storage"})
	must(err)
	defer server.Close()
	connect := func() {
		connection, err := provider.Connect(ctx, comch.ClientConfig{Name: "storage"})
		fmt.Println(status.CodeOf(err))
		if err == nil {
			connection.Abort()
		}
	}
	connect()
	injector.TurnOn("outage")
	connect()
	injector.TurnOff("outage")
	connect()
	// Output:
	// SUCCESS
	// NOT_FOUND
	// SUCCESS
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
