// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/client"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	rdmadoca "github.com/zc-relay/zc-relay/pkg/rdma/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// side is whose program stands at a position of the chain.
type side bool

const (
	ours   side = false
	theirs side = true // in the shape of the DOCA storage applications, in C
)

func (s side) String() string {
	if s == theirs {
		return "C"
	}
	return "Go"
}

// mixture is a chain of three programs, of which each may be ours or theirs. Where one of theirs is
// the neighbour, ours speak their protocol, and otherwise our own.
type mixture struct {
	version                  dialects.Version
	initiator, relay, target side
}

func (m mixture) String() string {
	return fmt.Sprintf("%v/%v-%v-%v", m.version, m.initiator, m.relay, m.target)
}

// test is the name of the version in the C programs.
func (m mixture) test() string {
	return strings.NewReplacer("-", "_", ".", "_").Replace(m.version.String())
}

// mixtures returns all chains of 2.10 and 3.2 with a program of theirs, and those of 3.0 and 3.1
// that differ from them. In 2.10, our relay cannot serve our initiator from their target, whose
// storage mirrors the memory of an initiator of 2.10.
func mixtures() (all []mixture) {
	for _, version := range []dialects.Version{dialects.DOCA2_10, dialects.DOCA3_2} {
		for bits := range 7 { // 7 are ours alone
			m := mixture{version, side(bits&1 == 0), side(bits&2 == 0), side(bits&4 == 0)}
			if version == dialects.DOCA2_10 && m == (mixture{version, ours, ours, theirs}) {
				continue
			}
			all = append(all, m)
		}
	}
	return append(all,
		mixture{dialects.DOCA3_0, theirs, ours, ours},
		mixture{dialects.DOCA3_0, theirs, ours, theirs},
		mixture{dialects.DOCA3_0, ours, ours, theirs},
		mixture{dialects.DOCA3_0, ours, theirs, ours},
		mixture{dialects.DOCA3_1, theirs, ours, ours},
		mixture{dialects.DOCA3_1, theirs, ours, theirs},
		mixture{dialects.DOCA3_1, ours, ours, theirs},
		mixture{dialects.DOCA3_1, ours, theirs, ours})
}

// Every position of the applications' chain can be taken by ours, and ours by theirs.
func TestMixturesWithTheStorageApplications(t *testing.T) {
	// Not parallel: ours share the one emulation of libdoca that a process has.
	trio := compileTrio(t, &toolchains[0])
	for _, m := range mixtures() {
		t.Run(m.String(), func(t *testing.T) { runMixture(t, m, trio) })
	}
}

// The C programs themselves break no rule, whichever compiler made them.
func TestTheStorageApplicationsWithEachToolchain(t *testing.T) {
	t.Parallel()
	for i := range toolchains {
		if toolchains[i].name == "gcc" { // TestMixturesWithTheStorageApplications uses it
			continue
		}
		t.Run(toolchains[i].name, func(t *testing.T) {
			t.Parallel()
			toolchains[i].require(t)
			trio := compileTrio(t, &toolchains[i])
			for _, version := range []dialects.Version{dialects.DOCA2_10, dialects.DOCA3_2} {
				m := mixture{version, theirs, theirs, theirs}
				t.Run(m.String(), func(t *testing.T) {
					t.Parallel()
					runMixture(t, m, trio)
				})
			}
		})
	}
}

// compileTrio compiles the initiator, the relay, and the target in C.
func compileTrio(t testing.TB, c *toolchain) map[string]string {
	t.Helper()
	testkit.RequireTools(t, c.compiler)
	programs := make(map[string]string)
	for _, name := range []string{"storage_initiator", "storage_relay", "storage_target"} {
		programs[name] = c.compile(t, name)
	}
	return programs
}

func runMixture(t *testing.T, m mixture, programs map[string]string) {
	directory := t.TempDir()
	var loader *doca.Loader
	if m.initiator == ours || m.relay == ours || m.target == ours {
		loader = emulate(t, directory)
	}
	var address netip.AddrPort
	var ends []func()
	if m.target == theirs {
		process := startProgram(t, programs["storage_target"], m.test(), directory)
		address = process.address(t)
		ends = append(ends, process.await)
	} else {
		address = startOurTarget(t, m, loader)
	}
	if m.relay == theirs {
		process := startProgram(t, programs["storage_relay"], m.test(), directory,
			fmt.Sprint("TARGET=", address.Port()))
		process.expect(t, "ready")
		ends = append(ends, process.await)
	} else {
		startOurRelay(t, m, loader, directory, address)
	}
	if m.initiator == theirs {
		runInitiator(t, programs["storage_initiator"], m.test(), directory)
	} else {
		runOurInitiator(t, m, loader, directory)
	}
	for _, await := range ends {
		await()
	}
}

