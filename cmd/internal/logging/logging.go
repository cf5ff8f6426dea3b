// Package logging sets up the log of a program: zap on standard error, for
// people or as JSON.
package logging

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Options choose what is logged, and how.
type Options struct {
	Level  string // as ParseLevel reads it
	Format string // "console" or "json"
	// Sampling is how often a message is logged per second before it is
	// thinned out; 0 logs all.
	Sampling int
}

// AddFlags adds --log-level, short -l, and --log-format to f.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&o.Level, "log-level", "l", "info", "least severity to log: debug, info, warn, error, or a number of the DOCA applications from 10 (nothing) to 70 (everything)")
	f.StringVar(&o.Format, "log-format", "console", "log format: console or json")
	f.IntVar(&o.Sampling, "log-sampling", 100, "log a message this often per second, then every hundredth time only; 0 logs all")
}

// timeLayout is RFC 3339 with microseconds: a data path's events are closer
// together than milliseconds.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// sampleEvery thins out a message that is repeated beyond --log-sampling: a
// peer that fails over and over must not fill the disk.
const sampleEvery = 100

// New makes the logger that the options ask for, with a level that can be
// changed.
func New(name string, o Options) (*zap.Logger, zap.AtomicLevel, error) {
	return newTo(os.Stderr, name, o)
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
		encoder = zapcore.NewConsoleEncoder(config)
	default:
		return nil, level, fmt.Errorf("--log-format: %q is neither console nor json", o.Format)
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

// docaLevels are the numbers of DOCA's log levels (doca_log_level): disabled,
// critical, error, warning, info, debug, trace.
var docaLevels = map[int]zapcore.Level{
	10: zapcore.FatalLevel + 1, 20: zapcore.ErrorLevel, 30: zapcore.ErrorLevel, 40: zapcore.WarnLevel,
	50: zapcore.InfoLevel, 60: zapcore.DebugLevel, 70: zapcore.DebugLevel,
}

// ParseLevel accepts zap's names and the numbers that the DOCA applications
// take.
func ParseLevel(text string) (zapcore.Level, error) {
	if number, err := strconv.Atoi(text); err == nil {
		if level, ok := docaLevels[number]; ok {
			return level, nil
		}
		return 0, fmt.Errorf("level %d is none of 10, 20, 30, 40, 50, 60, 70", number)
	}
	level, err := zapcore.ParseLevel(text)
	if err != nil || text == "" || level > zapcore.ErrorLevel {
		return 0, fmt.Errorf("level %q is none of debug, info, warn, error", text)
	}
	return level, nil
}
