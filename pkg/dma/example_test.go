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

// One job gathers two ranges of a buffer into another buffer. The program examples/dma-local-copy
// takes the same steps one by one, with explanations.
func Example() {
	device, err := software.New(software.Options{}).Open(software.DefaultDevice)
	must(err)
	engine, err := progress.NewEngine(progress.Policy{})
	must(err)

	// Let the device reach the memory: read the source, write the destination.
	text, destination := []byte("zero-copy relay"), make([]byte, 16)
	from, to := dma.NewMemoryMap(), dma.NewMemoryMap()
	must(from.SetRegion(memory.Wrap(text)), from.AddDevice(device), from.Start())
	must(to.SetRegion(memory.Wrap(destination)), to.AddDevice(device),
		to.SetAccess(memory.LocalWrite), to.Start())
	inventory, err := dma.NewInventory(3)
	must(err, inventory.Start())

	// Let the engine deliver the events of the jobs.
	context := dma.NewContext()
	done := false
	must(context.AddDevice(device), context.Start(), context.Attach(engine, func(e dma.Event) {
		must(e.Err)
		fmt.Printf("job %d: %d bytes copied\n", e.UserData, e.Length)
		done = true
	}))

	// The source is a list of two buffers, both full of data.
	word, err := inventory.ByData(from, 10, 5)
	must(err)
	prefix, err := inventory.ByData(from, 0, 5)
	must(err)
	must(word.Chain(prefix))
	target, err := inventory.ByAddress(to, 0, 16)
	must(err)
	must(context.Submit(dma.Job{Type: dma.Memcpy, Source: word, Destination: target, UserData: 1}))
	for !done {
		engine.Idle(engine.Progress())
	}
	_, length := target.Data()
	fmt.Printf("%q\n", destination[:length])

	// Dropping the only reference to the head releases the whole list.
	_, err = word.RemoveReference()
	_, err2 := target.RemoveReference()
	must(err, err2)
	must(context.Detach(), context.Stop(), context.RemoveDevice(), context.Close())
	must(inventory.Close(), to.Close(), from.Close(), engine.Close(), device.Close())
	// Output:
	// job 1: 10 bytes copied
	// "relayzero-"
}

func must(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		log.Fatal(err)
	}
}