// emulate makes the emulation of libdoca in this process the library of our programs.
func emulate(t testing.TB, directory string) *doca.Loader {
	t.Helper()
	err := libdoca.Configure(libdoca.Config{Directory: directory,
		Report: func(m libdoca.Misuse) { t.Errorf("misuse of %s: %s", m.Function, m.Rule) }})
	if err != nil {
		t.Fatal(err)
	}
	return doca.Resolved(libdoca.Lookup)
}

// program is a relay or a target of theirs, in a process.
type program struct {
	lines *bufio.Scanner
	await func() // its end, which must be a success
}

func startProgram(
	t testing.TB, executable, test, directory string, environ ...string,
) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, executable, "dpu", test)
	command.Env = append(environment(t, "{role: dpu, directory: "+directory+"}"), environ...)
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{lines: bufio.NewScanner(stdout)}
	name := executable[strings.LastIndex(executable, "/")+1:]
	p.await = sync.OnceFunc(func() {
		var output []string
		for p.lines.Scan() {
			output = append(output, p.lines.Text())
		}
		if err := command.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		checkMisuse(t, name, stderr.String())
		t.Logf("%s: %s\n%s", name, strings.Join(output, ", "), stderr.String())
	})
	t.Cleanup(func() {
		cancel()
		p.await()
	})
	return p
}

// expect waits for a line of the program's output.
func (p *program) expect(t testing.TB, format string, values ...any) {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("the program says nothing, expected %q", format)
	}
	if _, err := fmt.Sscanf(p.lines.Text(), format, values...); err != nil && len(values) > 0 ||
		len(values) == 0 && p.lines.Text() != format {
		t.Fatalf("the program says %q, expected %q", p.lines.Text(), format)
	}
}

// address returns where a target listens.
func (p *program) address(t testing.TB) netip.AddrPort {
	t.Helper()
	var port uint16
	p.expect(t, "port %d", &port)
	return netip.AddrPortFrom(loopback, port)
}

var loopback = netip.MustParseAddr("127.0.0.1")

// rdmaOf returns our provider on one side of a connection, whose other side may be theirs.
func rdmaOf(peer side, loader *doca.Loader) rdma.Provider {
	if peer == theirs {
		return rdmadoca.New(rdmadoca.Options{Loader: loader, Device: "03:00.0"})
	}
	return iwarp.New(iwarp.Options{})
}

func startOurTarget(t testing.TB, m mixture, loader *doca.Loader) netip.AddrPort {
	t.Helper()
	disk := volumetest.OpenMemory(t, "4MiB")
	config := target.Config{
		RDMA: rdmaOf(m.relay, loader), Listen: netip.AddrPortFrom(loopback, 0),
		RDMAListen: netip.AddrPortFrom(loopback, 0),
		Volumes:    map[string]target.Offer{"disk": {Volume: disk}}, CPUs: []int{datapath.NoCPU},
	}
	if m.relay == theirs {
		config.Protocol = m.version
	}
	storage, err := target.New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, storage.Run, storage.Close)
	return storage.Address()
}

