// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// The gate's steps, each with a budget of processor seconds, measured with warm caches.
//
// What fills the caches comes first and has no budget, because on a fresh machine it takes minutes.
// The budget of instructions is measured alone. Then the tests that mostly compute and those that
// mostly wait run beside each other.
var (
	gatePreparation = []step{
		{command: "make check-tree"},
		{command: "make prepare"},
	}
	gateAlone = []step{
		{command: "make build", budget: 20},
		{command: "make check-generated", budget: 30},
		{command: "make check-site", budget: 10},
		{command: "make demo", budget: 30},
		{command: "make demo-unprivileged", budget: 30},
		{command: "make check-budget", budget: 90},
	}
	gateComputing = []step{
		{command: "make lint", budget: 200},
		{command: "make check-kubernetes", budget: 40},
		{command: "make test", budget: 800},
		{command: "make simulate", budget: 80},
		{command: "make smoke-arm64", budget: 40},
	}
	gateWaiting = []step{
		{command: "make smoke-rdma", budget: 80},
		{command: "make smoke-ceph", budget: 60},
		{command: "make smoke-package", budget: 40},
	}
)

// gate runs the gate. It fails if a step fails, or needs more of the processors than its share.
func gate(ctx context.Context, w io.Writer) error {
	begun := time.Now()
	var done []outcome
	for _, lanes := range [][][]step{{gatePreparation}, {gateAlone}, {gateComputing, gateWaiting}} {
		outcomes, err := runAll(ctx, w, lanes...)
		if done = append(done, outcomes...); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	for _, o := range done {
		fmt.Fprintln(w, o)
	}
	err := checkShares(done)
	if err == nil {
		fmt.Fprintf(w, "gate: passed in %.0f s\n", time.Since(begun).Seconds())
	}
	return err
}

// shareTolerance is how many times its share of the budget a step may need. Processors differ in
// what they do fast.
const shareTolerance = 2

// checkShares fails if a step needed a larger share of the processor time than its budget grants.
// A machine that is slow or busy is so for all steps, and so changes no share.
func checkShares(done []outcome) error {
	var used, budget float64
	for _, o := range done {
		if o.budget > 0 {
			used += o.processors.Seconds()
			budget += o.budget
		}
	}
	var err error
	for _, o := range done {
		allowed := shareTolerance * o.budget * max(1, used/budget)
		if o.budget > 0 && o.processors.Seconds() > allowed {
			err = errors.Join(err, fmt.Errorf("%s needed %.0f s of the processors, and may need "+
				"%.0f s: %d times its budget of %.0f s. Make it cheaper, move a part of it to the "+
				"suites with peers, or change its budget in test/suites/gate.go", o.command,
				o.processors.Seconds(), allowed, shareTolerance, o.budget))
		}
	}
	return err
}
