// SPDX-License-Identifier: Apache-2.0

// Package size parses and formats byte sizes, throughputs and durations for people.
//
// Units are those of IEC 80000-13 and SI: KiB, MiB, GiB, TiB, PiB count by 1024;
// kB, MB, GB, TB, PB by 1000. A bare k, M, G, T or P, as in "4k", counts by
// 1024, as in fio.
package size

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Bytes is a number of bytes. It is a pflag.Value, an encoding.TextUnmarshaler and an
// encoding.TextMarshaler.
type Bytes uint64

// The binary multiples.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

const prefixes = "kMGTP"

// Parse parses a size: a whole number and a unit. No unit, or B, stands for bytes.
func Parse(text string) (Bytes, error) {
	digits := strings.TrimRightFunc(text, unicode.IsLetter)
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, parseError(text, digits, err)
	}
	multiple, err := parseUnit(text[len(digits):])
	if err != nil {
		return 0, fmt.Errorf("size %q: %w", text, err)
	}
	if number > math.MaxUint64/multiple {
		return 0, fmt.Errorf("size %q exceeds the largest possible size of %d bytes", text,
			uint64(math.MaxUint64))
	}
	return Bytes(number * multiple), nil
}

func parseError(text, digits string, err error) error {
	switch {
	case text == "":
		return fmt.Errorf("size is empty: write a number with a unit, for instance 4KiB")
	case strings.HasPrefix(text, "-"):
		return fmt.Errorf("size %q is negative", text)
	case strings.Contains(digits, "."):
		return fmt.Errorf("size %q is not a whole number: use a smaller unit, for instance 1536KiB for 1.5MiB",
			text)
	case err.(*strconv.NumError).Err == strconv.ErrRange:
		return fmt.Errorf("size %q exceeds the largest possible size of %d bytes", text,
			uint64(math.MaxUint64))
	}
	return fmt.Errorf("size %q is not a number with a unit, for instance 4096, 4k, 4KiB, 1MiB or 1MB",
		text)
}

// parseUnit returns the number of bytes in a unit.
func parseUnit(unit string) (uint64, error) {
	if unit == "" || unit == "B" {
		return 1, nil
	}
	power := 1 + strings.IndexByte(strings.ToLower(prefixes), unit[0]|0x20)
	if power > 0 {
		switch unit[1:] {
		case "", "iB":
			return 1 << (10 * power), nil
		case "B":
			return uint64(math.Pow10(3 * power)), nil
		}
	}
	return 0,
		fmt.Errorf("unknown unit %q: use k, M, G, T, P or KiB, MiB, GiB, TiB, PiB (powers of 1024), or kB, MB, GB, TB, PB (powers of 1000)",
			unit)
}

// String returns the size in the largest binary unit that expresses it
// exactly, for instance "4KiB". Parse reads it back as the same size.
func (b Bytes) String() string {
	power := len(prefixes)
	for ; power > 0; power-- {
		unit := Bytes(1) << (10 * power)
		if b >= unit && b%unit == 0 {
			return strconv.FormatUint(uint64(b/unit), 10) +
				strings.ToUpper(prefixes[power-1:power]) + "iB"
		}
	}
	return strconv.FormatUint(uint64(b), 10)
}

// Set parses a size (pflag.Value).
func (b *Bytes) Set(text string) error {
	parsed, err := Parse(text)
	if err != nil {
		return err
	}
	*b = parsed
	return nil
}

// Type returns the word for a size in help texts (pflag.Value).
func (b *Bytes) Type() string { return "size" }

// UnmarshalText parses a size.
func (b *Bytes) UnmarshalText(text []byte) error { return b.Set(string(text)) }

// MarshalText formats the size as String does.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// FormatBytes formats a number of bytes with three significant digits or more in the binary unit
// that suits it: "512 B", "3.91 MiB".
func FormatBytes(n uint64) string {
	power := 0
	for power < len(prefixes) && n>>(10*power) >= 1000 {
		power++
	}
	if power == 0 {
		return strconv.FormatUint(n, 10) + " B"
	}
	return formatDigits(float64(n)/float64(uint64(1)<<(10*power))) + " " +
		strings.ToUpper(prefixes[power-1:power]) + "iB"
}

// FormatThroughput formats bytes per second in MiB/s with three significant digits or more: "0.25
// MiB/s", "12.3 MiB/s", "1234 MiB/s".
func FormatThroughput(bytesPerSecond float64) string {
	return formatDigits(bytesPerSecond/float64(MiB)) + " MiB/s"
}

// FormatDuration formats a duration with three significant digits or more in the unit that suits
// it: "870ns", "12.3µs", "4.56ms", "1.23s", "75.3s".
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

// formatDigits keeps three significant digits, or all before the decimal point.
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
