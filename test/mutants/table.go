// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// mutant is a row of the table: a small change of the product that breaks a promise, and the tests
// that should notice.
type mutant struct {
	name string // unique, in kebab-case
	file string // path from the root of the module
	// old occurs exactly once in file; new replaces it.
	old, new string
	breaks   string // the promise that it breaks, as a sentence
	tests    []test // the nearest tests that should notice
	// schedules is within how many simulated schedules, with heirs, one should notice, whether
	// there are tests or not. 0 runs none.
	schedules int
	// survives says why no test can kill it, for one that only simulated schedules could. Such a
	// mutant is run and reported, and its survival is not a failure.
	survives string
}

// test names tests of one package.
type test struct {
	pkg string // ./pkg/target
	// run is ^TestA$ or ^(TestA|TestB)$, for a subtest followed by a slash and its pattern.
	run string
}

// mutants is the whole table: add the rows of a new file here.
var mutants = slices.Concat(
	datapathMutants,
	sessionMutants,
	controlMutants,
	clientMutants,
	applicationMutants,
	comchMutants,
	volumeMutants,
	gatewayMutants,
	verifyMutants,
	nbdMutants,
	ublkMutants,
	rdmaMutants,
	tlsMutants,
	secureMutants,
	supportMutants,
	durabilityMutants,
	leaseMutants,
	serviceMutants,
	observationMutants,
	httpMutants,
)

// names returns the test functions that t runs.
func (t test) names() ([]string, error) {
	top, _, _ := strings.Cut(t.run, "/")
	match := runPattern.FindStringSubmatch(top)
	if match == nil {
		return nil, fmt.Errorf("run %q of %s is neither ^TestA$ nor ^(TestA|TestB)$", t.run, t.pkg)
	}
	return strings.Split(match[1]+match[2], "|"), nil
}

// isWhole reports whether t runs test functions with all of their subtests.
func (t test) isWhole() bool { return !strings.Contains(t.run, "/") }

var runPattern = regexp.MustCompile(`^\^(?:(\w+)|\((\w+(?:\|\w+)*)\))\$$`)

// apply returns the text of the mutant's file with its change.
func (m *mutant) apply(text string) (string, error) {
	if n := strings.Count(text, m.old); m.old == "" || n != 1 {
		return "", fmt.Errorf("what it replaces occurs %d times in %s instead of once: adapt it to "+
			"the file", n, m.file)
	}
	return strings.Replace(text, m.old, m.new, 1), nil
}

// simulation is the test that runs simulated schedules.
var simulation = test{"./test/simulation", "^TestSchedules$"}

// packages returns the packages whose tests the mutants need, sorted.
func packages(rows []mutant) []string {
	var all []string
	for _, m := range rows {
		for _, t := range m.tests {
			all = append(all, t.pkg)
		}
		if m.schedules > 0 {
			all = append(all, simulation.pkg)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
