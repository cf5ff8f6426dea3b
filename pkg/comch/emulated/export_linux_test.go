// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// exportAndImport exports a file as a hostile peer, imports it, and returns the error of either.
func exportAndImport(t *testing.T, descriptor int, length uint64) error {
	t.Helper()
	c, peer := newServedConnection(t, serverRole)
	const id, access = 1, memory.PCIRead | memory.PCIWrite
	var passed descriptors
	passed.add(descriptor)
	announcement := frame{kind: frameExport,
		fields: [maxFields]uint32{id, uint32(access), uint32(length), uint32(length >> 32)}}
	if err := peer.write(&announcement, passed); err != nil {
		t.Fatal(err)
	}
	reply, _, err := peer.read()
	if err != nil {
		t.Fatal(err)
	}
	if err := peerError(reply.fields[1], reply.body); err != nil {
		return err
	}
	region, _, err := c.ImportMemory(exportToken{id: id, access: access, length: length}.encode())
	if err == nil {
		err = region.Close()
	}
	return err
}

func memfd(t *testing.T, size int64, seals int) int {
	t.Helper()
	descriptor, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDescriptor(descriptor) })
	if err := unix.Ftruncate(descriptor, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(descriptor), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return descriptor
}

func TestUnsealedOrOversizedMemoryIsRejected(t *testing.T) {
	const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	oversized := memfd(t, 4096, 0)
	if err := unix.Fallocate(oversized, unix.FALLOC_FL_KEEP_SIZE, 0, 2<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(oversized), unix.F_ADD_SEALS, sealed); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		descriptor int
		length     uint64
		want       error
	}{
		"sealed":                  {memfd(t, 4096, sealed), 4096, nil},
		"not sealed":              {memfd(t, 4096, 0), 4096, status.InvalidValue},
		"seal can be added":       {memfd(t, 4096, unix.F_SEAL_SHRINK), 4096, status.InvalidValue},
		"can shrink":              {memfd(t, 4096, unix.F_SEAL_SEAL), 4096, status.InvalidValue},
		"shorter than announced":  {memfd(t, 4096, sealed), 4097, status.InvalidValue},
		"larger than the limit":   {memfd(t, 2<<20, sealed), 4096, status.TooBig},
		"blocks beyond its size":  {oversized, 4096, status.TooBig},
		"length beyond the limit": {memfd(t, 4096, sealed), 1<<20 + 1, status.TooBig},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := exportAndImport(t, c.descriptor, c.length); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestMemoryThatGrowsAfterExportIsRejected(t *testing.T) {
	c, peer := newServedConnection(t, serverRole)
	descriptor := memfd(t, 4096, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	var passed descriptors
	passed.add(descriptor)
	if err := peer.write(&frame{kind: frameExport, fields: [maxFields]uint32{1,
		uint32(memory.PCIRead), 4096}}, passed); err != nil {
		t.Fatal(err)
	}
	if _, _, err := peer.read(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(descriptor, 0, 0, 2<<20); err != nil {
		t.Fatal(err)
	}
	_, _, err := c.ImportMemory(exportToken{id: 1, access: memory.PCIRead, length: 4096}.encode())
	if !errors.Is(err, status.TooBig) {
		t.Errorf("got %v", err)
	}
}

func TestExportsAreLimited(t *testing.T) {
	client, server := newTestPair(t)
	region := allocate(t, 64)
	var err error
	for range server.limits.MaxExports {
		if _, err = client.ExportMemory(context.Background(), region, memory.PCIRead); err != nil {
			t.Fatal(err)
		}
	}
	if _, err = client.ExportMemory(context.Background(), region, memory.PCIRead); !errors.Is(err,
		status.Full) {
		t.Errorf("got %v", err)
	}
}

func TestAllExportsOfAConnectionTogetherAreBounded(t *testing.T) {
	const size, sealed = 4096, unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	limits := highestLimits
	limits.MaxExportBytes = 2 * size
	table := newExportTable(limits)
	for id, want := range []error{nil, nil, status.TooBig} {
		err := table.add(uint32(id+1), &peerExport{descriptor: memfd(t, size, sealed),
			access: memory.PCIRead, length: size})
		if !errors.Is(err, want) {
			t.Errorf("export %d of %d bytes: %v, want %v", id+1, size, err, want)
		}
	}
}

func FuzzParseExportToken(f *testing.F) {
	f.Add(exportToken{id: 3, access: memory.PCIRead, length: 1 << 40}.encode())
	f.Add([]byte{})
	f.Add(make([]byte, exportTokenSize))
	f.Fuzz(func(t *testing.T, descriptor []byte) {
		token, err := parseExportToken(descriptor)
		if err != nil {
			if !errors.Is(err, status.InvalidValue) {
				t.Errorf("error %v is not INVALID_VALUE", err)
			}
			return
		}
		if again := token.encode(); !bytes.Equal(again, descriptor) {
			t.Errorf("%x was parsed and written as %x", descriptor, again)
		}
	})
}

func TestADescriptorNamesWhatThePeerHasExported(t *testing.T) {
	table := newExportTable(highestLimits)
	exported := exportToken{id: 1, access: memory.PCIRead, length: 4096}
	const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	err := table.add(exported.id, &peerExport{descriptor: memfd(t, 4096, sealed),
		access: exported.access, length: exported.length})
	if err != nil {
		t.Fatal(err)
	}
	other, larger, stronger := exported, exported, exported
	other.id++
	larger.length++
	stronger.access |= memory.PCIWrite
	for token, want := range map[exportToken]status.Code{
		other: status.NotFound, larger: status.InvalidValue, stronger: status.InvalidValue,
	} {
		if _, err := table.open(token); !errors.Is(err, want) {
			t.Errorf("open %+v: %v, want %v", token, err, want)
		}
	}
	region, err := table.open(exported)
	if err != nil {
		t.Fatal(err)
	}
	if err := region.Close(); err != nil {
		t.Error(err)
	}
	encoded := exported.encode()
	for i := range encoded {
		encoded[i] ^= 1
		if _, err := parseExportToken(encoded); !errors.Is(err, status.InvalidValue) {
			t.Errorf("a descriptor with another byte %d: %v", i, err)
		}
		encoded[i] ^= 1
	}
}
