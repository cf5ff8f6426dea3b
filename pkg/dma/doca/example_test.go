// SPDX-License-Identifier: Apache-2.0

package doca_test

import (
	"fmt"
	"log"

	"github.com/zc-relay/zc-relay/pkg/dma/doca"
)

// The DMA engine of a BlueField.
func Example() {
	device, err := doca.New(doca.Options{}).Open("03:00.0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(device.Capabilities().MaxBufferSize)
	if err := device.Close(); err != nil {
		log.Fatal(err)
	}
}
