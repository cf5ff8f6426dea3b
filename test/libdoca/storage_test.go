//go:build cgo

package libdoca_test

import (
	"bytes"
	"context"
	"net/netip"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// storageChannels are the channels that the storage applications look for, by the program's tests.
var storageChannels = map[string]string{
	"doca_2_10": "storage_zero_copy_comch", "doca_3_2": "doca_storage_comch",
}

// Initiators in the shape of the storage applications read and write a volume of our target through
// our relay, in their own protocols.
func TestInitiatorsOfTheStorageApplications(t *testing.T) {
	directory := t.TempDir()
	startStorage(t, directory)
	for _, c := range toolchains[:2] {
		if _, err := exec.LookPath(c.compiler); err != nil {
			t.Skipf("%v: install %s", err, c.compiler)
		}
		executable := c.compile(t, "storage_initiator")
		for test := range storageChannels {
			t.Run(c.name+"/"+test, func(t *testing.T) {
				runInitiator(t, executable, test, directory)
			})
		}
	}
}

func runInitiator(t *testing.T, executable, test, directory string) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, executable, "host", test)
	command.Env = append(environment(t, "{role: host, directory: "+directory+"}"),
		"OPERATIONS="+strconv.Itoa(storageOperations))
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	began := time.Now()
	if err := command.Run(); err != nil {
		t.Errorf("the initiator: %v", err)
	}
	checkMisuse(t, "the initiator", output.String())
	t.Logf("%v: %s", time.Since(began), output.String())
}

// startStorage runs a target and a relay with the storage applications' channels until the test
// ends.
func startStorage(t *testing.T, directory string) {
	t.Helper()
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	spec, err := volume.ParseSpec("disk=memory:4MiB", 4096)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := volume.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = disk.Close(context.Background()) })
	storage, err := target.New(t.Context(), target.Config{
		RDMA: iwarp.New(iwarp.Options{}), Listen: loopback, RDMAListen: loopback,
		Volumes: map[string]target.Export{"disk": {Volume: disk}}, CPUs: []int{datapath.NoCPU},
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, storage.Run, storage.Close)
	var channels []relay.ChannelConfig
	for _, name := range storageChannels {
		channels = append(channels, relay.ChannelConfig{
			ChannelID: relay.ChannelID{Device: emulated.DefaultDevice,
				Representor: emulated.DefaultRepresentor, Name: name},
			Targets: []netip.AddrPort{storage.Address()}, Volume: "disk",
		})
	}
	forwarder, err := relay.New(t.Context(), relay.Config{
		Comch: emulated.New(emulated.Options{Directory: directory}),
		RDMA:  iwarp.New(iwarp.Options{}), CPUs: []int{datapath.NoCPU},
		Settings: relay.Settings{Channels: channels},
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, forwarder.Run, forwarder.Close)
}

func serve(t *testing.T, run func(context.Context) error, end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}