func startOurRelay(
	t testing.TB, m mixture, loader *doca.Loader, directory string, address netip.AddrPort,
) {
	t.Helper()
	channel := relay.ChannelConfig{
		ChannelID: relay.ChannelID{Device: emulated.DefaultDevice,
			Representor: emulated.DefaultRepresentor, Name: m.channel()},
		Targets: []netip.AddrPort{address}, Volume: "disk",
	}
	if m.target == theirs {
		channel.TargetProtocol = relay.Protocol(m.version.String())
	}
	if m.initiator == theirs {
		channel.Protocol = relay.Protocol(m.version.String())
	}
	forwarder, err := relay.New(t.Context(), relay.Config{
		Comch: emulated.New(emulated.Options{Directory: directory}),
		RDMA:  rdmaOf(m.target, loader), CPUs: []int{datapath.NoCPU},
		Settings: relay.Settings{Channels: []relay.ChannelConfig{channel}},
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, forwarder.Run, forwarder.Close)
}

// channel returns the name under which initiators of the version look for their relay.
func (m mixture) channel() string {
	if m.version == dialects.DOCA2_10 {
		return client.DefaultChannelName
	}
	return client.ChannelName3
}

func runInitiator(t testing.TB, executable, test, directory string) {
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

// Of our initiator: what theirs has, too.
const (
	ourQueues = 2
	ourDepth  = 16
	ourBlock  = 4096
)

func runOurInitiator(t testing.TB, m mixture, loader *doca.Loader, directory string) {
	t.Helper()
	config := client.Config{
		Provider: emulated.New(emulated.Options{Directory: directory}),
		Device:   emulated.DefaultHostDevice, ChannelName: m.channel(),
		Queues: ourQueues, Depth: ourDepth, BufferSize: ourBlock, SyncDepth: -1,
	}
	if m.relay == theirs {
		config.Protocol = m.version
	}
	// Either provider exports what their relay imports.
	if m.relay == theirs && m.target == theirs {
		config.Provider = comchdoca.New(comchdoca.Options{Loader: loader})
	}
	disk, err := client.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var queues sync.WaitGroup
	for q := range ourQueues {
		queues.Go(func() { verifyQueue(t, disk.Queue(q), q, m) })
	}
	queues.Wait()
	t.Logf("our initiator has verified %d writes and reads, %.0f IO/s",
		ourQueues*storageOperations,
		2*ourQueues*storageOperations/time.Since(began).Seconds())
	if m.relay == theirs || m.target == theirs {
		checkRefusals(t, disk.Queue(0), m)
	}
	if err := disk.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
}

// checkRefusals requests what the protocol of theirs does not have.
func checkRefusals(t testing.TB, queue *client.Queue, m mixture) {
	t.Helper()
	refused := []client.Request{
		{Type: client.Flush}, {Type: client.Trim, Length: ourBlock},
		{Type: client.WriteZeroes, Length: ourBlock},
		{Type: client.Extents, Length: iomsg.ExtentSize, Range: ourBlock},
		{Type: client.Write, Length: ourBlock, Flags: client.FUA},
	}
	if m.version <= dialects.DOCA3_0 {
		refused = append(refused, client.Request{Type: client.Read, Length: ourBlock,
			Offset: ourBlock})
	}
	for i := range refused {
		err := queue.Submit(&refused[i])
		if err == nil {
			queue.Ring()
			var results [1]client.Result
			testkit.Eventually(t, fmt.Sprintf("%v has a result", refused[i].Type),
				func() bool { return queue.Poll(results[:]) > 0 })
			err = results[0].Err()
		}
		if !errors.Is(err, status.NotSupported) {
			t.Errorf("%v, which the protocol does not have, returns %v", refused[i].Type, err)
		}
	}
}

// verifyQueue writes blocks, reads each back into cleared memory, and compares.
func verifyQueue(t testing.TB, queue *client.Queue, number int, m mixture) {
	memory := queue.Memory()
	rows := uint64(4<<20) / (ourQueues * ourDepth * ourBlock)
	if m.version <= dialects.DOCA3_0 { // where a block has the same place in memory and volume
		rows = 1
	}
	var slots [ourDepth]struct {
		request client.Request
		seed    uint64
		buffer  []byte
		written uint64
	}
	submit := func(i int) {
		s := &slots[i]
		if err := queue.Submit(&s.request); err != nil {
			t.Errorf("submit: %v", err)
		}
		queue.Ring()
	}
	write := func(i int) {
		s := &slots[i]
		place := uint64(number*ourDepth + i)
		s.seed = s.seed*6364136223846793005 + place + 1
		for b := range s.buffer {
			s.buffer[b] = byte(s.seed >> (b % 57))
		}
		s.request = client.Request{Type: client.Write, Length: ourBlock, Memory: place * ourBlock,
			Offset: (s.written%rows*ourQueues*ourDepth + place) * ourBlock, Tag: uint64(i)}
		s.written++
		submit(i)
	}
	for i := range slots {
		offset := (number*ourDepth + i) * ourBlock
		slots[i].buffer = memory[offset:][:ourBlock]
		write(i)
	}
	var results [ourDepth]client.Result
	for verified := 0; verified < storageOperations && !t.Failed(); {
		n := queue.Poll(results[:])
		if n == 0 {
			time.Sleep(20 * time.Microsecond)
		}
		for _, result := range results[:n] {
			i := int(result.Tag)
			s := &slots[i]
			if err := result.Err(); err != nil {
				t.Errorf("%v at %d: %v", s.request.Type, s.request.Offset, err)
				return
			}
			if s.request.Type == client.Write {
				clear(s.buffer)
				s.request.Type = client.Read
				submit(i)
				continue
			}
			for b := range s.buffer {
				if s.buffer[b] != byte(s.seed>>(b%57)) {
					t.Errorf("byte %d of the block at %d is another", b, s.request.Offset)
					return
				}
			}
			if verified++; int(s.written)*ourDepth < storageOperations {
				write(i)
			}
		}
	}
}

func serve(t testing.TB, run func(context.Context) error, end func() error) {
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
