// SPDX-License-Identifier: Apache-2.0

// Package faulttest creates injectors for tests of hooks.
package faulttest

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/fault"
)

// recordedEvents is the room of the recorder.
const recordedEvents = 1 << 16

// New returns an injector of rules in their text form, and the recorder of their matches.
func New(t testing.TB, rules ...string) (*fault.Injector, *fault.Recorder) {
	t.Helper()
	recorder, err := fault.NewRecorder(recordedEvents)
	if err != nil {
		t.Fatal(err)
	}
	parsed := make([]fault.Rule, len(rules))
	for i, text := range rules {
		if parsed[i], err = fault.Parse(text); err != nil {
			t.Fatal(err)
		}
	}
	injector, err := fault.New(parsed, recorder)
	if err != nil {
		t.Fatal(err)
	}
	return injector, recorder
}
