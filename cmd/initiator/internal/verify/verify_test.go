// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/client/queuetest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testBlock  = 512
	testBlocks = 257 // does not divide by the queues
	testRun    = 0x1122334455667788
)

func testParameters() Parameters {
	return Parameters{
		Queues: 2, QueueDepth: 8, MaxIOSize: 4 * testBlock, Passes: 3, Seed: 7,
		Poll: "adaptive", DrainTimeout: time.Minute,
	}
}

func newTestVolume(p *Parameters) *queuetest.Volume {
	v := queuetest.New(testBlocks*testBlock, testBlock, p.Queues, p.QueueDepth, p.MaxIOSize)
	for i := range v.Data() {
		v.Data()[i] = byte(i * 7) // what a used volume might hold
	}
	return v
}

func configOf(t testing.TB, p Parameters, v *queuetest.Volume) Config {
	t.Helper()
	if err := p.Resolve(&v.Info); err != nil {
		t.Fatal(err)
	}
	config := Config{Parameters: p, RunID: testRun, BlockSize: v.Info.BlockSize, Memory: v.Memory}
	for i := range p.Queues {
		config.Queues = append(config.Queues, v.Queue(i))
	}
	return config
}

func run(t *testing.T, p Parameters, v *queuetest.Volume) (Result, error) {
	t.Helper()
	return Run(context.Background(), configOf(t, p, v))
}

func TestASoundVolumePassesAndEveryBlockIsWrittenAndChecked(t *testing.T) {
	for _, refuseEvery := range []int{0, 3} {
		p := testParameters()
		v := newTestVolume(&p)
		v.Queue(1).RefuseEvery = refuseEvery
		flushes := 0
		v.Intercept = func(r *client.Request) status.Code {
			if r.Type == client.Flush {
				flushes++
			}
			return v.Apply(r)
		}
		result, err := run(t, p, v)
		if err != nil {
			t.Fatal(err)
		}
		if result.PassesCompleted != 3 || result.BlocksWritten != 3*testBlocks ||
			result.FindingCount != 0 {
			t.Errorf("result is %+v", result)
		}
		if result.BlocksChecked <= 3*testBlocks {
			t.Errorf("%d blocks checked: nothing was read between the writes", result.BlocksChecked)
		}
		if flushes < 6 || uint64(flushes) != result.Flushes {
			t.Errorf("%d flushes arrived, %d were counted", flushes, result.Flushes)
		}
		for i := range uint64(testBlocks) {
			id := identity{run: testRun, offset: i * testBlock, generation: 3}
			if !id.holds(v.Data()[i*testBlock:][:testBlock]) {
				t.Errorf("block %d does not hold what the last pass has written", i)
			}
		}
	}
}

func TestOnlyTheGivenRangeIsTouched(t *testing.T) {
	p := testParameters()
	v := newTestVolume(&p)
	before := string(v.Data())
	p.Offset, p.Length = 10*testBlock, 33*testBlock
	if _, err := run(t, p, v); err != nil {
		t.Fatal(err)
	}
	after := string(v.Data())
	if after[:p.Offset] != before[:p.Offset] || after[p.Offset+p.Length:] != before[p.Offset+
		p.Length:] {
		t.Error("blocks outside the range have changed")
	}
	if after[p.Offset:][:p.Length] == before[p.Offset:][:p.Length] {
		t.Error("the range has not changed")
	}
}

// victim is the offset of the block that the faults damage.
const victim = 100 * testBlock

// coversVictim reports whether a request of the given kind covers the victim,
// and where in the request's memory it lies.
func coversVictim(v *queuetest.Volume, r *client.Request, kind client.RequestType) ([]byte, bool) {
	if r.Type != kind || r.Offset > victim || r.Offset+uint64(r.Length) <= victim {
		return nil, false
	}
	return v.Memory[r.Memory+victim-r.Offset:][:testBlock], true
}

// headerIn returns the header of a block in a request's memory.
func headerIn(block []byte) header { return parseHeader(block) }

