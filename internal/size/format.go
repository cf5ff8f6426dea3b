package size

import (
	"math"
	"strconv"
	"time"
)

// FormatThroughput prints bytes per second in MiB/s, with as many digits as
// tell something: "0.25 MiB/s", "12.3 MiB/s", "1234 MiB/s".
func FormatThroughput(bytesPerSecond float64) string {
	return formatDigits(bytesPerSecond/float64(MiB)) + " MiB/s"
}

// FormatDuration prints a duration with three significant digits or more in
// the unit that suits it: "870ns", "12.3µs", "4.56ms", "1.23s", "75.3s".
func FormatDuration(d time.Duration) string {
	ns := float64(d)
	switch magnitude := math.Abs(ns); {
	case magnitude < 1e3:
		return strconv.FormatInt(int64(d), 10) + "ns"
	case magnitude < 999.5e3:
		return formatDigits(ns/1e3) + "µs"
	case magnitude < 999.5e6:
		return formatDigits(ns/1e6) + "ms"
	}
	return formatDigits(ns/1e9) + "s"
}

// formatDigits keeps three significant digits, or all before the point.
func formatDigits(value float64) string {
	decimals := 2
	switch magnitude := math.Abs(value); {
	case magnitude >= 99.95:
		decimals = 0
	case magnitude >= 9.995:
		decimals = 1
	}
	return strconv.FormatFloat(value, 'f', decimals, 64)
}
