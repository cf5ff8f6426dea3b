// Command dma-local-copy copies a text from one memory of this process to
// another by a DMA job: the guide's steps for local memory, one after the other.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

func main() {
	device := pflag.StringP("pci-addr", "p", "03:00.0", "PCI address of the DMA device")
	text := pflag.StringP("text", "t", "This is a sample piece of text", "text to copy")
	pflag.Parse()
	destination := make([]byte, len(*text))
	err := copyLocally(*device, destination, []byte(*text))
	if err == nil && string(destination) != *text {
		err = fmt.Errorf("copied was %q", destination)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dma-local-copy:", err)
		os.Exit(1)
	}
	fmt.Printf("Success, memory copied and verified as correct: %s\n", destination)
}

// copyLocally fills destination from source, which are of the same length. On
// failure it leaves cleaning up to the end of the process.
func copyLocally(address string, destination, source []byte) error {
	// The device, and what the engine of this thread needs.
	device, err := software.New(software.Options{}).Open(address)
	if err != nil {
		return err
	}
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		return err
	}

	// A memory map for each of the two memories, with the least rights.
	from, to := dma.NewMemoryMap(), dma.NewMemoryMap()
	err = errors.Join(
		from.SetRegion(memory.Wrap(source)), from.AddDevice(device), from.Start(),
		to.SetRegion(memory.Wrap(destination)), to.AddDevice(device), to.SetAccess(memory.LocalWrite), to.Start(),
	)
	if err != nil {
		return err
	}

	// One inventory is enough for the buffers of both.
	inventory, err := dma.NewInventory(2)
	if err != nil {
		return err
	}
	if err := inventory.Start(); err != nil {
		return err
	}

	// The context that takes jobs; its events come out of the engine.
	context := dma.NewContext()
	var event *dma.Event
	err = errors.Join(context.AddDevice(device), context.Start(), context.Attach(engine, func(e dma.Event) { event = &e }))
	if err != nil {
		return err
	}

	// The source's data says how much is copied, the destination is empty.
	sourceBuffer, err := inventory.ByData(from, 0, uint64(len(source)))
	if err != nil {
		return err
	}
	destinationBuffer, err := inventory.ByAddress(to, 0, uint64(len(destination)))
	if err != nil {
		return err
	}

	// Some errors are found at once, others are told by the event.
	err = context.Submit(dma.Job{Type: dma.Memcpy, Source: sourceBuffer, Destination: destinationBuffer})
	if err != nil {
		return err
	}
	for event == nil {
		engine.Idle(engine.Progress())
	}
	if event.Type == dma.Memcpy && event.Err != nil {
		return event.Err
	}

	// Whether that went well or not, everything goes in reverse order.
	_, err = sourceBuffer.RemoveReference()
	_, err2 := destinationBuffer.RemoveReference()
	return errors.Join(err, err2,
		context.Detach(), context.Stop(), context.RemoveDevice(), context.Close(),
		inventory.Close(), to.Close(), from.Close(), engine.Close(), device.Close())
}