// faults are ways of a volume to damage the victim in pass 2.
var faults = map[string]struct {
	kind   Kind
	detail string
	// block is the write's, data the volume's after it
	spoil func(v *queuetest.Volume, block, data []byte)
	check func(f *Finding) bool
}{
	"a write that is lost in the second pass is stale": {
		Stale, "holds the data of pass 1",
		func(_ *queuetest.Volume, _, data []byte) {
			identity{run: testRun, offset: victim, generation: 1}.stamp(data)
		},
		func(f *Finding) bool { return f.Found.Generation == 1 && f.Found.ChecksumValid },
	},
	"a block that was zeroed is lost": {
		Lost, "zeroes",
		func(_ *queuetest.Volume, _, data []byte) { clear(data) },
		func(f *Finding) bool { return f.Found == nil },
	},
	"a block with data of another run is lost": {
		Lost, "another run",
		func(_ *queuetest.Volume, _, data []byte) {
			identity{run: testRun + 1, offset: victim, generation: 2}.stamp(data)
		},
		func(f *Finding) bool { return f.Found.Run == runName(testRun+1) },
	},
	"a block with data of another place is misplaced": {
		Misplaced, "wrote to offset 0",
		func(v *queuetest.Volume, _, data []byte) {
			identity{run: testRun, offset: 0, generation: 2}.stamp(data)
		},
		func(f *Finding) bool { return f.Found.Offset == 0 },
	},
	"a block of which only the beginning was written is torn": {
		Torn, "begins as generation 2 and continues as generation 1 at byte 200",
		func(_ *queuetest.Volume, block, data []byte) {
			identity{run: testRun, offset: victim, generation: 1}.stamp(data)
			copy(data[:200], block)
		},
		func(f *Finding) bool {
			return f.TornAtByte == 200 && f.FirstWrongByte == 200 && f.LastWrongByte == testBlock-1
		},
	},
	"a block of which only the end was written is torn": {
		Torn, "begins as generation 1 and continues as generation 2 at byte 256",
		func(_ *queuetest.Volume, block, data []byte) {
			identity{run: testRun, offset: victim, generation: 1}.stamp(data)
			copy(data[256:], block[256:])
		},
		func(f *Finding) bool { return f.TornAtByte == 256 },
	},
	"a block that ends in foreign data is torn": {
		Torn, "continues with zeroes at byte 128",
		func(_ *queuetest.Volume, _, data []byte) { clear(data[128:]) },
		func(f *Finding) bool { return f.TornAtByte == 128 },
	},
	"a block that begins with foreign data is torn": {
		Torn, "matches from byte 256 on",
		func(_ *queuetest.Volume, _, data []byte) { clear(data[:256]) },
		func(f *Finding) bool { return f.TornAtByte == 256 && f.FirstWrongByte == 0 },
	},
	"a block that holds the content of a free buffer is poisoned": {
		Poisoned, "poison of a free buffer at byte 0",
		func(_ *queuetest.Volume, _, data []byte) { copy(data, newPoison(testBlock)) },
		func(f *Finding) bool { return f.Found == nil },
	},
	"a block whose end was read from a free buffer is poisoned": {
		Poisoned, "poison of a free buffer at byte 256",
		func(_ *queuetest.Volume, _, data []byte) { copy(data[256:], newPoison(256)) },
		func(f *Finding) bool { return f.FirstWrongByte == 256 },
	},
	"a block with a flipped bit is corrupt": {
		Corrupt, "bytes 300 to 300",
		func(_ *queuetest.Volume, _, data []byte) { data[300] ^= 4 },
		func(f *Finding) bool { return f.FirstWrongByte == 300 && f.LastWrongByte == 300 },
	},
	"a block with a flipped bit in its magic is corrupt": {
		Corrupt, "bytes 0 to 0",
		func(_ *queuetest.Volume, _, data []byte) { data[0] ^= 4 },
		func(f *Finding) bool { return f.Found == nil },
	},
	"a block with a wrong generation in its header is corrupt": {
		Corrupt, "bytes 27 to 27",
		func(_ *queuetest.Volume, _,
			data []byte) {
			binary.BigEndian.PutUint32(data[offsetGeneration:], 9)
		},
		func(f *Finding) bool { return !f.Found.ChecksumValid },
	},
	"a block of a pass that has not come yet is corrupt": {
		Corrupt, "has not written it yet",
		func(_ *queuetest.Volume, _, data []byte) {
			identity{run: testRun, offset: victim, generation: 3}.stamp(data)
		},
		func(f *Finding) bool { return f.Found.Generation == 3 },
	},
}

