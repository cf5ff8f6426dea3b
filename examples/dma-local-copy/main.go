// SPDX-License-Identifier: Apache-2.0

// Command dma-local-copy copies a text from one buffer of this process to another with a DMA job.
// It follows the steps that the DOCA DMA guide lists for local memory.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/doca"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

func main() {
	device := pflag.StringP("pci-addr", "p", "03:00.0", "PCI address of the DMA device")
	text := pflag.StringP("text", "t", "This is a sample piece of text", "text to copy")
	name := pflag.String("dma-provider", "software", "DMA provider: software or doca")
	pflag.Parse()
	destination := make([]byte, len(*text))
	provider, err := providerOf(*name)
	if err == nil {
		err = copyLocally(provider, *device, destination, []byte(*text))
	}
	if err == nil && string(destination) != *text {
		err = fmt.Errorf("copied %q instead of %q", destination, *text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dma-local-copy:", err)
		os.Exit(1)
	}
	fmt.Printf("Success, memory copied and verified as correct: %s\n", destination)
}

func providerOf(name string) (dma.Provider, error) {
	switch name {
	case "software":
		return software.New(software.Options{}), nil
	case "doca":
		return doca.New(doca.Options{}), nil
	}
	return nil, fmt.Errorf("--dma-provider %q is neither software nor doca", name)
}

// copyLocally fills destination from source, which has the same length. If it fails, it does not
// clean up, because the process exits.
func copyLocally(provider dma.Provider, address string, destination, source []byte) error {
	// 1. Open the device that copies. The progress engine of this thread reports when a copy has
	// completed.
	device, err := provider.Open(address)
	if err != nil {
		return err
	}
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		return err
	}

	// 2. Register both buffers with the device, each in a memory map of its own. The source is only
	// read, so only the destination needs an access right.
	from, to := dma.NewMemoryMap(), dma.NewMemoryMap()
	err = errors.Join(
		from.SetRegion(memory.Wrap(source)), from.AddDevice(device), from.Start(),
		to.SetRegion(memory.Wrap(destination)), to.AddDevice(device),
		to.SetAccess(memory.LocalWrite), to.Start(),
	)
	if err != nil {
		return err
	}

	// 3. Create an inventory of buffer descriptors. One inventory serves any number of memory maps.
	inventory, err := dma.NewInventory(2)
	if err != nil {
		return err
	}
	if err := inventory.Start(); err != nil {
		return err
	}

	// 4. Create a context on the same device and attach it to the engine, which will deliver one
	// event for each job.
	context := dma.NewContext()
	var event *dma.Event
	err = errors.Join(
		context.AddDevice(device), context.Start(),
		context.Attach(engine, func(e dma.Event) { event = &e }),
	)
	if err != nil {
		return err
	}

	// 5. Describe the copy. The source buffer is full of data, all of which is copied; the
	// destination buffer is empty.
	sourceBuffer, err := inventory.ByData(from, from.Region().Base(), uint64(len(source)))
	if err != nil {
		return err
	}
	destinationBuffer, err := inventory.ByAddress(to, to.Region().Base(), uint64(len(destination)))
	if err != nil {
		return err
	}

	// 6. Submit the job, and make progress until its event has been delivered. Submit returns some
	// errors at once, and the event reports the others. Idle decides whether to poll again, to
	// yield the core, or to sleep.
	err = context.Submit(dma.Job{
		Type: dma.Memcpy, Source: sourceBuffer, Destination: destinationBuffer,
	})
	if err != nil {
		return err
	}
	for event == nil {
		engine.Idle(engine.Progress())
	}
	if event.Err != nil {
		return event.Err
	}

	// 7. Clean up in reverse order. Dropping the last reference releases a buffer.
	_, err = sourceBuffer.RemoveReference()
	_, err2 := destinationBuffer.RemoveReference()
	return errors.Join(err, err2,
		context.Detach(), context.Stop(), context.RemoveDevice(), context.Close(),
		inventory.Close(), to.Close(), from.Close(), engine.Close(), device.Close())
}
