// SPDX-License-Identifier: Apache-2.0

// Package injection holds what programs share that inject faults on request: the flags, and the
// signals that turn switches.
package injection

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/fault"
)

// Flags holds the rules of a command line. They are flags only: no configuration file and no
// environment can leave faults switched on.
type Flags struct {
	seams   []fault.Seam
	rules   []fault.Rule
	allowed bool
}

// Add adds the flags to a program that uses the given seams.
func (f *Flags) Add(flags *pflag.FlagSet, seams ...fault.Seam) {
	f.seams = seams
	flags.Var((*rulesFlag)(f), "fault",
		"for tests, with --allow-faults: inject faults by this rule, for instance "+
			"volume:write:p=0.01:delay=5ms; repeatable")
	flags.BoolVar(&f.allowed, "allow-faults", false,
		"accept --fault, which makes this program fail, delay, or corrupt what it is given")
}

// Rules returns the rules. It fails if there are rules that --allow-faults does not permit.
func (f *Flags) Rules() ([]fault.Rule, error) {
	if len(f.rules) > 0 && !f.allowed {
		return nil, program.Usagef("--fault %v damages or delays what this program is given: "+
			"add --allow-faults if that is what you want", f.rules[0])
	}
	return f.rules, nil
}

// Seams returns the seams of the program.
func (f *Flags) Seams() []fault.Seam { return f.seams }

// rulesFlag is the value of --fault.
type rulesFlag Flags

// Set adds a rule.
func (f *rulesFlag) Set(text string) error {
	rule, err := fault.Parse(text)
	if err != nil {
		// The flag is named with its value.
		return errors.New(strings.TrimPrefix(err.Error(), fmt.Sprintf("fault rule %q: ", text)))
	}
	if !slices.Contains(f.seams, rule.Seam) {
		seams := make([]string, len(f.seams))
		for i, s := range f.seams {
			seams[i] = string(s)
		}
		return fmt.Errorf("the seams of this program are %s", strings.Join(seams, ", "))
	}
	f.rules = append(f.rules, rule)
	return nil
}

// String returns all rules.
func (f *rulesFlag) String() string {
	if f == nil {
		return ""
	}
	texts := make([]string, len(f.rules))
	for i, rule := range f.rules {
		texts[i] = rule.String()
	}
	return strings.Join(texts, " ")
}

// Complete returns the continuations of a rule.
func (f *rulesFlag) Complete(text string) []string { return fault.Complete(text, f.seams...) }

// Type returns the name of the value in the help text.
func (f *rulesFlag) Type() string { return "rule" }

// New returns the injector of rules, nil if there are none. recorder may be nil.
func New(rules []fault.Rule, recorder *fault.Recorder) (*fault.Injector, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	injector, err := fault.New(rules, recorder)
	if err != nil {
		return nil, program.Usage(fmt.Errorf("--fault: %w", err))
	}
	return injector, nil
}

// Warn logs that faults are injected, if they are.
func Warn(injector *fault.Injector, log *zap.Logger) {
	for _, r := range injector.Rules() {
		log.Warn("faults are injected: this program is for tests", zap.Stringer("rule", r.Rule))
	}
}

// Switches returns the signals for ObeySwitches. The Go runtime drops those that come before the
// call, so it precedes everything that tells others that the program runs.
func Switches() chan os.Signal {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	return signals
}

// ObeySwitches turns all switches on at SIGUSR1. At SIGUSR2 it turns them off and releases
// everything that is frozen. It returns when ctx ends.
func ObeySwitches(
	ctx context.Context, signals chan os.Signal, injector *fault.Injector, log *zap.Logger,
) {
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-signals:
			if s == syscall.SIGUSR1 {
				injector.TurnOn("")
				log.Warn("fault switches turned on")
				continue
			}
			injector.TurnOff("")
			injector.Release()
			log.Warn("fault switches turned off, frozen operations released")
		}
	}
}
