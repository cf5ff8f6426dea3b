// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site holds both sides of the copies in one test.
type site struct {
	t        *testing.T
	dir      string
	host     Config
	dpu      Config
	hostFile string
	dpuFile  string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	for _, side := range []string{"host", "dpu"} {
		if err := os.Mkdir(filepath.Join(s.dir, side), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.hostFile, s.dpuFile = filepath.Join(s.dir, "host", "file"), filepath.Join(s.dir, "dpu",
		"file")
	common := Config{
		Comch:     emulated.New(emulated.Options{Directory: filepath.Join(s.dir, "comch")}),
		ChunkSize: 64 << 10, Slots: 4, Timeout: 2 * time.Minute, ConnectTimeout: 2 * time.Minute,
		Logger: zap.NewNop(),
	}
	s.host, s.dpu = common, common
	s.host.Device, s.host.Path = emulated.DefaultHostDevice, s.hostFile
	s.dpu.Device, s.dpu.Representor, s.dpu.Path = emulated.DefaultDevice,
		emulated.DefaultRepresentor, s.dpuFile
	s.dpu.DMA = software.New(software.Options{})
	return s
}

func (s *site) original() { s.host.Original, s.dpu.Original = true, true }

func (s *site) write(path string, content []byte) {
	s.t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// ending is the outcome of one side.
type ending struct {
	result Result
	err    error
}

// copy runs both sides.
func (s *site) copy() (host, dpu ending) {
	s.t.Helper()
	return s.copyThen(context.Background(), func() {})
}

// copyThen runs both sides, the DPU's with ctx, and calls hostEnded after the host's.
func (s *site) copyThen(ctx context.Context, hostEnded func()) (host, dpu ending) {
	s.t.Helper()
	ended := make(chan ending, 1)
	go func() {
		result, err := RunDPU(ctx, s.dpu)
		ended <- ending{result, err}
	}()
	host.result, host.err = RunHost(context.Background(), s.host)
	hostEnded()
	return host, <-ended
}

func (s *site) mustCopy() (host, dpu ending) {
	s.t.Helper()
	host, dpu = s.copy()
	if host.err != nil || dpu.err != nil {
		s.t.Fatalf("host: %v; DPU: %v", host.err, dpu.err)
	}
	return host, dpu
}

// wantOnly fails unless path is the only file in its directory and has the given content. Without
// content, the directory must be empty.
func (s *site) wantOnly(path string, content []byte) {
	s.t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		s.t.Fatal(err)
	}
	if content == nil {
		if len(entries) > 0 {
			s.t.Errorf("%v is left in %s", entries, filepath.Dir(path))
		}
		return
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) ||
		len(entries) != 1 {
		s.t.Errorf("%s has %d bytes, equal %v, beside %v, error %v", path, len(got),
			bytes.Equal(got, content), entries, err)
	}
}

func content(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(b)
	return b
}

func TestFilesOfAnySizeGoBothWays(t *testing.T) {
	for _, original := range []bool{false, true} {
		for _, size := range []int{0, 1, 4095, 64 << 10, 64<<10 + 1, 4 * 64 << 10, 1 << 20,
			5<<20 + 17} {
			if original && size == 0 {
				continue // the next test
			}
			t.Run(fmt.Sprintf("original=%v/%d", original, size), func(t *testing.T) {
				want := content(size)
				for _, direction := range []Direction{ToDPU, ToHost} {
					s := newSite(t)
					if original {
						s.original()
					}
					from, to := s.hostFile, s.dpuFile
					if direction == ToHost {
						from, to = to, from
					}
					s.write(from, want)
					host, dpu := s.mustCopy()
					s.wantOnly(to, want)
					s.wantOnly(from, want)
					for side, e := range map[string]ending{"host": host, "DPU": dpu} {
						if e.result.Direction != direction || e.result.Bytes != uint64(size) ||
							e.result.Duration <= 0 {
							t.Errorf("%s: %+v", side, e.result)
						}
						if sum := crc32.Checksum(want, castagnoli); !original &&
							e.result.Checksum != sum {
							t.Errorf("%s: checksum %#x, want %#x", side, e.result.Checksum, sum)
						}
					}
				}
			})
		}
	}
}

func TestTheOriginalsMessagesCarryNoEmptyFile(t *testing.T) {
	for _, onHost := range []bool{true, false} {
		s := newSite(t)
		s.original()
		from, to := s.dpuFile, s.hostFile
		if onHost {
			from, to = to, from
		}
		s.write(from, nil)
		// A host with an empty file may be gone before the DPU accepts it. The DPU then waits for
		// another host.
		ctx, cancel := context.WithCancel(context.Background())
		hostEnded := func() {}
		if onHost {
			hostEnded = cancel
		}
		host, dpu := s.copyThen(ctx, hostEnded)
		cancel()
		if host.err == nil || dpu.err == nil || !strings.Contains(host.err.Error()+dpu.err.Error(),
			"empty file") {
			t.Errorf("host: %v; DPU: %v", host.err, dpu.err)
		}
		s.wantOnly(to, nil)
	}
}

func TestThatBothOrNeitherHaveTheFileIsAnErrorOnBothSides(t *testing.T) {
	for _, original := range []bool{false, true} {
		for _, both := range []bool{false, true} {
			s := newSite(t)
			if original {
				s.original()
			}
			var want []byte
			code, text := status.NotFound, "exists on neither side"
			if both {
				want, code, text = []byte("precious"), status.AlreadyExist, "exists on both sides"
				s.write(s.hostFile, want)
				s.write(s.dpuFile, want)
			}
			host, dpu := s.copy()
			if !errors.Is(dpu.err, code) || !strings.Contains(dpu.err.Error(), text) {
				t.Errorf("DPU: %v", dpu.err)
			}
			if original {
				code, text = status.IOFailed, "does the file exist on both sides, or on neither"
			}
			if !errors.Is(host.err, code) || !strings.Contains(host.err.Error(), text) {
				t.Errorf("host: %v", host.err)
			}
			s.wantOnly(s.hostFile, want)
			s.wantOnly(s.dpuFile, want)
		}
	}
}

func TestWhatIsNoFileIsNotCopied(t *testing.T) {
	s := newSite(t)
	s.host.Path = s.dir
	if _, err := RunHost(context.Background(), s.host); !errors.Is(err, status.InvalidValue) {
		t.Errorf("a directory gave %v", err)
	}
	s.dpu.Path = "/dev/null"
	if _, err := RunDPU(context.Background(), s.dpu); !errors.Is(err, status.InvalidValue) {
		t.Errorf("a device gave %v", err)
	}
}

func TestAFileThatCannotBeCreatedIsAnErrorOnBothSides(t *testing.T) {
	for _, original := range []bool{false, true} {
		for _, toDPU := range []bool{true, false} {
			s := newSite(t)
			if original {
				s.original()
			}
			if toDPU {
				s.write(s.hostFile, content(1000))
				s.dpu.Path = filepath.Join(s.dir, "missing", "file")
			} else {
				s.write(s.dpuFile, content(1000))
				s.host.Path = filepath.Join(s.dir, "missing", "file")
			}
			host, dpu := s.copy()
			// The original's messages have no way for the host to report this.
			if host.err == nil || dpu.err == nil && (toDPU || !original) {
				t.Errorf("original %v, to the DPU %v: host: %v; DPU: %v", original, toDPU, host.err,
					dpu.err)
			}
		}
	}
}

func TestSidesThatSpeakDifferentlySaySo(t *testing.T) {
	for _, original := range []bool{false, true} {
		s := newSite(t)
		s.host.Original, s.dpu.Original = original, !original
		s.write(s.hostFile, content(10))
		host, dpu := s.copy()
		if host.err == nil || dpu.err == nil {
			t.Errorf("host: %v; DPU: %v", host.err, dpu.err)
		}
		// Whoever hears first says so; the host may hear of that before it hears the DPU's message.
		if !strings.Contains(dpu.err.Error(), "--compat") ||
			!strings.Contains(host.err.Error(), "--compat") {
			t.Errorf("host: %v; DPU: %v", host.err, dpu.err)
		}
	}
}

// slowSearch is a provider that finds no DPU. Each search after the first takes until the end of
// its context.
type slowSearch struct {
	comch.Provider
	searches int
}

func (p *slowSearch) Connect(ctx context.Context, _ comch.ClientConfig) (comch.Connection, error) {
	p.searches++
	if p.searches > 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, status.Errorf(status.NotFound, "no server")
}

func TestASearchThatTheTimeoutEndsHasFoundNoDPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		config := Config{Comch: &slowSearch{}, ConnectTimeout: time.Minute, Logger: zap.New(core)}
		if _, err := connect(t.Context(), &config); !errors.Is(err, status.NotFound) ||
			!strings.Contains(err.Error(), "is dma-copy --side dpu running?") {
			t.Errorf("host: %v", err)
		}
		if waits := logs.FilterMessageSnippet("waiting for the DPU").All(); len(waits) != 1 ||
			waits[0].ContextMap()["connect_timeout"] != time.Minute {
			t.Errorf("the wait was announced by %v", waits)
		}
	})
}

