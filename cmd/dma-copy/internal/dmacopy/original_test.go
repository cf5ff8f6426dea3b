package dmacopy

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

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
