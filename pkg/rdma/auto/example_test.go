// SPDX-License-Identifier: Apache-2.0

package auto_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/auto"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
)

// A device uses shared memory with peers on the same machine, and iWARP with all others.
func Example() {
	ctx := context.Background()
	device, err := auto.New(iwarp.Options{}).Open(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := device.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rdma.TransportTo(ctx, device, listener.Address()))
	if err := listener.Close(); err != nil {
		log.Fatal(err)
	}
	if err := device.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: shm
}
