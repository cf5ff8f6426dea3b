// SPDX-License-Identifier: Apache-2.0

package doca_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma/doca"
)

// A device of libdoca, chosen by its name or by the address of its interface.
func Example() {
	provider := doca.New(doca.Options{Device: "mlx5_2"})
	device, err := provider.Open(netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(device.Capabilities().MaxMessageSize)
	if err := device.Close(); err != nil {
		log.Fatal(err)
	}
}
