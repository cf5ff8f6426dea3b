// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func exportPlain(t *testing.T, c *connection, region *memory.Region, access memory.Access) []byte {
	t.Helper()
	descriptor, err := c.ExportPlain(t.Context(), region, access)
	if err != nil {
		t.Fatal(err)
	}
	return descriptor
}

func TestAPlainExportIsWhatLibdocaExports(t *testing.T) {
	client, server := newTestPair(t)
	region := allocate(t, 5000)
	copy(region.Bytes(), "from the host")
	for access, want := range map[memory.Access]struct {
		flags uint32
		got   memory.Access
	}{
		memory.PCIRead: {broker.PCIReadOnly, memory.PCIRead | memory.RemoteRead},
		memory.PCIRead | memory.PCIWrite: {broker.PCIReadWrite | broker.LocalReadWrite,
			foreignAccess},
		memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite: {broker.PCIReadWrite |
			broker.LocalReadWrite | broker.RDMARead | broker.RDMAWrite, foreignAccess},
	} {
		descriptor := exportPlain(t, client, region, access)
		parsed, err := broker.Parse(descriptor)
		if err != nil || parsed.Access != want.flags || parsed.Address != region.Base() ||
			parsed.Length != 5000 || parsed.Kind != broker.KindPCI {
			t.Fatalf("rights %#x: the descriptor is %+v, error %v", uint32(access), parsed, err)
		}
		if again := exportPlain(t, client, region, access); string(again) != string(descriptor) {
			t.Error("the same export has another descriptor")
		}
		imported, got, err := server.ImportMemory(descriptor)
		if err != nil || got != want.got || imported.Base() != region.Base() ||
			imported.Len() != 5000 {
			t.Fatalf("rights %#x: imported %v with %#x, error %v", uint32(access), imported,
				uint32(got), err)
		}
		content := make([]byte, 13)
		if err := imported.CopyOut(content, 0); err != nil || string(content) != "from the host" {
			t.Errorf("imported %q, error %v", content, err)
		}
		if err := imported.Close(); err != nil {
			t.Error(err)
		}
	}
}

const foreignAccess = memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite

func TestAPlainExportEndsWithItsConnection(t *testing.T) {
	client, server := newTestPair(t)
	region := allocate(t, 4096)
	descriptor := exportPlain(t, client, region, memory.PCIRead)
	imported, _, err := server.ImportMemory(descriptor)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = imported.Close() }()
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if !client.cleanup.waitFor(0, testkit.Patience, nil) {
		t.Fatal("the export does not end while a peer holds the memory")
	}
	parsed, err := broker.Parse(descriptor)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := broker.Open(&parsed); !errors.Is(err, status.NotFound) {
		t.Errorf("asking for the memory gave %v", err)
	}
	if err := imported.CopyOut(make([]byte, 1), 0); err != nil {
		t.Errorf("memory that has been imported: %v", err)
	}
	_, err = client.ExportPlain(t.Context(), region, memory.PCIRead)
	if !errors.Is(err, status.NotConnected) {
		t.Errorf("an export after the end gave %v", err)
	}
}

func TestPlainExportsAreCheckedAndLimited(t *testing.T) {
	client, _ := newTestPair(t)
	region := allocate(t, 64)
	for name, c := range map[string]struct {
		region *memory.Region
		access memory.Access
		want   error
	}{
		"no rights":      {region, 0, status.InvalidValue},
		"unknown rights": {region, 1 << 31, status.InvalidValue},
		"no PCI":         {region, memory.RemoteRead, status.InvalidValue},
		"no file":        {memory.Wrap(make([]byte, 64)), memory.PCIRead, status.NotSupported},
	} {
		if _, err := client.ExportPlain(t.Context(), c.region, c.access); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.ExportPlain(ended, region, memory.PCIRead); !errors.Is(err,
		context.Canceled) {
		t.Errorf("after its context: %v", err)
	}
	for range client.limits.MaxExports {
		exportPlain(t, client, allocate(t, 64), memory.PCIRead)
	}
	_, err := client.ExportPlain(t.Context(), region, memory.PCIRead)
	if !errors.Is(err, status.Full) {
		t.Errorf("one export too many gave %v", err)
	}
}
