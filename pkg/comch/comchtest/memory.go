// SPDX-License-Identifier: Apache-2.0

package comchtest

import (
	"bytes"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	exportLength = 1 << 16 // bytes
	readWrite    = memory.PCIRead | memory.PCIWrite
)

func (s *Suite) testMemory(t *testing.T) {
	s.skipWithHost(t, "memory of this process is not on the host")
	t.Run("ImportReachesTheExportedBytes", func(t *testing.T) { s.bothWays(t, testImport) })
	t.Run("RightsTravelWithTheExport", func(t *testing.T) { s.bothWays(t, testRights) })
	t.Run("ImportOutlivesTheConnection", func(t *testing.T) { s.bothWays(t, testImportOutlives) })
	t.Run("BadDescriptorsAreRejected", func(t *testing.T) { s.bothWays(t, testBadDescriptors) })
	t.Run("ExportsBelongToTheirConnection", s.testForeignDescriptor)
	t.Run("ExportedBytesAreLimited", s.testExportLimit)
	t.Run("BadExportsAreRejected", func(t *testing.T) { s.bothWays(t, s.testBadExports) })
}

// Allocate returns memory that is released when the test ends.
func Allocate(t *testing.T, length uint64) *memory.Region {
	t.Helper()
	region, err := memory.Alloc("comchtest", length)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = region.Close() })
	return region
}

func export(t *testing.T, from comch.Connection, region *memory.Region,
	access memory.Access) []byte {
	t.Helper()
	descriptor, err := from.ExportMemory(testContext(t), region, access)
	// On hardware only the host can export.
	testkit.SkipIfNotSupported(t, "export memory", err)
	if len(descriptor) == 0 || len(descriptor) > comch.MaxExportLength {
		t.Fatalf("descriptor has %d bytes, the limit is %d", len(descriptor), comch.MaxExportLength)
	}
	return descriptor
}

func testImport(t *testing.T, from, to comch.Connection) {
	region := Allocate(t, exportLength)
	imported, access, err := to.ImportMemory(export(t, from, region, readWrite))
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(t, imported)
	if imported.Len() != exportLength || access != readWrite {
		t.Errorf("imported %d bytes with rights %#x", imported.Len(), uint32(access))
	}
	if imported.Base() != region.Base() {
		t.Errorf("imported memory starts at %#x, the exporter's at %#x", imported.Base(),
			region.Base())
	}
	if !imported.Mapped() {
		if imported.Device() == (memory.Device{}) {
			t.Error("opaque memory belongs to no device")
		}
		return
	}
	if err := imported.CopyIn(100, []byte("from the importer")); err != nil {
		t.Fatal(err)
	}
	if got := region.Bytes()[100:117]; string(got) != "from the importer" {
		t.Errorf("exporter sees %q", got)
	}
	copy(region.Bytes()[200:], "from the exporter")
	got := make([]byte, 17)
	if err := imported.CopyOut(got, 200); err != nil {
		t.Fatal(err)
	}
	if string(got) != "from the exporter" {
		t.Errorf("importer sees %q", got)
	}
}

func testRights(t *testing.T, from, to comch.Connection) {
	region := Allocate(t, exportLength)
	for _, access := range []memory.Access{
		memory.PCIRead, readWrite, readWrite | memory.RemoteRead,
		readWrite | memory.RemoteRead | memory.RemoteWrite | memory.LocalWrite,
	} {
		imported, got, err := to.ImportMemory(export(t, from, region, access))
		if err != nil {
			t.Fatal(err)
		}
		if got != access {
			t.Errorf("imported with rights %#x, exported %#x", uint32(got), uint32(access))
		}
		CloseAll(t, imported)
	}
}

func testImportOutlives(t *testing.T, from, to comch.Connection) {
	region := Allocate(t, exportLength)
	copy(region.Bytes(), "lasting")
	imported, _, err := to.ImportMemory(export(t, from, region, readWrite))
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(t, imported)
	from.Abort()
	awaitDone(t, to)
	if !imported.Mapped() {
		return
	}
	got := make([]byte, 7)
	if err := imported.CopyOut(got, 0); err != nil || string(got) != "lasting" {
		t.Errorf("read %q, %v after the end of the connection", got, err)
	}
}

func testBadDescriptors(t *testing.T, from, to comch.Connection) {
	good := export(t, from, Allocate(t, exportLength), readWrite)
	bad := [][]byte{nil, {}, {1}, make([]byte, len(good)), good[:len(good)-1],
		append(bytes.Clone(good), 0),
		make([]byte, comch.MaxExportLength)}
	for i := range good {
		changed := bytes.Clone(good)
		changed[i] ^= 0x40
		bad = append(bad, changed)
	}
	for _, descriptor := range bad {
		if region, _, err := to.ImportMemory(descriptor); err == nil {
			_ = region.Close()
			t.Errorf("imported descriptor %x, but the peer exported %x", descriptor, good)
		}
	}
}

func (s *Suite) testForeignDescriptor(t *testing.T) {
	if s.Capabilities.OpaqueImports {
		t.Skip("whoever has a descriptor can import the memory (OpaqueImports is true)")
	}
	config := s.ServerConfig()
	server := s.Listen(t, config)
	first, second := s.join(t, server, config), s.join(t, server, config)
	descriptor := export(t, first.client, Allocate(t, exportLength), readWrite)
	if region, _, err := second.server.ImportMemory(descriptor); err == nil {
		_ = region.Close()
		t.Error("imported memory that another client has exported")
	}
}

func (s *Suite) testExportLimit(t *testing.T) {
	config := s.ServerConfig()
	config.MaxExportBytes = 3 * exportLength
	p := s.connectWith(t, config)
	if s.Capabilities.OpaqueImports { // the exporting side does not know the limit
		s.testImportLimit(t, p)
		return
	}
	var exported []byte
	for range 3 {
		exported = export(t, p.client, Allocate(t, exportLength), readWrite)
	}
	_, err := p.client.ExportMemory(testContext(t), Allocate(t, exportLength), readWrite)
	WantCode(t, "export beyond the limit", err, status.TooBig)
	imported, _, err := p.server.ImportMemory(exported)
	if err != nil {
		t.Fatal(err)
	}
	CloseAll(t, imported)
	exchange(t, p.client, p.server, "still connected")
}

// testImportLimit exports more than the server admits, and imports as much as it admits.
func (s *Suite) testImportLimit(t *testing.T, p pair) {
	for range 2 {
		var imported []*memory.Region
		for range 3 {
			region, _, err := p.server.ImportMemory(export(t, p.client, Allocate(t, exportLength),
				readWrite))
			if err != nil {
				t.Fatal(err)
			}
			imported = append(imported, region)
		}
		_, _, err := p.server.ImportMemory(export(t, p.client, Allocate(t, exportLength),
			readWrite))
		WantCode(t, "import beyond the limit", err, status.TooBig)
		for _, region := range imported {
			CloseAll(t, region)
		}
	}
	exchange(t, p.client, p.server, "still connected")
}

func (s *Suite) testBadExports(t *testing.T, from, _ comch.Connection) {
	ctx := testContext(t)
	region := Allocate(t, exportLength)
	for _, access := range []memory.Access{0, 1 << 31} {
		_, err := from.ExportMemory(ctx, region, access)
		WantCode(t, "export with impossible rights", err, status.InvalidValue)
	}
	if s.ExportNeedsDescriptor {
		_, err := from.ExportMemory(ctx, memory.Wrap(make([]byte, 10)), readWrite)
		WantCode(t, "export memory without descriptor", err, status.NotSupported)
	}
}
