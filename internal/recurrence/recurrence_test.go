// SPDX-License-Identifier: Apache-2.0

package recurrence

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestTheFirstOccurrenceHasALineAndLaterOnesNowAndThen(t *testing.T) {
	var r Recurrence
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var lines []time.Duration
	for after := time.Duration(0); after <= 30*time.Minute; after += time.Second {
		if r.Occur(begin.Add(after)) {
			lines = append(lines, after)
		}
		if isFirst := after == 0; isFirst != (r.Fields() == nil) {
			t.Fatalf("after %v, the fields are %v", after, r.Fields())
		}
	}
	want := []time.Duration{0, 10, 30, 70, 150, 310, 610, 910, 1210, 1510}
	if len(lines) != len(want) {
		t.Fatalf("lines after %v, want %v", lines, want)
	}
	for i := range want {
		if lines[i] != want[i]*time.Second {
			t.Errorf("line %d after %v, want %v", i, lines[i], want[i]*time.Second)
		}
	}
	fields := zapcore.NewMapObjectEncoder()
	for _, f := range r.Fields() {
		f.AddTo(fields)
	}
	if fields.Fields["attempts"] != int64(1801) || fields.Fields["for"] != 30*time.Minute {
		t.Errorf("the fields are %v", fields.Fields)
	}
	if r.Occur(begin.Add(40*time.Minute)) != true || len(r.Fields()) == 0 {
		t.Error("ten minutes later, a line is due, and the failure is still the same")
	}
	if !r.Occur(begin.Add(50*time.Minute+time.Nanosecond)) || r.Fields() != nil {
		t.Errorf("after a longer silence, the failure is another one: %v", []zap.Field(r.Fields()))
	}
}
