// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// wantOriginal fails unless the next message has the bytes of a golden file.
func (a *actor) wantOriginal(name string) {
	a.t.Helper()
	got, err := a.connection.Receive(a.context())
	if want := originalFile(a.t, name); err != nil || !bytes.Equal(got, want) {
		a.t.Errorf("received %x, error %v; %s is %x", got, err, name, want)
	}
}

// receiveOriginalExport imports the memory that the host exports.
func (a *actor) receiveOriginalExport(length uint64) *memory.Region {
	a.t.Helper()
	b, err := a.connection.Receive(a.context())
	if err != nil {
		a.t.Fatal(err)
	}
	m, err := parseOriginal(b)
	if err != nil {
		a.t.Fatal(err)
	}
	e := m.(exportMessage)
	if !broker.IsDescriptor(e.descriptor) {
		a.t.Errorf("the descriptor %x is not what libdoca makes", e.descriptor)
	}
	region, _, err := a.connection.ImportMemory(e.descriptor)
	if err != nil || region.Len() != length {
		a.t.Fatalf("imported %v, error %v", region, err)
	}
	if e.hostAddress == 0 || e.hostAddress != region.Base() {
		a.t.Errorf("the host announced address %#x, and exported %#x", e.hostAddress, region.Base())
	}
	a.t.Cleanup(func() { _ = region.Close() })
	return region
}

func TestTheHostSaysToTheOriginalWhatTheOriginalsHostSays(t *testing.T) {
	const size = 1 << 20
	want := content(size)
	for _, onHost := range []bool{true, false} {
		s := newSite(t)
		s.original()
		if onHost {
			s.write(s.hostFile, want)
		}
		err := againstHost(s, func(a *actor) {
			if onHost {
				a.wantOriginal("dma_direction_file_in_host.bin")
				a.send(originalFile(t, "dma_direction_dpu_reply_file_on_host.bin"))
				got := make([]byte, size)
				if err := a.receiveOriginalExport(size).CopyOut(got, 0); err != nil ||
					!bytes.Equal(got, want) {
					t.Errorf("the exported memory is not the file, error %v", err)
				}
			} else {
				a.wantOriginal("dma_direction_file_not_in_host.bin")
				a.send(directionMessage{fileSize: size}.append(nil))
				if err := a.receiveOriginalExport(size).CopyIn(0, want); err != nil {
					t.Error(err)
				}
			}
			a.send(originalFile(t, "dma_status_success.bin"))
		})
		if err != nil {
			t.Errorf("the host ended with %v", err)
		}
		s.wantOnly(s.hostFile, want)
	}
}

func TestTheDPUSaysToTheOriginalWhatTheOriginalsDPUSays(t *testing.T) {
	const size = 123456789
	for _, onHost := range []bool{true, false} {
		s := newSite(t)
		s.original()
		if !onHost {
			s.write(s.dpuFile, []byte("beginning"))
			if err := os.Truncate(s.dpuFile, size); err != nil {
				t.Fatal(err)
			}
		}
		err := againstDPU(s, func(a *actor) {
			length := uint64(size)
			if onHost {
				length = 1 << 20
				a.send(originalFile(t, "dma_direction_file_in_host.bin"))
				a.wantOriginal("dma_direction_dpu_reply_file_on_host.bin")
			} else {
				a.send(originalFile(t, "dma_direction_file_not_in_host.bin"))
				a.wantOriginal("dma_direction_dpu_reply_file_on_dpu.bin")
			}
			region, err := memory.Alloc("actor", length)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = region.Close() }()
			copy(region.Bytes(), "from the host")
			descriptor, err := a.connection.ExportMemory(a.context(), region,
				memory.PCIRead|memory.PCIWrite)
			if err != nil {
				t.Fatal(err)
			}
			// The original's buffer may hold more than the descriptor.
			a.send(append(exportMessage{hostAddress: region.Base(),
				descriptor: descriptor}.append(nil), "left over"...))
			a.wantOriginal("dma_status_success.bin")
			if got := string(region.Bytes()[:9]); !onHost && got != "beginning" {
				t.Errorf("the host's memory begins with %q", got)
			}
			if err := a.connection.Close(); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Errorf("the DPU ended with %v", err)
		}
		if onHost {
			if got, err := os.ReadFile(s.dpuFile); err != nil || len(got) != 1<<20 ||
				string(got[:13]) != "from the host" {
				t.Errorf("the file has %d bytes, error %v", len(got), err)
			}
		}
	}
}

func TestTheDPUTellsTheOriginalOfFailure(t *testing.T) {
	s := newSite(t)
	s.original()
	err := againstDPU(s, func(a *actor) {
		a.send(originalFile(t, "dma_direction_file_not_in_host.bin"))
		a.wantOriginal("dma_status_failure.bin")
	})
	if !errors.Is(err, status.NotFound) {
		t.Errorf("the DPU ended with %v", err)
	}
}

// incapable is a Comch provider without plain exports, whose imports the CPU cannot address.
type incapable struct{ comch.Provider }

type withoutExports struct{ comch.Connection }

