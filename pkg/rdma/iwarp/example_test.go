// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
)

// An iWARP endpoint over TCP needs no RDMA device: any local address serves. Example of package
// rdma connects two of them.
func Example() {
	provider := iwarp.New(iwarp.Options{CRC: true})
	device, err := provider.Open(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		log.Fatal(err)
	}
	c := device.Capabilities()
	fmt.Println(provider.Name(), c.Transport)
	fmt.Println("a write that has completed is in the peer's memory:", c.WriteImpliesPlaced)
	fmt.Println("data must not change until it is sent:", c.StableSource) // because of the CRC

	queue, err := device.NewCompletionQueue(128)
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(queue.Close(), device.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// iwarp iwarp
	// a write that has completed is in the peer's memory: false
	// data must not change until it is sent: true
}
