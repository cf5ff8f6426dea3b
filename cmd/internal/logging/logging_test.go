// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(t *testing.T, arguments ...string) Options {
	t.Helper()
	var o Options
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(f)
	if err := f.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestJSONLinesCarryNameTimeAndFields(t *testing.T) {
	var out bytes.Buffer
	log, _, err := newTo(&out, "prog", options(t, "--log-format", "json"))
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hello", zap.Int("answer", 42))
	var line struct {
		Level, Logger, Msg, Ts string
		Answer                 int
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	if line.Level != "info" || line.Logger != "prog" || line.Msg != "hello" || line.Answer != 42 {
		t.Errorf("line is %+v", line)
	}
	if _, err := time.Parse(timeLayout, line.Ts); err != nil {
		t.Errorf("time: %v", err)
	}
}

func TestWhatIsBelowTheLevelIsNotLogged(t *testing.T) {
	var out bytes.Buffer
	log, _, err := newTo(&out, "prog", options(t, "-l", "warn"))
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud")
	if text := out.String(); strings.Contains(text, "quiet") || !strings.Contains(text, "loud") {
		t.Errorf("logged %q", text)
	}
}

func TestTheLevelChangesWhileTheLoggerIsUsed(t *testing.T) {
	var out bytes.Buffer
	log, level, err := newTo(&out, "prog", options(t, "-l", "warn"))
	if err != nil {
		t.Fatal(err)
	}
	log = log.With(zap.String("channel", "c")) // loggers made before follow as well
	level.SetLevel(zap.DebugLevel)
	log.Debug("loud")
	level.SetLevel(zap.ErrorLevel)
	log.Warn("quiet")
	if text := out.String(); strings.Contains(text, "quiet") || !strings.Contains(text, "loud") {
		t.Errorf("logged %q", text)
	}
}

func TestLevelsHaveNamesAndTheNumbersOfDOCA(t *testing.T) {
	for text, want := range map[string]zapcore.Level{
		"debug": zapcore.DebugLevel, "info": zapcore.InfoLevel, "warn": zapcore.WarnLevel,
		"error": zapcore.ErrorLevel,
		"30":    zapcore.ErrorLevel, "40": zapcore.WarnLevel, "50": zapcore.InfoLevel,
		"70":      zapcore.DebugLevel,
		"DISABLE": zapcore.FatalLevel + 1, "CRITICAL": zapcore.ErrorLevel,
		"ERROR": zapcore.ErrorLevel, "WARNING": zapcore.WarnLevel, "Info": zapcore.InfoLevel,
		"DEBUG": zapcore.DebugLevel, "trace": zapcore.DebugLevel, "WARN": zapcore.WarnLevel,
	} {
		if got, err := ParseLevel(text); err != nil || got != want {
			t.Errorf("ParseLevel(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "loud", "15", "-1", "panic"} {
		if _, err := ParseLevel(text); err == nil {
			t.Errorf("ParseLevel(%q) succeeded", text)
		}
	}
	for text, want := range map[string]uint32{"70": 70, "trace": 70, "warn": 40, "DISABLE": 10} {
		if got, err := ParseDOCALevel(text); err != nil || got != want {
			t.Errorf("ParseDOCALevel(%q) = %d, %v", text, got, err)
		}
	}
	if _, err := ParseDOCALevel("loud"); err == nil {
		t.Error("an unknown level was accepted")
	}
	if _, _, err := New("prog", options(t, "--log-format", "xml")); err == nil {
		t.Error("an unknown format was accepted")
	}
}

func TestRepeatedMessagesAreThinnedOut(t *testing.T) {
	for argument, want := range map[string]int{"5": 5 + 2, "0": 205} {
		var out bytes.Buffer
		log, _, err := newTo(&out, "prog", options(t, "--log-sampling", argument))
		if err != nil {
			t.Fatal(err)
		}
		// The same second for all lines: the sampler counts by the time of the line.
		entry := zapcore.Entry{Level: zapcore.InfoLevel, Time: time.Unix(1, 0), Message: "again"}
		for range 205 {
			if checked := log.Core().Check(entry, nil); checked != nil {
				checked.Write()
			}
		}
		if got := strings.Count(out.String(), "again"); got != want {
			t.Errorf("--log-sampling %s logged %d of 205 lines, want %d", argument, got, want)
		}
	}
	if _, _, err := New("prog", options(t, "--log-sampling", "-1")); err == nil {
		t.Error("a negative number was accepted")
	}
}