func TestEveryKindOfWrongBlockIsToldApartAndLocated(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			p := testParameters()
			p.Passes = 2
			v := newTestVolume(&p)
			v.Intercept = func(r *client.Request) status.Code {
				code := v.Apply(r)
				if block, ok := coversVictim(v, r, client.Write); ok &&
					headerIn(block).generation == 2 {
					fault.spoil(v, block, v.Data()[victim:][:testBlock])
				}
				return code
			}
			result, err := run(t, p, v)
			if program.ExitCode(err) != program.ExitFailure ||
				!strings.Contains(program.Sentence(err),
					string(fault.kind)+" block at offset 51200") {
				t.Errorf("error is %v", err)
			}
			if result.FindingCount != 1 || result.FindingsByKind[fault.kind] != 1 ||
				len(result.Findings) != 1 {
				t.Fatalf("result is %+v", result)
			}
			f := &result.Findings[0]
			if f.Kind != fault.kind || f.Offset != victim || f.Pass != 2 ||
				f.ExpectedGeneration != 2 || !strings.Contains(f.Detail, fault.detail) ||
				!fault.check(f) {
				t.Errorf("finding is %+v", *f)
			}
		})
	}
}

func TestAReadThatTransfersNothingIsFound(t *testing.T) {
	p := testParameters()
	p.Passes = 1
	v := newTestVolume(&p)
	v.Intercept = func(r *client.Request) status.Code {
		if _, ok := coversVictim(v, r, client.Read); ok {
			return status.Success
		}
		return v.Apply(r)
	}
	result, err := run(t, p, v)
	if err == nil || result.FindingsByKind[Lost] == 0 {
		t.Errorf("result %+v, error %v", result, err)
	}
}

func TestABlockThatIsServedStaleOnceIsFound(t *testing.T) {
	p := testParameters()
	v := newTestVolume(&p)
	old, served := make([]byte, testBlock), false
	v.Intercept = func(r *client.Request) status.Code {
		if block, ok := coversVictim(v, r, client.Write); ok && headerIn(block).generation == 2 {
			copy(old, v.Data()[victim:])
		}
		code := v.Apply(r)
		if block, ok := coversVictim(v, r, client.Read); ok && !served &&
			headerIn(block).generation == 2 {
			served = true
			copy(block, old)
		}
		return code
	}
	result, err := run(t, p, v)
	if err == nil || result.FindingCount != 1 || result.FindingsByKind[Stale] != 1 {
		t.Errorf("result %+v, error %v", result, err)
	}
}

func TestAVolumeThatCorruptsEverythingIsReportedInBoundedSpace(t *testing.T) {
	p := testParameters()
	v := newTestVolume(&p)
	v.Intercept = func(r *client.Request) status.Code {
		code := v.Apply(r)
		if r.Type == client.Write {
			for at := r.Offset; at < r.Offset+uint64(r.Length); at += testBlock {
				v.Data()[at+77]++
			}
		}
		return code
	}
	result, err := run(t, p, v)
	if err == nil || result.FindingCount < 3*testBlocks || len(result.Findings) != findingsKept {
		t.Errorf("%d findings, %d kept, error %v", result.FindingCount, len(result.Findings), err)
	}
}

func TestABufferThatIsWrittenAfterItsRequestIsFound(t *testing.T) {
	p := testParameters()
	p.Queues, p.Passes = 1, 2
	for _, place := range []int{3, int(p.MaxIOSize) - 1} {
		v := newTestVolume(&p)
		var read client.Request
		flushes := 0
		v.Intercept = func(r *client.Request) status.Code {
			switch r.Type {
			case client.Read:
				read = *r
			case client.Flush: // when nothing else is outstanding
				if flushes++; flushes == 2 {
					v.Memory[read.Memory+uint64(place)] ^= 1
				}
			}
			return v.Apply(r)
		}
		result, err := run(t, p, v)
		if err == nil || result.FindingCount != 1 || result.FindingsByKind[Late] != 1 ||
			result.Findings[0].FirstWrongByte != place {
			t.Errorf("byte %d: result %+v, error %v", place, result, err)
		}
	}
}

