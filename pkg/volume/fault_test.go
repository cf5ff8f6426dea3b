//go:build faultinject

package volume_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func openFault(t testing.TB, faults string) volume.Volume {
	t.Helper()
	spec, err := volume.ParseSpec("v=fault:"+faults+":memory:1MiB", 4096)
	if err != nil {
		t.Fatal(err)
	}
	return open(t, spec)
}

func TestFaultVolumeWithoutFaultsConforms(t *testing.T) {
	for _, faults := range []string{"seed=1", "delay=100us"} {
		t.Run(faults, func(t *testing.T) {
			volumetest.Run(t,
				func(t testing.TB) (volume.Volume, error) { return openFault(t, faults), nil })
		})
	}
	t.Run("over a file", func(t *testing.T) {
		volumetest.Run(t, func(t testing.TB) (volume.Volume, error) {
			backend := volume.FileBackend{Path: t.TempDir() + "/volume", Size: 1 << 20}
			return volume.Open(volume.Spec{Name: "v", BlockSize: 4096,
				Backend: volume.FaultBackend{Inner: backend}})
		})
	})
}

// outcomes writes 200 blocks in turn and returns a character for each outcome: . for success, x for
// EIO, f for ENOSPC.
func outcomes(t *testing.T, faults string) string {
	v := openFault(t, faults)
	defer volumetest.CloseVolume(t, v)
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	var b strings.Builder
	for i := range uint64(200) {
		r := volume.Request{Operation: iomsg.OpWrite, Offset: i * 4096, Length: 4096,
			Buffer: make([]byte, 4096)}
		volumetest.Do(t, queue, &r)
		switch {
		case r.Err == nil:
			b.WriteByte('.')
		case errors.Is(r.Err, unix.EIO) && errors.Is(r.Err, status.IOFailed):
			b.WriteByte('x')
		case errors.Is(r.Err, unix.ENOSPC) && errors.Is(r.Err, status.IOFailed):
			b.WriteByte('f')
		default:
			t.Fatal(r.Err)
		}
	}
	return b.String()
}

func TestSeedDecidesWhichRequestsFail(t *testing.T) {
	first, again, other := outcomes(t, "eio=0.2,seed=7"), outcomes(t, "eio=0.2,seed=7"), outcomes(t,
		"eio=0.2,seed=8")
	if first != again || first == other {
		t.Errorf("seed 7: %s, again: %s; seed 8: %s", first, again, other)
	}
	if n := strings.Count(first, "x"); n < 15 || n > 70 {
		t.Errorf("%d of 200 requests failed with probability 0.2", n)
	}
}

func TestWritesFailWhenTheSpaceIsUsedUp(t *testing.T) {
	want := strings.Repeat(".", 100) + strings.Repeat("f", 100)
	if got := outcomes(t, "enospc-after=400KiB"); got != want {
		t.Errorf("outcomes are %s, want %s", got, want)
	}
}

func TestCorruptionInvertsOneBitOfEachReadAndWrite(t *testing.T) {
	v := openFault(t, "corrupt=1")
	defer volumetest.CloseVolume(t, v)
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	written, read := bytes.Repeat([]byte{0x55}, 4096), make([]byte, 4096)
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 4096, Buffer: written})
	if !bytes.Equal(written, bytes.Repeat([]byte{0x55}, 4096)) {
		t.Error("the writer's buffer stayed corrupted")
	}
	do(t, queue, &volume.Request{Operation: iomsg.OpRead, Length: 4096, Buffer: read})
	different := 0
	for i := range read {
		different += bits.OnesCount8(read[i] ^ written[i])
	}
	if different != 2 { // one by the write, one by the read
		t.Errorf("%d bits differ", different)
	}
	if v.Memory() != nil {
		t.Error("reads could bypass the faults")
	}
}

func TestDelayPostponesCompletionsWithoutBlockingTheSubmitter(t *testing.T) {
	const delay = 30 * time.Millisecond
	v := openFault(t, fmt.Sprintf("delay=%v", delay))
	defer volumetest.CloseVolume(t, v)
	queue := volumetest.NewQueue(t, v, 8)
	defer volumetest.CloseQueue(t, queue)
	began := time.Now()
	var requests [8]volume.Request
	for i := range requests {
		requests[i].Operation = iomsg.OpFlush
		if err := queue.Submit(&requests[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range volumetest.Await(t, queue, len(requests)) {
		if r != &requests[i] {
			t.Errorf("completion %d is for another request than %d", i, i)
		}
	}
	if took := time.Since(began); took < delay {
		t.Errorf("requests completed after %v", took)
	}
}

func TestBadFaultsAreRejectedWithTheReason(t *testing.T) {
	for text, want := range map[string]string{
		"v=fault:eio=2:memory:1MiB":             "not a probability",
		"v=fault:eio=NaN:memory:1MiB":           "not a probability",
		"v=fault:corrupt=:memory:1MiB":          "not a probability",
		"v=fault:delay=-1s:memory:1MiB":         "negative",
		"v=fault:delay=5:memory:1MiB":           "missing unit",
		"v=fault:enospc-after=x:memory:1MiB":    "size",
		"v=fault:seed=-1:memory:1MiB":           "invalid syntax",
		"v=fault:fire=1:memory:1MiB":            "unknown fault",
		"v=fault::memory:1MiB":                  "unknown fault",
		"v=fault:eio=0.1":                       "a fault has no backend",
		"v=fault:eio=0.1:disk:x":                "kinds are",
		"v=fault:eio=0.1:memory:5000":           "not a positive multiple",
		"v=fault:eio=1:fault:eio=x:memory:1MiB": "not a probability",
	} {
		if _, err := volume.ParseSpec(text, 4096); !errors.Is(err, status.InvalidValue) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("ParseSpec(%q) returned %v, want an error with %q", text, err, want)
		}
	}
}
