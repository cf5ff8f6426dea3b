// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func validated(pattern benchsuite.Pattern) Parameters {
	p := testParameters(pattern)
	p.Validate = true
	return p
}

func TestEveryWriteIsReadBack(t *testing.T) {
	for _, pattern := range []benchsuite.Pattern{benchsuite.Write, benchsuite.RandomWrite} {
		p := validated(pattern)
		v := newTestVolume(&p)
		v.Queue(0).RefuseEvery = 3
		writes, reads := 0, 0
		v.Intercept = func(r *client.Request) status.Code {
			if r.Type == client.Write {
				writes++
			} else {
				reads++
			}
			return v.Apply(r)
		}
		result, err := Run(context.Background(), configOf(t, p, v))
		if err != nil {
			t.Fatal(err)
		}
		if writes != 1000 || reads != 1000 || result.Operations != 1000 ||
			result.Validated != 1000 || result.Read.Operations != 0 {
			t.Errorf("%s: %d writes and %d reads arrived, result %+v", pattern, writes, reads,
				result)
		}
	}
}

func TestAChangedByteIsNoticed(t *testing.T) {
	p := validated(benchsuite.RandomWrite)
	v := newTestVolume(&p)
	count := 0
	v.Intercept = func(r *client.Request) status.Code {
		code := v.Apply(r)
		if r.Type == client.Write {
			if count++; count == 500 {
				v.Data()[r.Offset+77] ^= 1
			}
		}
		return code
	}
	result, err := Run(context.Background(), configOf(t, p, v))
	if !errors.Is(err, status.IOFailed) || !strings.Contains(err.Error(), "byte 77 is") ||
		result.Mismatches != 1 || result.Errors != 0 {
		t.Errorf("result %+v, error %v", result, err)
	}
}

func TestAWriteThatIsLostIsNoticed(t *testing.T) {
	p := validated(benchsuite.Write)
	p.Length = 64 * 4096 // so that blocks are written again and again
	v := newTestVolume(&p)
	count := 0
	v.Intercept = func(r *client.Request) status.Code {
		if r.Type == client.Write {
			if count++; count == 900 {
				return status.Success
			}
		}
		return v.Apply(r)
	}
	if result, err := Run(context.Background(), configOf(t, p, v)); err == nil ||
		result.Mismatches != 1 {
		t.Errorf("result %+v, error %v", result, err)
	}
}

func TestPlainContentIsComparedAndWritten(t *testing.T) {
	content := make([]byte, testVolumeSize)
	for i := range content {
		content[i] = byte(i >> 9)
	}
	for _, pattern := range benchsuite.Patterns() {
		p := validated(pattern)
		p.PlainContent = "content"
		v := newTestVolume(&p)
		copy(v.Data(), content)
		config := configOf(t, p, v)
		config.PlainContent = bytes.NewReader(content)
		result, err := Run(context.Background(), config)
		if err != nil || result.Validated != 1000 || !bytes.Equal(v.Data(), content) {
			t.Errorf("%s: result %+v, error %v", pattern, result, err)
		}
		if pattern == benchsuite.Read {
			v.Data()[4096*3]++
			config.PlainContent = bytes.NewReader(content)
			if result, err := Run(context.Background(), config); err == nil ||
				result.Mismatches == 0 {
				t.Errorf("changed content: result %+v, error %v", result, err)
			}
		}
	}
}

func TestPlainContentThatIsTooShortFailsTheRun(t *testing.T) {
	p := validated(benchsuite.Read)
	p.PlainContent = "content"
	config := configOf(t, p, newTestVolume(&p))
	config.PlainContent = bytes.NewReader(make([]byte, 4096))
	if _, err := Run(context.Background(), config); err == nil || !strings.Contains(err.Error(),
		"plain content") {
		t.Errorf("error is %v", err)
	}
}
