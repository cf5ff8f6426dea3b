// SPDX-License-Identifier: Apache-2.0

package shm_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma/shm"
)

// Programs on one machine exchange data through shared memory. Package auto chooses this provider
// for peers on the same machine, and iwarp for all others.
func Example() {
	provider := shm.New(shm.Options{})
	device, err := provider.Open(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(provider.Name(), device.Capabilities().Transport)
	if err := device.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: shm shm
}
