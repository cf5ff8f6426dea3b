// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestCPUModelIsFoundOnEveryArchitecture(t *testing.T) {
	for text, want := range map[string]string{
		"processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n":             "Fast CPU @ 3 GHz",
		"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd42\n": "implementer 0x41 part 0xd42",
		"nothing of use\n": "",
		"":                 "",
	} {
		if got := parseCPUModel(strings.NewReader(text)); got != want {
			t.Errorf("%q has model %q, want %q", text, got, want)
		}
	}
}

func TestTheEnvironmentSaysWhatEveryMachineKnows(t *testing.T) {
	e := CurrentEnvironment()
	if e.Version == "" || e.GoVersion == "" || e.Architecture == "" || e.Kernel == "" ||
		e.CPUs < 1 || e.MaxProcessors < 1 {
		t.Errorf("environment is %+v", e)
	}
}

func TestOutputFormatsAreTextAndJSON(t *testing.T) {
	o := Text
	if err := o.Set("json"); err != nil || o != JSON {
		t.Errorf("format %v, error %v", o, err)
	}
	if err := o.Set("xml"); err == nil {
		t.Error("an unknown format was accepted")
	}
}

func TestAFailureIsNamedByItsCode(t *testing.T) {
	if f := FailureOf("run", nil, ""); f != nil {
		t.Errorf("success is described as %+v", f)
	}
	f := FailureOf("run", status.Errorf(status.IOFailed, "disk"), "text")
	if *f != (Failure{Code: "IO_FAILED", Phase: "run", Message: "text"}) {
		t.Errorf("failure is %+v", *f)
	}
	if f := FailureOf("run", errors.New("odd"), ""); f.Code != "UNKNOWN" {
		t.Errorf("failure is %+v", *f)
	}
}

func TestADocumentThatCannotBeWrittenIsAnError(t *testing.T) {
	if err := WriteJSON(brokenWriter{}, 1); err == nil {
		t.Error("writing succeeded")
	}
	var out bytes.Buffer
	if err := WriteJSON(&out, map[string]string{"a": "<&>"}); err != nil ||
		out.String() != "{\n  \"a\": \"<&>\"\n}\n" {
		t.Errorf("document is %q, error %v", out.String(), err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }
