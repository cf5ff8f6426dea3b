// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// A relay with one channel, as the program zc-relay runs it. It looks for its target until there is
// one. Example of package client has a target and a client as well.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	directory, err := os.MkdirTemp("", "relay-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(directory)
	r, err := relay.New(ctx, relay.Config{
		Comch: emulated.New(emulated.Options{Directory: directory}),
		RDMA:  iwarp.New(iwarp.Options{}),
		CPUs:  []int{datapath.NoCPU}, // one worker, which may run on any core
		Settings: relay.Settings{Channels: []relay.ChannelConfig{{
			ChannelID: relay.ChannelID{Device: emulated.DefaultDevice,
				Representor: emulated.DefaultRepresentor, Name: client.DefaultChannelName},
			Targets: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}, // nobody listens
			Volume:  "disk",
		}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			log.Fatal(err)
		}
	})
	for _, c := range r.Channels() {
		fmt.Printf("channel %s: %d sessions\n", c.Name, c.Sessions)
	}

	cancel()
	running.Wait()
	if err := r.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: channel storage_zero_copy_comch: 0 sessions
}
