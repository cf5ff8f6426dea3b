// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// A target that serves a volume in memory, as the program target does. Example of package client
// has a relay and a client as well.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	spec, err := volume.ParseSpec("disk=memory:1MiB", 4096)
	if err != nil {
		log.Fatal(err)
	}
	disk, err := volume.Open(spec)
	if err != nil {
		log.Fatal(err)
	}
	anyPort := netip.MustParseAddrPort("127.0.0.1:0")
	t, err := target.New(ctx, target.Config{
		RDMA: iwarp.New(iwarp.Options{}), Listen: anyPort, RDMAListen: anyPort,
		Volumes: map[string]target.Offer{"disk": {Volume: disk}},
		CPUs:    []int{datapath.NoCPU}, // one worker, which may run on any core
	})
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := t.Run(ctx); err != nil {
			log.Fatal(err)
		}
	})
	for _, v := range t.Volumes() {
		fmt.Println(v.Name, v.Size, v.State)
	}

	cancel()
	running.Wait()
	if err := errors.Join(t.Close(), disk.Close(context.Background())); err != nil {
		log.Fatal(err)
	}
	// Output: disk 1048576 serving
}