func TestFailedWritesAreErrorsButNoFindings(t *testing.T) {
	p := testParameters()
	v := newTestVolume(&p)
	v.Cause = status.Cause(syscall.ENOSPC)
	v.Intercept = func(r *client.Request) status.Code {
		if _, ok := coversVictim(v, r, client.Write); ok {
			return status.IOFailed
		}
		return v.Apply(r)
	}
	result, err := run(t, p, v)
	if !errors.Is(err, status.IOFailed) || !errors.Is(err, syscall.ENOSPC) ||
		result.Errors == 0 || result.ErrorsByCode["IO_FAILED"] != result.Errors ||
		result.ErrorsByCause["ENOSPC"] != result.Errors || result.FindingCount != 0 {
		t.Errorf("result %+v, error %v", result, err)
	}
}

func TestTheLossOfTheConnectionEndsTheRun(t *testing.T) {
	p := testParameters()
	p.Passes, p.Runtime = 0, time.Hour
	v := newTestVolume(&p)
	served := 0
	v.Intercept = func(r *client.Request) status.Code {
		if served++; served >= 200 {
			v.Disconnect(status.ConnectionReset)
			return status.ConnectionReset
		}
		return v.Apply(r)
	}
	result, err := run(t, p, v)
	submitted := v.Queue(0).Submitted.Load() + v.Queue(1).Submitted.Load()
	if !errors.Is(err, status.ConnectionReset) || result.Errors != submitted-199 {
		t.Errorf("%d errors of %d requests, 199 of which were served: %v", result.Errors, submitted,
			err)
	}
}

func TestCancellingEndsTheRunAsIncomplete(t *testing.T) {
	p := testParameters()
	p.Passes, p.Runtime = 0, time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	config := configOf(t, p, newTestVolume(&p))
	config.Observe = func(now Progress) {
		if now.BlocksChecked > 0 {
			cancel()
		}
	}
	result, err := Run(ctx, config)
	if !errors.Is(err, context.Canceled) || !result.Interrupted || result.BlocksChecked == 0 {
		t.Errorf("result %+v, error %v", result, err)
	}
}

func TestRequestsThatNeverCompleteAreGivenUp(t *testing.T) {
	p := testParameters()
	p.Passes, p.Runtime, p.DrainTimeout = 0, time.Second, time.Millisecond
	v := newTestVolume(&p)
	v.Stalled.Store(true)
	result, err := run(t, p, v)
	if !errors.Is(err, status.TimeOut) || result.ErrorsByCode["TIME_OUT"] != result.Errors ||
		result.Errors == 0 {
		t.Errorf("result %+v, error %v", result, err)
	}
}

func TestParametersThatDoNotFitTheVolumeAreUsageErrors(t *testing.T) {
	for name, change := range map[string]func(*Parameters, *client.Info){
		"IO size off":  func(p *Parameters, _ *client.Info) { p.MaxIOSize = 1000 },
		"IO size zero": func(p *Parameters, _ *client.Info) { p.MaxIOSize = 0 },
		"offset off":   func(p *Parameters, _ *client.Info) { p.Offset = 100 },
		"length off":   func(p *Parameters, _ *client.Info) { p.Length = 100 },
		"length past the end": func(p *Parameters, _ *client.Info) {
			p.Offset, p.Length = testBlock,
				testBlocks*testBlock
		},
		"nothing left": func(p *Parameters,
			_ *client.Info) {
			p.Offset = testBlocks * testBlock
		},
		"slices too small":    func(p *Parameters, _ *client.Info) { p.Length = testBlock },
		"no depth":            func(p *Parameters, _ *client.Info) { p.QueueDepth = 0 },
		"no queues":           func(p *Parameters, _ *client.Info) { p.Queues = 0 },
		"CPUs without queues": func(p *Parameters, _ *client.Info) { p.CPUs = []int{0} },
		"no bound":            func(p *Parameters, _ *client.Info) { p.Passes = 0 },
		"too many passes":     func(p *Parameters, _ *client.Info) { p.Passes = 1 << 31 },
		"negative runtime":    func(p *Parameters, _ *client.Info) { p.Runtime = -1 },
		"poll mode":           func(p *Parameters, _ *client.Info) { p.Poll = "" },
		"no drain timeout":    func(p *Parameters, _ *client.Info) { p.DrainTimeout = 0 },
		"read-only":           func(_ *Parameters, info *client.Info) { info.ReadOnly = true },
		"tiny blocks":         func(_ *Parameters, info *client.Info) { info.BlockSize = 64 },
	} {
		p := testParameters()
		v := newTestVolume(&p)
		change(&p, &v.Info)
		if err := p.Resolve(&v.Info); program.ExitCode(err) != program.ExitUsage {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}