func (p incapable) Connect(ctx context.Context, config comch.ClientConfig) (comch.Connection,
	error) {
	connection, err := p.Provider.Connect(ctx, config)
	return withoutExports{connection}, err
}

func (p incapable) Capabilities(device string) (comch.Capabilities, error) {
	capabilities, err := p.Provider.Capabilities(device)
	capabilities.OpaqueImports = true
	return capabilities, err
}

func TestProvidersThatCannotServeTheOriginalSaySo(t *testing.T) {
	s := newSite(t)
	s.original()
	s.write(s.hostFile, content(100))
	s.host.Comch = incapable{s.host.Comch}
	host, dpu := s.copy()
	if !errors.Is(host.err, status.NotSupported) ||
		!strings.Contains(host.err.Error(), "leave out --compat") {
		t.Errorf("a host without plain exports: %v", host.err)
	}
	if dpu.err == nil || !strings.Contains(dpu.err.Error(), "the host reports a failure") {
		t.Errorf("its DPU: %v", dpu.err)
	}
	s.dpu.Comch = incapable{s.dpu.Comch}
	_, err := RunDPU(t.Context(), s.dpu)
	if !errors.Is(err, status.NotSupported) ||
		!strings.Contains(err.Error(), "use --dma-provider emulated") {
		t.Errorf("a DPU whose DMA does not reach what it imports: %v", err)
	}
}

// mappedOnly is a DMA provider that reaches mapped memory only, as hardware does.
type mappedOnly struct{ dma.Provider }

type mappedOnlyDevice struct{ dma.Device }

func (p mappedOnly) Open(name string) (dma.Device, error) {
	device, err := p.Provider.Open(name)
	return mappedOnlyDevice{device}, err
}

func (d mappedOnlyDevice) Register(region *memory.Region, access memory.Access) (dma.Registration,
	error) {
	if !region.Mapped() {
		return nil, status.Errorf(status.NotSupported, "it was not imported through DOCA")
	}
	return d.Device.Register(region, access)
}

// partsOfPages is memory of this process that no importer can map.
type partsOfPages struct{}

func (partsOfPages) File() (descriptor int, offset uint64) { return -1, 0 }

func (partsOfPages) Patience() time.Duration { return time.Minute }

func TestADPUCopiesMemoryThatIsNotWholePages(t *testing.T) {
	reaching := emulated.Options{ReachImports: true}
	for name, c := range map[string]struct {
		options emulated.Options
		dma     func(dma.Provider) dma.Provider
		gone    bool   // the host takes the memory away before it sends the descriptor
		want    string // in the DPU's error, "" if it copies
	}{
		"reached":     {options: reaching},
		"not allowed": {want: "export whole pages"},
		"no DMA": {options: reaching, want: "use --dma-provider software",
			dma: func(p dma.Provider) dma.Provider { return mappedOnly{p} }},
		"taken away": {options: reaching, gone: true, want: "import the host's memory"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.original()
			c.options.Directory = filepath.Join(s.dir, "comch")
			s.dpu.Comch = emulated.New(c.options)
			if c.dma != nil {
				s.dpu.DMA = c.dma(s.dpu.DMA)
			}
			want := content(5<<20 + 1)
			err := againstDPU(s, func(a *actor) {
				a.send(directionMessage{fileInHost: true, fileSize: uint64(len(want))}.append(nil))
				a.wantOriginal("dma_direction_dpu_reply_file_on_host.bin")
				memory := memory.Wrap(want)
				x := &broker.Export{Source: partsOfPages{}, Descriptor: broker.Descriptor{
					Kind: broker.KindPCI, Access: broker.PCIReadOnly, Address: memory.Base(),
					Length: memory.Len()}}
				var server broker.Server
				if err := server.Add(x); err != nil {
					t.Fatal(err)
				}
				if c.gone {
					server.Remove(x)
				} else {
					defer server.Remove(x)
				}
				a.send(exportMessage{hostAddress: memory.Base(),
					descriptor: x.Encode()}.append(nil))
				if c.want == "" {
					a.wantOriginal("dma_status_success.bin")
				} else {
					a.wantOriginal("dma_status_failure.bin")
				}
				if err := a.connection.Close(); err != nil {
					t.Error(err)
				}
			})
			if c.want == "" {
				s.wantOnly(s.dpuFile, want)
				if err != nil {
					t.Errorf("the DPU ended with %v", err)
				}
				return
			}
			s.wantOnly(s.dpuFile, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the DPU ended with %v", err)
			}
		})
	}
}

func TestAFurtherHostIsTurnedAwayAndDisturbsNothing(t *testing.T) {
	s := newSite(t)
	s.write(s.dpuFile, nil)
	err := againstDPU(s, func(a *actor) {
		a.say(offer{})
		a.hear()
		late := s.host
		late.ConnectTimeout = 50 * time.Millisecond
		if connection, err := connect(a.context(), &late); err == nil {
			_ = connection.Close()
			t.Error("a second host was let in")
		}
		a.hear()
		a.say(outcome{})
	})
	if err != nil {
		t.Errorf("the DPU ended with %v", err)
	}
}
