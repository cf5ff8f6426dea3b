// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// Configuration is the configuration of one of the daemons.
type Configuration interface {
	*Relay | *Target
	// Common returns the part that both daemons have.
	Common() *Daemon
	// Descriptors returns how many file descriptors the daemon can need with a number of workers.
	Descriptors(workers int) int
	// Dump writes the configuration as YAML.
	Dump(w io.Writer) error
	// size returns how many channels or volumes there are.
	size() (count int, of string)
	// sessions returns how many sessions the limits allow, and how many queues each may have.
	sessions() (most, queues int)
	// descriptorsFor returns Descriptors for other limits.
	descriptorsFor(workers, sessions, queues int) int
}

func (c *Relay) size() (int, string)  { return len(c.Channels), "channels" }
func (c *Target) size() (int, string) { return len(c.Volumes), "volumes" }

// Daemon is the part of a configuration that both daemons have.
type Daemon struct {
	Log        Log
	Operations Operations
	Metrics    Metrics
	Workers    Workers
	RDMA       RDMA
	TLS        TLS
	Security   Security
	Control    Control
	Shutdown   Shutdown
}

func defaultDaemon(controlTimeout, drainTimeout time.Duration) Daemon {
	return Daemon{Log: defaultLog(), Metrics: defaultMetrics(), Workers: defaultWorkers(),
		RDMA: defaultRDMA(), Security: defaultSecurity(), Control: defaultControl(controlTimeout),
		Shutdown: Shutdown{DrainTimeout: retry.Within(drainTimeout)}}
}

// Common returns the part that both daemons have.
func (d *Daemon) Common() *Daemon { return d }

// HidesMemory reports whether the daemon's memory is closed to its user's other processes, because
// it will hold private keys, tokens, or passwords.
func (d *Daemon) HidesMemory() bool {
	return d.hasSecrets() && !d.Operations.CoreDumps
}

// ExposesMemory reports whether core dumps, and debuggers, can read the daemon's secrets, as the
// configuration says.
func (d *Daemon) ExposesMemory() bool { return d.hasSecrets() && d.Operations.CoreDumps }

func (d *Daemon) hasSecrets() bool { return d.TLS.Enabled() || d.Operations.hasSecrets() }

// unit returns the name of the daemon's unit, which its file has, too.
func (s *Source[C]) unit() string {
	return strings.TrimSuffix(filepath.Base(s.UnitFile), ".yaml")
}

// Source is where a command gets a configuration from: a file, environment variables, and flags.
type Source[C Configuration] struct {
	// UnitFile is the configuration file of the daemon's unit.
	UnitFile string
	// Translator is nil if there are no flags besides those of the configuration.
	Translator Translator
	// File is the file that the flags name, "" for none.
	File string
	// Input is what StandardInput in place of a file stands for, nil if nothing does.
	Input io.Reader
	// Flags are those of the command.
	Flags *pflag.FlagSet

	prefix   string // of variables
	addFlags func(*pflag.FlagSet)
	read     func(Sources) (C, error)
	names    []string // of the flags that AddFlags has added
}

// Translator has flags that stand for flags of the configuration.
type Translator interface {
	AddFlags(f *pflag.FlagSet)
	// Translate sets the flags of the configuration.
	Translate(f *pflag.FlagSet) error
}

// RelaySource returns the source of a command of zc-relay.
func RelaySource() *Source[*Relay] {
	return &Source[*Relay]{UnitFile: "/etc/zc-relay/zc-relay.yaml", prefix: RelayPrefix,
		addFlags: addRelayFlags, read: LoadRelay}
}

// TargetSource returns the source of a command of the target.
func TargetSource() *Source[*Target] {
	return &Source[*Target]{UnitFile: "/etc/zc-relay/zc-relay-target.yaml", prefix: TargetPrefix,
		addFlags: addTargetFlags, read: LoadTarget}
}

// AddFlags adds the flags of the configuration to those of a command.
func (s *Source[C]) AddFlags(f *pflag.FlagSet) {
	s.Flags = f
	f.StringVarP(&s.File, configFlag, "c", "", "YAML file with the configuration; flags override it")
	s.addFlags(f)
	if s.Translator != nil {
		s.Translator.AddFlags(f)
	}
	f.VisitAll(func(flag *pflag.Flag) { s.names = append(s.names, flag.Name) })
}

// Load reads the configuration. Its error is one of usage.
func (s *Source[C]) Load() (C, error) {
	if err := s.translate(); err != nil {
		return nil, program.Usage(err)
	}
	c, err := s.read(Sources{File: s.File, Input: s.Input, Environ: os.Environ(), Flags: s.Flags})
	return c, program.Usage(err)
}

// LoadPart reads the configuration for a command that can do without what is required, from file,
// "" for none. Without a file, incomplete says what a daemon would lack.
func (s *Source[C]) LoadPart(file string) (c C, incomplete, err error) {
	if err := s.translate(); err != nil {
		return nil, nil, program.Usage(err)
	}
	sources := Sources{File: file, Environ: os.Environ(), Flags: s.Flags, Partial: file == ""}
	c, err = s.read(sources)
	if err == nil && sources.Partial {
		sources.Partial = false
		_, incomplete = s.read(sources)
	}
	return c, incomplete, program.Usage(err)
}

func (s *Source[C]) translate() error {
	if s.Translator == nil {
		return nil
	}
	return s.Translator.Translate(s.Flags)
}

// HasFlags reports whether flags of the daemon were given. Otherwise, the configuration file of its
// unit stands in for the command line, if there is one.
func (s *Source[C]) HasFlags() bool { return slices.ContainsFunc(s.names, s.Flags.Changed) }

// FindUnitFile returns the configuration file of the daemon's unit, "" if there is none.
func (s *Source[C]) FindUnitFile() string {
	if _, err := os.Stat(s.UnitFile); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return s.UnitFile
}
