// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// A target, a relay, and a client run in one process. The client writes a block to the volume of
// the target and reads it back: its memory is exported to the relay, which moves the data between
// that memory and the target by RDMA.
func Example() {
	ctx := context.Background()
	directory, err := os.MkdirTemp("", "client-example")
	must(err)
	defer os.RemoveAll(directory)
	readBack(ctx, emulated.New(emulated.Options{Directory: directory}),
		iwarp.New(iwarp.Options{}), netip.MustParseAddr("127.0.0.1"))
	// Output:
	// disk: 1048576 bytes over iwarp
	// read "zero-copy"
}

// readBack runs the chain on any providers. address is the local address of RDMA connections.
func readBack(ctx context.Context, channel comch.Provider, network rdma.Provider,
	address netip.Addr) {
	stopTarget, targetAddress := startTarget(ctx, network, address, "disk")
	stopRelay := startRelay(ctx, channel, network, targetAddress, "disk")

	// The client only knows the relay's channel, which chooses the target and the volume.
	disk, err := client.Open(ctx, client.Config{Provider: channel,
		Device: emulated.DefaultHostDevice})
	must(err)
	info := disk.Info()
	fmt.Printf("%s: %d bytes over %s\n", info.Name, info.Size, info.Transport)
	_, err = disk.WriteAt([]byte("zero-copy"), 4096)
	must(err)
	must(disk.Flush())
	buffer := make([]byte, 9)
	_, err = disk.ReadAt(buffer, 4096)
	must(err)
	fmt.Printf("read %q\n", buffer)

	must(disk.Close(ctx))
	stopRelay()
	stopTarget()
}

// startTarget serves a volume in memory.
func startTarget(ctx context.Context, network rdma.Provider, local netip.Addr,
	name string) (stop func(), address netip.AddrPort) {
	spec, err := volume.ParseSpec(name+"=memory:1MiB", 4096)
	must(err)
	disk, err := volume.Open(spec)
	must(err)
	anyPort := netip.AddrPortFrom(local, 0)
	t, err := target.New(ctx, target.Config{
		RDMA: network, Listen: anyPort, RDMAListen: anyPort,
		Volumes: map[string]target.Offer{name: {Volume: disk}},
		CPUs:    []int{datapath.NoCPU}, // one worker, not pinned to a core
	})
	must(err)
	stopRun := run(ctx, t.Run)
	return func() {
		stopRun()
		must(errors.Join(t.Close(), disk.Close(ctx)))
	}, t.Address()
}

// startRelay offers a volume of a target on the default channel.
func startRelay(ctx context.Context, channel comch.Provider, network rdma.Provider,
	address netip.AddrPort, name string) (stop func()) {
	r, err := relay.New(ctx, relay.Config{
		Comch: channel, RDMA: network, CPUs: []int{datapath.NoCPU},
		Settings: relay.Settings{Channels: []relay.ChannelConfig{{
			ChannelID: relay.ChannelID{
				Device: emulated.DefaultDevice, Representor: emulated.DefaultRepresentor,
				Name: client.DefaultChannelName,
			},
			Targets: []netip.AddrPort{address}, Volume: name,
		}}},
	})
	must(err)
	stopRun := run(ctx, r.Run)
	return func() {
		stopRun()
		must(r.Close())
	}
}

// run runs a service until stop is called.
func run(ctx context.Context, service func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { must(service(ctx)) })
	return func() {
		cancel()
		running.Wait()
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