func TestNobodyComes(t *testing.T) {
	s := newSite(t)
	// The host looks for the DPU at least once.
	s.host.ConnectTimeout, s.dpu.ConnectTimeout = time.Second, 50*time.Millisecond
	if _, err := RunHost(context.Background(), s.host); !errors.Is(err, status.NotFound) ||
		!strings.Contains(err.Error(), "is dma-copy --side dpu running?") {
		t.Errorf("host: %v", err)
	}
	if _, err := RunDPU(context.Background(), s.dpu); status.CodeOf(err) != status.TimeOut ||
		!strings.Contains(err.Error(), "is dma-copy --side host running?") {
		t.Errorf("DPU: %v", err)
	}
}

func TestAnInterruptionEndsBothSidesAndLeavesNothing(t *testing.T) {
	for _, toDPU := range []bool{true, false} {
		s := newSite(t)
		from, to := s.dpuFile, s.hostFile
		if toDPU {
			from, to = to, from
		}
		s.write(from, content(64<<20))
		ctx, cancel := context.WithCancelCause(context.Background())
		s.host.Observe = func(moved, _ uint64) {
			if moved > 1<<20 {
				cancel(errors.New("told to stop"))
			}
		}
		ended := make(chan error, 1)
		go func() {
			_, err := RunDPU(context.Background(), s.dpu)
			ended <- err
		}()
		_, err := RunHost(ctx, s.host)
		if err == nil || !strings.Contains(err.Error(), "told to stop") {
			t.Errorf("host: %v", err)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "told to stop") {
			t.Errorf("DPU: %v", err)
		}
		s.wantOnly(to, nil)
	}
}

func TestAFileThatChangesWhileItIsCopiedIsAnError(t *testing.T) {
	s := newSite(t)
	s.write(s.hostFile, content(8<<20))
	changed := false
	s.dpu.Observe = func(uint64, uint64) {
		if !changed {
			changed = true
			_ = os.Truncate(s.hostFile, 8<<20-1)
		}
	}
	host, dpu := s.copy()
	for side, err := range map[string]error{"host": host.err, "DPU": dpu.err} {
		if !errors.Is(err, status.IOFailed) || !strings.Contains(err.Error(),
			"changed while it was copied") {
			t.Errorf("%s: %v", side, err)
		}
	}
	s.wantOnly(s.dpuFile, nil)
}
