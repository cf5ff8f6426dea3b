// SPDX-License-Identifier: Apache-2.0

package software_test

import (
	"fmt"
	"log"

	"github.com/zc-relay/zc-relay/pkg/dma/software"
)

// A thread carries out the jobs, so any machine has a device. Example of package dma submits one.
func Example() {
	provider := software.New(software.Options{})
	device, err := provider.Open(software.DefaultDevice)
	if err != nil {
		log.Fatal(err)
	}
	c := device.Capabilities()
	fmt.Println(provider.Name(), c.Memcpy, c.MaxBufferSize)
	if err := device.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: software true 2097152
}
