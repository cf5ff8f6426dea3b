// SPDX-License-Identifier: Apache-2.0

package verbs_test

import (
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

// A device of the kernel, RoCE, InfiniBand, or iWARP, chosen by the address of its interface.
func Example() {
	provider, err := verbs.New(verbs.Options{})
	if errors.Is(err, verbs.ErrAbsent) {
		fmt.Println("no libibverbs here:", err)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	device, err := provider.Open(netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(device.Capabilities().Transport)
	if err := device.Close(); err != nil {
		log.Fatal(err)
	}
}
