// SPDX-License-Identifier: Apache-2.0

// Package logging sets up the log of a program: zap on standard error, for
// people or as JSON.
package logging

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
)

// Options select what is logged, and the format.
type Options struct {
	Level  string // as ParseLevel reads it
	Format string // "console" or "json"
	// Sampling is the number of times per second that a message is logged before it is thinned out;
	// 0 logs all.
	Sampling int
	// isJournal means that the log goes to the journal, which has a time and a priority for each
	// line.
	isJournal bool
}

// AddFlags adds --log-level, short -l, and --log-format to f.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&o.Level, "log-level", "l", "info",
		"lowest severity to log: debug, info, warn, error, or a DOCA log level from 10 (nothing) to 70 (everything)")
	f.StringVar(&o.Format, "log-format", "console", "log format: console or json")
	f.IntVar(&o.Sampling, "log-sampling", 100,
		"log the first N repeats of a message per second, then every hundredth; 0 logs all")
}

// timeLayout is RFC 3339 with microseconds: events on a data path are less than a millisecond
// apart.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// sampleEvery is the rate at which repeated messages are logged beyond --log-sampling, so that a
// peer that keeps failing cannot fill the disk.
const sampleEvery = 100

// New returns a logger with the given options, and its level, which can be changed.
func New(name string, o Options) (*zap.Logger, zap.AtomicLevel, error) {
	if output.IsTerminal(os.Stderr) {
		return newTo(clearedLine{os.Stderr}, name, o)
	}
	o.isJournal = isJournal(os.Stderr)
	return newTo(&unblocked{file: os.Stderr, patience: readerPatience}, name, o)
}

// clearedLine writes to a terminal from the beginning of the line on, in place of the progress bar
// that may be there. The bar appears again, below, when it shows more progress.
type clearedLine struct{ terminal io.Writer }

func (l clearedLine) Write(p []byte) (int, error) {
	const toStart, clear = "\r", "\x1b[K"
	if _, err := l.terminal.Write(append([]byte(toStart+clear), p...)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func newTo(w io.Writer, name string, o Options) (*zap.Logger, zap.AtomicLevel, error) {
	level := zap.NewAtomicLevel()
	parsed, err := ParseLevel(o.Level)
	if err != nil {
		return nil, level, fmt.Errorf("--log-level: %w", err)
	}
	level.SetLevel(parsed)
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.TimeEncoderOfLayout(timeLayout)
	config.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch o.Format {
	case "json":
		encoder = zapcore.NewJSONEncoder(config)
	case "console":
		config.EncodeLevel = zapcore.CapitalLevelEncoder
		if o.isJournal {
			config.TimeKey = ""
		}
		encoder = zapcore.NewConsoleEncoder(config)
	default:
		return nil, level, fmt.Errorf("--log-format: %q is neither console nor json", o.Format)
	}
	if o.isJournal {
		encoder = journalEncoder{encoder}
	}
	core := zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level)
	if o.Sampling < 0 {
		return nil, level, fmt.Errorf("--log-sampling: %d is negative", o.Sampling)
	}
	if o.Sampling > 0 {
		core = zapcore.NewSamplerWithOptions(core, time.Second, o.Sampling, sampleEvery)
	}
	return zap.New(core).Named(name), level, nil
}

// docaLevels holds DOCA's log levels (doca_log_level), from the least to the most.
var docaLevels = []struct {
	number uint32
	name   string
	level  zapcore.Level
}{
	{10, "disable", zapcore.FatalLevel + 1}, {20, "critical", zapcore.ErrorLevel},
	{30, "error", zapcore.ErrorLevel}, {40, "warning", zapcore.WarnLevel},
	{50, "info", zapcore.InfoLevel}, {60, "debug", zapcore.DebugLevel},
	{70, "trace", zapcore.DebugLevel},
}

// ParseLevel accepts zap's names, and the numbers and names of DOCA's log levels. Case does not
// matter.
func ParseLevel(text string) (zapcore.Level, error) {
	_, level, err := parseLevel(text)
	return level, err
}

// ParseDOCALevel accepts the same as ParseLevel, and returns the number of DOCA's log level.
func ParseDOCALevel(text string) (uint32, error) {
	number, _, err := parseLevel(text)
	return number, err
}

func parseLevel(text string) (uint32, zapcore.Level, error) {
	name := strings.ToLower(text)
	if name == "warn" {
		name = "warning"
	}
	for _, l := range docaLevels {
		if name == l.name || name == strconv.Itoa(int(l.number)) {
			return l.number, l.level, nil
		}
	}
	if _, err := strconv.Atoi(text); err == nil {
		return 0, 0, fmt.Errorf("level %s is not one of 10, 20, 30, 40, 50, 60, 70", text)
	}
	return 0, 0, fmt.Errorf("level %q is not one of debug, info, warn, error", text)
}
