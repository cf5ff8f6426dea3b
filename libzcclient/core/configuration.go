// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	base "github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// configuration is what the text of zc_open says.
type configuration struct {
	client    client.Config
	provider  string
	directory string
	spinTime  time.Duration
	reconnect bool
	policy    retry.Policy
	level     string
}

// maxQueues is how many queues a volume can have here.
const maxQueues = 64

// key sets what a key of the configuration stands for.
type key func(c *configuration, value string) error

// keys are all keys. docs/guides/c-library.md describes them.
var keys = map[string]key{
	"provider":          text(func(c *configuration) *string { return &c.provider }),
	"directory":         text(func(c *configuration) *string { return &c.directory }),
	"device":            text(func(c *configuration) *string { return &c.client.Device }),
	"channel":           text(func(c *configuration) *string { return &c.client.ChannelName }),
	"queues":            count(func(c *configuration) *int { return &c.client.Queues }),
	"depth":             count(func(c *configuration) *int { return &c.client.Depth }),
	"buffer_size":       setBufferSize,
	"memory_size":       bytes(func(c *configuration) *uint64 { return &c.client.MemorySize }),
	"max_quarantined":   bytes(func(c *configuration) *uint64 { return &c.client.MaxQuarantined }),
	"control_timeout":   duration(func(c *configuration) *time.Duration { return &c.client.ControlTimeout }),
	"io_timeout":        duration(func(c *configuration) *time.Duration { return &c.client.IOTimeout }),
	"release_timeout":   duration(func(c *configuration) *time.Duration { return &c.client.ReleaseTimeout }),
	"spin_time":         duration(func(c *configuration) *time.Duration { return &c.spinTime }),
	"read_only":         truth(func(c *configuration) *bool { return &c.client.ReadOnly }),
	"exclusive":         truth(func(c *configuration) *bool { return &c.client.Exclusive }),
	"preempt":           text(func(c *configuration) *string { return &c.client.Preempt }),
	"owner":             setOwner,
	"software":          text(func(c *configuration) *string { return &c.client.Software }),
	"reconnect":         truth(func(c *configuration) *bool { return &c.reconnect }),
	"reconnect_timeout": func(c *configuration, value string) error { return c.policy.Total.Set(value) },
	"log":               text(func(c *configuration) *string { return &c.level }),
}

func text(field func(*configuration) *string) key {
	return func(c *configuration, value string) error {
		*field(c) = value
		return nil
	}
}

func count(field func(*configuration) *int) key {
	return func(c *configuration, value string) error {
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil || n == 0 {
			return fmt.Errorf("%q is no number above 0", value)
		}
		*field(c) = int(n)
		return nil
	}
}

func bytes(field func(*configuration) *uint64) key {
	return func(c *configuration, value string) error {
		b, err := size.Parse(value)
		*field(c) = uint64(b)
		return err
	}
}

func duration(field func(*configuration) *time.Duration) key {
	return func(c *configuration, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return fmt.Errorf("%q is no duration such as 500ms or 10s", value)
		}
		*field(c) = d
		return nil
	}
}

func truth(field func(*configuration) *bool) key {
	return func(c *configuration, value string) error {
		if value != "true" && value != "false" {
			return fmt.Errorf("%q is neither true nor false", value)
		}
		*field(c) = value == "true"
		return nil
	}
}

func setBufferSize(c *configuration, value string) error {
	b, err := size.Parse(value)
	if err == nil && uint64(b) != uint64(uint32(b)) {
		return fmt.Errorf("%v is 4 GiB or more", b)
	}
	c.client.BufferSize = uint32(b)
	return err
}

func setOwner(c *configuration, value string) error {
	c.client.Owner = client.NewOwner(value)
	return nil
}

// parse reads the text of zc_open.
func parse(description string) (*configuration, error) {
	c := &configuration{provider: "emulated", spinTime: progress.DefaultSpinTime, level: "none",
		client: client.Config{Device: emulated.DefaultHostDevice, Queues: 1, SyncDepth: -1,
			Software: buildinfo.String("libzcclient")}}
	given := map[string]bool{}
	for _, pair := range split(description) {
		name, value, isPair := strings.Cut(pair, "=")
		set, isKnown := keys[name]
		switch {
		case !isPair:
			return nil, status.Errorf(status.InvalidValue,
				"configuration: %q is no pair key=value", pair)
		case !isKnown:
			return nil, status.Errorf(status.InvalidValue, "configuration: there is no key %q: "+
				"the keys are %s", name, strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
		case given[name]:
			return nil, status.Errorf(status.InvalidValue,
				"configuration: the key %q is given twice", name)
		}
		given[name] = true
		if err := set(c, value); err != nil {
			return nil, status.Errorf(status.InvalidValue, "configuration: %s: %w", name, err)
		}
	}
	return c, c.complete(given["reconnect_timeout"])
}

// split returns the pairs, between which are commas or newlines. Spaces around them do not count,
// and a backslash makes the character after it an ordinary one.
func split(description string) []string {
	var pairs []string
	var pair strings.Builder
	isEscaped := false
	end := func() {
		if p := strings.TrimSpace(pair.String()); p != "" {
			pairs = append(pairs, p)
		}
		pair.Reset()
	}
	for _, c := range description {
		switch {
		case isEscaped:
			isEscaped = false
			pair.WriteRune(c)
		case c == '\\':
			isEscaped = true
		case c == ',' || c == '\n':
			end()
		default:
			pair.WriteRune(c)
		}
	}
	end()
	return pairs
}

// complete makes the client's configuration of the values.
func (c *configuration) complete(limitsReconnecting bool) error {
	if limitsReconnecting && !c.reconnect {
		return status.Errorf(status.InvalidValue,
			"configuration: reconnect_timeout needs reconnect=true")
	}
	if c.reconnect {
		c.client.Reconnect = &c.policy
	}
	if c.client.Queues > maxQueues {
		return status.Errorf(status.TooBig, "configuration: queues is %d, and can be %d at most",
			c.client.Queues, maxQueues)
	}
	log, err := logger(c.level)
	if err != nil {
		return err
	}
	c.client.Logger = log
	switch c.provider {
	case "emulated":
		c.client.Provider = emulated.New(emulated.Options{Directory: c.directory, Logger: log})
	case "doca":
		c.client.Provider = doca.New(doca.Options{Loader: base.System(), Logger: log})
	default:
		return status.Errorf(status.InvalidValue,
			"configuration: provider: %q is neither emulated nor doca", c.provider)
	}
	return nil
}

// logger returns one that writes to standard error.
func logger(name string) (*zap.Logger, error) {
	if name == "none" {
		return zap.NewNop(), nil
	}
	level, err := zapcore.ParseLevel(name)
	if err != nil || level > zapcore.ErrorLevel {
		return nil, status.Errorf(status.InvalidValue,
			"configuration: log: %q is none of none, error, warn, info, and debug", name)
	}
	encoder := zap.NewProductionEncoderConfig()
	encoder.EncodeTime = zapcore.ISO8601TimeEncoder
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(encoder),
		zapcore.Lock(os.Stderr), level)), nil
}
