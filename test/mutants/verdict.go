// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// verdict is what the tests make of a mutant.
type verdict struct {
	row     *mutant
	outcome outcome
	killer  string // the test that has killed it
	reason  error  // why the row is invalid
	took    time.Duration
}

type outcome string

const (
	killed   outcome = "killed"
	survived outcome = "survived"
	invalid  outcome = "invalid"
)

// try runs the tests of a mutant until one fails.
func (m *module) try(ctx context.Context, row *mutant) (v verdict) {
	v.row = row
	begun := time.Now()
	defer func() { v.took = time.Since(begun) }()
	err := m.with(row, func() { v.outcome, v.killer, v.reason = m.hunt(ctx, row) })
	if err != nil {
		v.outcome, v.reason = invalid, err
	}
	return v
}

// andAlso joins what has killed a mutant.
const andAlso = " and "

// hunt runs the tests of the mutant that is applied until one notices, and then the schedules: they
// must notice by themselves.
func (m *module) hunt(ctx context.Context, row *mutant) (outcome, string, error) {
	compiled := ""
	compile := func(pkg string) error {
		if pkg == compiled {
			return nil
		}
		compiled = pkg
		return m.compile(ctx, pkg)
	}
	var killers []string
	for _, t := range row.tests {
		if err := compile(t.pkg); err != nil {
			return invalid, "", err
		}
		output, err := m.runTests(ctx, t, testLimit, "-test.failfast")
		if ctx.Err() != nil {
			return invalid, "", ctx.Err()
		}
		if err != nil {
			killers = []string{fmt.Sprintf("%s %s", t.pkg[len("./"):], culprit(output))}
			break
		}
	}
	if killers == nil && (len(row.tests) > 0 || row.schedules == 0) {
		return survived, "", nil
	}
	if row.schedules == 0 {
		return killed, killers[0], nil
	}
	if err := compile(simulation.pkg); err != nil {
		return invalid, "", err
	}
	output, err := m.runSchedules(ctx, row.schedules)
	if ctx.Err() != nil {
		return invalid, "", ctx.Err()
	}
	if err != nil {
		return killed, strings.Join(append(killers, firstSeed(output)), andAlso), nil
	}
	return survived, "", nil
}

// firstSeed names the schedule that fails according to the output of runSchedules.
func firstSeed(output string) string {
	if seed := failedSeed.FindStringSubmatch(output); seed != nil {
		return fmt.Sprintf("simulation seed %s", seed[1])
	}
	return "simulation " + culprit(output)
}

var (
	failedSeed  = regexp.MustCompile(`(?m)^ +\S+: seed (\d+): `)
	failedTest  = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	passedTest  = regexp.MustCompile(`(?m)^ *--- PASS: (\S+) \(([\d.]+)s\)`)
	runningTest = regexp.MustCompile(`(?m)^=== (?:RUN|CONT) +([^\s/]+)`)
)

// culprit returns the name of the test that failed, crashed, or hung according to a test program's
// output.
func culprit(output string) string {
	if failed := failedTest.FindStringSubmatch(output); failed != nil {
		return failed[1]
	}
	how := "crashes"
	if strings.Contains(output, "panic: test timed out") {
		how = "hangs"
	}
	running := runningTest.FindAllStringSubmatch(output, -1)
	if running == nil {
		return how
	}
	return running[len(running)-1][1] + " (" + how + ")"
}

// maxTests is how long the tests of a row may take unmutated, so that a busy machine does not make
// them exceed testLimit.
const maxTests = testLimit * 2 / 3

// baseline returns why tests cannot judge mutants: they do not exist, fail, or are too slow
// although nothing has been changed.
type baseline map[test]error

// measure runs all tests of the rows in a package once. A package that does not compile makes only
// its own tests useless.
func (m *module) measure(ctx context.Context, pkg string, rows []mutant) baseline {
	b := baseline{}
	schedules := 0
	names := map[string]bool{}
	for _, row := range rows {
		if pkg == simulation.pkg {
			schedules = max(schedules, row.schedules)
		}
		for _, t := range row.tests {
			if t.pkg != pkg {
				continue
			}
			b[t] = nil
			own, err := t.names()
			if err != nil {
				b[t] = err
			} else if t.isWhole() {
				for _, name := range own {
					names[name] = true
				}
			}
		}
	}
	if err := m.compile(ctx, pkg); err != nil {
		for t := range b {
			b[t] = err
		}
		if schedules > 0 {
			b[simulation] = err
		}
		return b
	}
	took := map[string]time.Duration{}
	if len(names) > 0 {
		union := strings.Join(slices.Sorted(maps.Keys(names)), "|")
		took = m.passing(ctx, test{pkg, "^(" + union + ")$"})
	}
	for t, err := range b {
		if err != nil {
			continue
		}
		if t.isWhole() {
			b[t] = t.judge(took)
		} else {
			b[t] = t.judge(m.passing(ctx, t))
		}
	}
	if schedules > 0 {
		if output, err := m.runSchedules(ctx, schedules); err != nil {
			b[simulation] = fmt.Errorf("simulated schedules fail unmutated, in %s: %w",
				firstSeed(output), err)
		}
	}
	return b
}

// passing returns the tests that pass, with subtests, and how long each took.
func (m *module) passing(ctx context.Context, t test) map[string]time.Duration {
	output, _ := m.runTests(ctx, t, compileLimit)
	took := map[string]time.Duration{}
	for _, passed := range passedTest.FindAllStringSubmatch(output, -1) {
		seconds, _ := strconv.ParseFloat(passed[2], 64)
		took[passed[1]] = time.Duration(seconds * float64(time.Second))
	}
	return took
}

// judge returns why t cannot judge mutants, given the tests that pass.
func (t test) judge(took map[string]time.Duration) error {
	names, _ := t.names()
	var total time.Duration
	for _, name := range names {
		d, ok := took[name]
		if !ok {
			return fmt.Errorf("%s of %s does not exist, or does not pass unmutated", name, t.pkg)
		}
		total += d
	}
	if !t.isWhole() && len(took) == len(names) {
		return fmt.Errorf("%s matches no subtest of %s", t.run, t.pkg)
	}
	if total > maxTests {
		return fmt.Errorf("%s of %s takes %v, longer than %v: name fewer or quicker tests",
			t.run, t.pkg, total, maxTests)
	}
	return nil
}

// check returns why the row's tests cannot judge it.
func (b baseline) check(row *mutant) error {
	if len(row.tests) == 0 && row.schedules == 0 {
		return errors.New("names neither tests nor schedules")
	}
	var errs []error
	for _, t := range row.tests {
		errs = append(errs, b[t])
	}
	if row.schedules > 0 {
		errs = append(errs, b[simulation])
	}
	return errors.Join(errs...)
}
