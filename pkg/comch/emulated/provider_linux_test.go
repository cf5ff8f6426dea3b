// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts/contextstest"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

func TestProviderConforms(t *testing.T) {
	tested := New(Options{Directory: t.TempDir()})
	config := comchtest.Config{
		Provider:              tested,
		OtherDevice:           "03:00.1",
		OtherHostDevice:       "b1:00.1",
		ExportNeedsDescriptor: true,
	}
	comchtest.Run(t, config)
	contextstest.Run(t, config)
	comchtest.RunOnOneMachine(t, config)
	awaitNothingHeld(t, &tested.(*provider).account, func() {})
}

// awaitNothingHeld waits for cleanup in the background, and for rings that linger unless free frees
// them.
func awaitNothingHeld(t *testing.T, a *account, free func()) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("the connections of the %s hold nothing", a.name),
		func() bool {
			free()
			return a.current() == (holdings{})
		})
}

func BenchmarkProvider(b *testing.B) {
	comchtest.Bench(b, comchtest.Config{Provider: New(Options{Directory: b.TempDir()})})
}

// leakRounds is the number of connections.
const leakRounds = 200

func TestConnectionsLeakNothing(t *testing.T) {
	provider := New(Options{Directory: t.TempDir()})
	listened, err := provider.Listen(context.Background(), comch.ServerConfig{Name: "storage"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listened.Close() }()
	useConnection(t, provider, listened, 0)
	descriptorsBefore, mappingsBefore := countDescriptors(t), countMappings(t)
	for round := range leakRounds {
		useConnection(t, provider, listened, round)
	}
	listened.(*server).pool.lingering.freeAll(uint32(unix.Getuid()), testkit.Patience, nil)
	awaitCount(t, "descriptors", countDescriptors, descriptorsBefore)
	awaitCount(t, "mappings", countMappings, mappingsBefore)
}

// useConnection uses all features of a connection, and ends it in one of several ways.
func useConnection(t *testing.T, provider comch.Provider, server comch.Server, round int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	client, err := provider.Connect(ctx, comch.ClientConfig{Name: "storage"})
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := server.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var closers []interface{ Close() error }
	for _, sides := range [][2]comch.Connection{{client, accepted}, {accepted, client}} {
		consumer, err := sides[0].NewConsumer(ctx,
			comch.ConsumerConfig{Receives: 4, MemorySize: 256})
		if err != nil {
			t.Fatal(err)
		}
		producer, err := sides[1].NewProducer(ctx, consumer.ID())
		if err != nil {
			t.Fatal(err)
		}
		closers = append(closers, consumer, producer)
	}
	closers = append(closers, exchangeMemory(ctx, t, client, accepted)...)
	switch round % 3 {
	case 0:
		client.Abort()
	case 1:
		accepted.Abort()
	}
	for _, c := range append(closers, client, accepted) {
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, client)
	awaitEnd(t, accepted)
}

func exchangeMemory(ctx context.Context, t *testing.T, from,
	to comch.Connection) []interface{ Close() error } {
	t.Helper()
	region, err := memory.Alloc("leak-test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	token, err := from.ExportMemory(ctx, region, memory.PCIRead)
	if err != nil {
		t.Fatal(err)
	}
	imported, _, err := to.ImportMemory(token)
	if err != nil {
		t.Fatal(err)
	}
	return []interface{ Close() error }{region, imported}
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// countMappings counts only shared memory: the runtime maps memory at will.
func countMappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "/memfd:")
}

// awaitCount waits for cleanup in the background.
func awaitCount(t *testing.T, what string, count func(*testing.T) int, want int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("at most %d %s remain", want, what),
		func() bool { return count(t) <= want })
}
