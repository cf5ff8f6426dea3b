// SPDX-License-Identifier: Apache-2.0

package size_test

import (
	"encoding"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/size"
)

var (
	_ pflag.Value              = (*size.Bytes)(nil)
	_ encoding.TextUnmarshaler = (*size.Bytes)(nil)
	_ encoding.TextMarshaler   = size.Bytes(0)
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSizesAreReadInEveryUnit(t *testing.T) {
	for text, want := range map[string]size.Bytes{
		"0": 0, "4096": 4096, "4096B": 4096, "4k": 4096, "4K": 4096, "4KiB": 4096, "4kiB": 4096,
		"1MiB": 1 << 20, "1M": 1 << 20, "1m": 1 << 20, "4kB": 4000, "4KB": 4000, "1MB": 1e6,
		"1GB": 1e9, "1TB": 1e12,
		"1GiB": 1 << 30, "1g": 1 << 30, "2TiB": 2 << 40, "1PiB": 1 << 50,
		"3p": 3 << 50, "1PB": 1e15, "18446744073709551615": math.MaxUint64,
		"007": 7,
	} {
		if got, err := size.Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestBadSizesAreRefusedWithTheReason(t *testing.T) {
	for text, want := range map[string]string{
		"": "size is empty", "-4k": "is negative", "1.5MiB": "use a smaller unit",
		"k":   "not a number with a unit",
		"4kb": `unknown unit "kb"`, "4Mb": `unknown unit "Mb"`, "1EiB": `unknown unit "EiB"`, "4iB": `unknown unit "iB"`, "4kk": `unknown unit "kk"`,
		"4BB":   `unknown unit "BB"`,
		"4 KiB": "not a number with a unit", "+4": "not a number with a unit",
		"4_096":                    "not a number with a unit",
		"0x10":                     "not a number with a unit",
		"18446744073709551616":     "exceeds the largest possible size",
		"16777216TiB":              "exceeds the largest possible size",
		"16384PiB":                 "exceeds the largest possible size",
		"99999999999999999999999k": "exceeds the largest possible size",
	} {
		got, err := size.Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %d, %v, want an error with %q", text, got, err, want)
		}
	}
}

func TestSizesPrintInTheLargestExactUnit(t *testing.T) {
	for b, want := range map[size.Bytes]string{
		0: "0", 1: "1", 1000: "1000", 4096: "4KiB", 4097: "4097", 1 << 20: "1MiB",
		3 << 19: "1536KiB",
		1 << 30: "1GiB", 5 << 40: "5TiB", 1 << 50: "1PiB",
		1 << 60:        "1024PiB",
		math.MaxUint64: "18446744073709551615",
	} {
		if got := b.String(); got != want {
			t.Errorf("%d prints as %q, want %q", uint64(b), got, want)
		}
	}
}

func TestPrintedSizesReadBackExactly(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		b := size.Bytes(rapid.Uint64().Draw(t, "mantissa") << rapid.IntRange(0, 63).Draw(t,
			"shift"))
		if got, err := size.Parse(b.String()); err != nil || got != b {
			t.Fatalf("%d printed as %q, which reads as %d, %v", uint64(b), b, uint64(got), err)
		}
	})
}

func TestSizeIsAFlagAndAJSONValue(t *testing.T) {
	value := 4 * size.KiB
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.Var(&value, "block-size", "size of a block")
	if usage := flags.FlagUsages(); !strings.Contains(usage, "--block-size size") ||
		!strings.Contains(usage, "4KiB") {
		t.Errorf("usage is %q", usage)
	}
	if err := flags.Parse([]string{"--block-size", "64k"}); err != nil || value != 64*size.KiB {
		t.Errorf("flag set %v, %v", value, err)
	}
	if err := flags.Parse([]string{"--block-size", "x"}); err == nil || value != 64*size.KiB {
		t.Errorf("a bad flag gave %v and left %v", err, value)
	}
	if text, err := json.Marshal(value); err != nil || string(text) != `"64KiB"` {
		t.Errorf("JSON is %s, %v", text, err)
	}
	if err := json.Unmarshal([]byte(`"2MiB"`), &value); err != nil || value != 2*size.MiB {
		t.Errorf("JSON set %v, %v", value, err)
	}
}

func TestThroughputIsPrintedInMebibytesPerSecond(t *testing.T) {
	for rate, want := range map[float64]string{
		0: "0.00 MiB/s", 1 << 18: "0.25 MiB/s", 12.34 * (1 << 20): "12.3 MiB/s",
		99.96 * (1 << 20): "100 MiB/s", 1234.5 * (1 << 30): "1264128 MiB/s",
	} {
		if got := size.FormatThroughput(rate); got != want {
			t.Errorf("%g prints as %q, want %q", rate, got, want)
		}
	}
}

func TestBytesArePrintedInAUnitThatSuits(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 999: "999 B", 1000: "0.98 KiB", 1024: "1.00 KiB", 4096000: "3.91 MiB",
		1 << 40: "1.00 TiB", 1 << 63: "8192 PiB",
	} {
		if got := size.FormatBytes(n); got != want {
			t.Errorf("%d prints as %q, want %q", n, got, want)
		}
	}
}

func TestDurationsArePrintedInTheirOwnUnit(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0ns", 870: "870ns", 999: "999ns", 1000: "1.00µs", 12_345: "12.3µs", 999_499: "999µs",
		999_500:   "1.00ms",
		4_560_000: "4.56ms", 999_600_000: "1.00s", 1_234_000_000: "1.23s", 75_300_000_000: "75.3s",
		-12_345: "-12.3µs",
	} {
		if got := size.FormatDuration(d); got != want {
			t.Errorf("%d ns print as %q, want %q", int64(d), got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"4096", "4k", "4KiB", "1MB", "-1", "1.5G", "iB",
		"99999999999999999999T", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b, err := size.Parse(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "size ") {
				t.Fatalf("error %q does not say what it is about", err)
			}
			return
		}
		if again, err := size.Parse(b.String()); err != nil || again != b {
			t.Fatalf("%q is %d, printed as %q, which reads as %d, %v", text, uint64(b), b,
				uint64(again), err)
		}
	})
}
