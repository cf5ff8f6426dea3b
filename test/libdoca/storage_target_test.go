//go:build cgo

package libdoca_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/doca"
	rdmadoca "github.com/zc-relay/zc-relay/pkg/rdma/doca"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// emulate makes the emulation of libdoca in this process the library of our relay.
func emulate(t *testing.T) *doca.Loader {
	t.Helper()
	err := libdoca.Configure(libdoca.Config{Directory: t.TempDir(),
		Report: func(m libdoca.Misuse) { t.Errorf("misuse of %s: %s", m.Function, m.Rule) }})
	if err != nil {
		t.Fatal(err)
	}
	return doca.Resolved(libdoca.Lookup)
}

// storageTarget is a target in the shape of that of the storage applications, in a process.
type storageTarget struct {
	address netip.AddrPort
	await   func() // its end, which must be a success
}

func startStorageTarget(t *testing.T, executable, test string) *storageTarget {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, executable, "dpu", test)
	command.Env = environment(t, "{role: dpu, directory: "+t.TempDir()+"}")
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	var port uint16
	if !lines.Scan() {
		t.Fatalf("the target says nothing: %s", stderr.String())
	}
	if _, err := fmt.Sscanf(lines.Text(), "port %d", &port); err != nil {
		t.Fatalf("the target says %q: %v", lines.Text(), err)
	}
	return &storageTarget{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), func() {
		var output []string
		for lines.Scan() {
			output = append(output, lines.Text())
		}
		if err := command.Wait(); err != nil {
			t.Errorf("the target: %v", err)
		}
		checkMisuse(t, "the target", stderr.String())
		t.Logf("the target: %s\n%s", strings.Join(output, ", "), stderr.String())
	}}
}

// startRelayTo runs a relay, over the emulation of libdoca, to a target of the storage
// applications.
func startRelayTo(
	t *testing.T, directory, name string, target netip.AddrPort, protocol relay.Protocol,
) {
	t.Helper()
	forwarder, err := relay.New(t.Context(), relay.Config{
		Comch: emulated.New(emulated.Options{Directory: directory}),
		RDMA:  rdmadoca.New(rdmadoca.Options{Loader: emulate(t), Device: "03:00.0"}),
		CPUs:  []int{datapath.NoCPU},
		Settings: relay.Settings{Channels: []relay.ChannelConfig{{
			ChannelID: relay.ChannelID{Device: emulated.DefaultDevice,
				Representor: emulated.DefaultRepresentor, Name: name},
			Targets: []netip.AddrPort{target}, Volume: "disk", TargetProtocol: protocol,
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, forwarder.Run, forwarder.Close)
}

func compileWithGCC(t *testing.T, program string) string {
	t.Helper()
	c := toolchains[0]
	if _, err := exec.LookPath(c.compiler); err != nil {
		t.Skipf("%v: install %s", err, c.compiler)
	}
	return c.compile(t, program)
}

// Our relay stands between an initiator and a target in the shape of the storage applications.
func TestATargetOfTheStorageApplicationsServesTheirInitiator(t *testing.T) {
	directory := t.TempDir()
	target := startStorageTarget(t, compileWithGCC(t, "storage_target"), "doca_3_2")
	startRelayTo(t, directory, storageChannels["doca_3_2"], target.address, "doca-3.2")
	runInitiator(t, compileWithGCC(t, "storage_initiator"), "doca_3_2", directory)
	target.await()
}

// Our initiator writes and reads a target of the storage applications through our relay.
func TestATargetOfTheStorageApplicationsServesOurClient(t *testing.T) {
	executable := compileWithGCC(t, "storage_target")
	for _, test := range []string{"doca_3_0", "doca_3_2"} {
		t.Run(test, func(t *testing.T) {
			directory := t.TempDir()
			target := startStorageTarget(t, executable, test)
			protocol := relay.Protocol(strings.Replace(strings.Replace(test, "_", "-", 1), "_",
				".", 1))
			startRelayTo(t, directory, client.DefaultChannelName, target.address, protocol)
			disk, err := client.Open(t.Context(), client.Config{
				Provider: emulated.New(emulated.Options{Directory: directory}),
				Device:   emulated.DefaultHostDevice})
			if err != nil {
				t.Fatal(err)
			}
			if size := disk.Info().Size; size != 4<<20 {
				t.Errorf("the volume has %d bytes", size)
			}
			writeAndRead(t, disk, test)
			if err := disk.Flush(); !errors.Is(err, status.NotSupported) {
				t.Errorf("Flush, which the protocol does not have, returns %v", err)
			}
			if err := disk.Close(t.Context()); err != nil {
				t.Errorf("close: %v", err)
			}
			target.await()
		})
	}
}

// writeAndRead writes blocks all over the volume, and compares what it reads. The protocol of 3.0
// carries only requests whose data lies behind the block's place in the volume; the others are
// refused.
func writeAndRead(t *testing.T, disk *client.Volume, test string) {
	t.Helper()
	const block = 4096
	written, refused := 0, 0
	want, got := make([]byte, block), make([]byte, block)
	for i := range clientOperations {
		_, _ = rand.Read(want) // never fails
		offset := int64(i*37%1024) * block
		_, err := disk.WriteAt(want, offset)
		if err == nil {
			_, err = disk.ReadAt(got, offset)
		}
		if errors.Is(err, status.NotSupported) && test == "doca_3_0" {
			refused++
			continue
		}
		if err != nil {
			t.Fatalf("block %d: %v", i, err)
		}
		if !bytes.Equal(want, got) {
			t.Fatalf("block %d is read as something else", i)
		}
		written++
	}
	t.Logf("%d blocks were written and verified, %d refused", written, refused)
	if written == 0 {
		t.Error("no block was written")
	}
}
