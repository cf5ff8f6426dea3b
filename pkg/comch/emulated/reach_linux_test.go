// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// withoutFile is a broker.Source that importers can only reach through the address space.
type withoutFile struct{}

func (withoutFile) File() (descriptor int, offset uint64) { return -1, 0 }

func (withoutFile) Patience() time.Duration { return testkit.Patience }

// exportParts exports memory of this process that is not whole pages.
func exportParts(t *testing.T, server *broker.Server, flags uint32) (*broker.Export, []byte) {
	t.Helper()
	return exportPartsOf(t, server, flags, allocate(t, 4<<12).Bytes())
}

func exportPartsOf(t *testing.T, server *broker.Server, flags uint32, pages []byte,
) (*broker.Export, []byte) {
	t.Helper()
	content := pages[100 : len(pages)-100]
	for i := range content {
		content[i] = byte(i % 251)
	}
	x := &broker.Export{Source: withoutFile{}, Descriptor: broker.Descriptor{Kind: broker.KindPCI,
		Access: flags, Address: memory.Wrap(content).Base(), Length: uint64(len(content))}}
	if err := server.Add(x); err != nil {
		t.Fatal(err)
	}
	return x, content
}

func TestMemoryWithoutAFileIsReachedIfThatIsAllowed(t *testing.T) {
	c, _ := newServedConnection(t, serverRole)
	before := c.account.current()
	var server broker.Server
	x, content := exportParts(t, &server, broker.PCIReadWrite)
	_, _, err := c.ImportMemory(x.Encode())
	if !errors.Is(err, status.NotSupported) || !strings.Contains(err.Error(), "whole pages") {
		t.Errorf("without permission: %v", err)
	}
	c.reachesImports = true
	region, access, err := c.ImportMemory(x.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if region.Mapped() || !region.Copyable() || region.Base() != x.Address ||
		region.Len() != uint64(len(content)) || !access.Has(memory.PCIRead|memory.PCIWrite) {
		t.Errorf("imported %+v with rights %#x", region, uint32(access))
	}
	copied := make([]byte, len(content))
	if err := region.CopyOut(copied, 0); err != nil || string(copied) != string(content) {
		t.Errorf("the memory differs, error %v", err)
	}
	if err := region.CopyIn(4000, []byte("across a page")); err != nil ||
		string(content[4000:4013]) != "across a page" {
		t.Errorf("wrote %q, error %v", content[4000:4013], err)
	}
	removed := make(chan struct{})
	go func() {
		server.Remove(x)
		close(removed)
	}()
	testkit.Receive(t, "the importer has let the memory go", removed)
	for name, err := range map[string]error{
		"read": region.CopyOut(copied, 0), "write": region.CopyIn(0, copied),
	} {
		if !errors.Is(err, status.IOFailed) || !strings.Contains(err.Error(), "taken the memory") {
			t.Errorf("a %s after the end of the export: %v", name, err)
		}
	}
	if err := region.Close(); err != nil {
		t.Error(err)
	}
	if !c.cleanup.waitFor(0, testkit.Patience, nil) || c.account.current() != before {
		t.Errorf("the connection holds %+v, and %+v before", c.account.current(), before)
	}
}

func TestReachedMemoryThatIsMissingFailsTheCopyOnly(t *testing.T) {
	c, _ := newServedConnection(t, serverRole)
	c.reachesImports = true
	var server broker.Server
	file := memfd(t, 4<<12, 0)
	pages, err := unix.Mmap(file, 0, 4<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(pages) }()
	x, content := exportPartsOf(t, &server, broker.PCIReadWrite, pages)
	defer server.Remove(x)
	region, _, err := c.ImportMemory(x.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = region.Close() }()
	if err := unix.Ftruncate(file, 2<<12); err != nil {
		t.Fatal(err)
	}
	err = region.CopyOut(make([]byte, len(content)), 0)
	if !errors.Is(err, status.IOFailed) {
		t.Errorf("a copy from memory that is not there gave %v", err)
	}
	if err := region.CopyOut(make([]byte, 10), 0); err != nil {
		t.Errorf("the other pages: %v", err)
	}
}

func TestOnlyTheExportersAddressSpaceIsReached(t *testing.T) {
	var server broker.Server
	x, _ := exportParts(t, &server, broker.PCIReadOnly)
	defer server.Remove(x)
	own := unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Geteuid())}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	foreign, nobody, unknown := own, own, own
	foreign.Uid++
	nobody.Pid = int32(ended.Process.Pid)
	unknown.Pid = 0
	for name, c := range map[string]struct {
		exporter unix.Ucred
		want     error
	}{
		"a process of another user": {foreign, status.NotPermitted},
		"a process that has ended":  {nobody, status.NotFound},
		"another PID namespace":     {unknown, status.NotSupported},
	} {
		imported, err := broker.Open(&x.Descriptor)
		if err != nil {
			t.Fatal(err)
		}
		imported.Exporter = &c.exporter
		if r, err := reach(imported, &x.Descriptor, memory.PCIRead); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				r.stop()
			}
		}
		_ = imported.Socket.Close()
	}
	imported, err := broker.Open(&x.Descriptor)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = imported.Socket.Close() }()
	r, err := reach(imported, &x.Descriptor, memory.PCIRead)
	if err != nil {
		t.Fatal(err)
	}
	defer r.stop()
	if err := r.CopyIn(0, []byte("x")); !errors.Is(err, status.IOFailed) {
		t.Errorf("writing memory that is exported for reading: %v", err)
	}
	if err := r.CopyOut(make([]byte, 1), math.MaxUint64-x.Address); !errors.Is(err,
		status.IOFailed) {
		t.Errorf("an address that no process has: %v", err)
	}
}
