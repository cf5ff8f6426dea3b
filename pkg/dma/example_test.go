// SPDX-License-Identifier: Apache-2.0

package dma_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// The example takes the steps of the DOCA DMA guide for local memory. It runs on any provider;
// here it is the one for every machine. The program examples/dma-local-copy takes the same steps,
// with explanations and without shortcuts.
func Example() {
	gather(software.New(software.Options{}), software.DefaultDevice)
	// Output:
	// job 1: 10 bytes copied
	// "relayzero-"
}

// gather copies two ranges of a buffer into another buffer, with one job.
func gather(provider dma.Provider, address string) {
	// Open the device, here by its PCI address.
	device, err := provider.Open(address)
	must(err)

	// Create the objects: memory maps, inventory, work queue, and context.
	from, to := dma.NewMemoryMap(), dma.NewMemoryMap()
	inventory, err := dma.NewInventory(3)
	must(err)
	workQueue, err := progress.NewEngine(progress.Policy{})
	must(err)
	context := dma.NewContext()

	// Set up the memory maps: range, device, rights. The source is only read.
	text, destination := []byte("zero-copy relay"), make([]byte, 16)
	must(from.SetRegion(memory.Wrap(text)), from.AddDevice(device), from.Start())
	must(to.SetRegion(memory.Wrap(destination)), to.AddDevice(device),
		to.SetAccess(memory.LocalWrite), to.Start())
	must(inventory.Start())

	// Set up the context with the same device, and add the work queue. A started context cannot be
	// configured.
	if !device.Capabilities().Memcpy {
		log.Fatal("the device does not copy memory")
	}
	var event *dma.Event
	must(context.AddDevice(device), context.Start(),
		context.Attach(workQueue, func(e dma.Event) { event = &e }))

	// Claim buffers. The source is a list of two, both full of data; the destination is empty.
	word, err := inventory.ByData(from, from.Region().Base()+10, 5)
	must(err)
	prefix, err := inventory.ByData(from, from.Region().Base(), 5)
	must(err, word.Chain(prefix))
	target, err := inventory.ByAddress(to, to.Region().Base(), 16)
	must(err)

	// Submit the job to the work queue, and retrieve its progress until the event has come. Idle
	// decides whether to poll again, to yield the core, or to sleep.
	must(context.Submit(dma.Job{Type: dma.Memcpy, Source: word, Destination: target, UserData: 1}))
	for event == nil {
		workQueue.Idle(workQueue.Progress())
	}
	if event.Type == dma.Memcpy { // another context could share the work queue
		must(event.Err)
		fmt.Printf("job %d: %d bytes copied\n", event.UserData, event.Length)
	}
	_, length := target.Data()
	fmt.Printf("%q\n", destination[:length])

	// Drop the references, also after a failure. The head of a list releases all of it.
	_, err = word.RemoveReference()
	_, err2 := target.RemoveReference()
	must(err, err2)

	// Remove the work queue, stop the context, remove the device, and destroy everything.
	must(context.Detach(), context.Stop(), context.RemoveDevice(), context.Close())
	must(inventory.Close(), to.Close(), from.Close(), workQueue.Close(), device.Close())
}

func must(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		log.Fatal(err)
	}
}
