// SPDX-License-Identifier: Apache-2.0

package bench

import "testing"

func TestAScaleOfCloseValuesIsWidenedToTicks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ low, high, wantLow, wantHigh float64 }{
		{10080, 10101, 10000, 20000}, {4999, 5001, 2000, 10000}, {300, 300, 200, 500},
		{0.7, 0.8, 0.5, 1},
	} {
		s := scale{low: c.low, high: c.high}
		s.widen()
		if len(s.ticks()) < 2 || s.low > c.wantLow*1.001 || s.low < c.wantLow*0.999 ||
			s.high > c.wantHigh*1.001 || s.high < c.wantHigh*0.999 {
			t.Errorf("%v to %v: the scale is %+v with ticks %v", c.low, c.high, s, s.ticks())
		}
	}
}
