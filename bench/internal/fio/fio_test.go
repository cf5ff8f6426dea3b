// SPDX-License-Identifier: Apache-2.0

package fio

import (
	"os"
	"testing"
)

func TestTheResultOfFioIsUnderstood(t *testing.T) {
	output, err := os.ReadFile("testdata/result.json")
	if err != nil {
		t.Fatal(err)
	}
	run, err := parse(output)
	if err != nil {
		t.Fatal(err)
	}
	l := run.LatencyNs
	if run.IOPS < 1 || run.BytesPerSecond < 4096 || *l.Min > *l.P50 || *l.P50 > *l.P99 ||
		*l.P99 > *l.P999 || *l.Mean == 0 {
		t.Errorf("run is %+v with latencies %+v", run, l)
	}
	for _, text := range []string{"", "{}", `{"jobs": [{"error": 5}]}`, `{"jobs": [{}]}`,
		`{"jobs": [{}, {}]}`} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%q was understood", text)
		}
	}
}
