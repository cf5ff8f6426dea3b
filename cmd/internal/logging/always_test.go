// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestALoggerThatAlwaysLogsIgnoresLevelAndSampling(t *testing.T) {
	var out bytes.Buffer
	log, level, err := newTo(&out, "test", Options{Level: "disable", Format: "json", Sampling: 1})
	if err != nil {
		t.Fatal(err)
	}
	always := Always(log).With(zap.Int("n", 1))
	const lines = 500
	for range lines {
		always.Info("kept")
		log.Error("dropped")
	}
	if n := strings.Count(out.String(), `"msg":"kept","n":1`); n != lines ||
		strings.Contains(out.String(), "dropped") {
		t.Errorf("%d lines are kept at level %v:\n%.300s", n, level, out.String())
	}
}
