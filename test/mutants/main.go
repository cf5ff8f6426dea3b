// SPDX-License-Identifier: Apache-2.0

// Mutants measures what the tests notice. It applies small changes to the product, each of which
// breaks a promise, one at a time in a copy of the module, and runs the nearest tests. A change
// that no test notices fails. docs/dev/mutants.md explains how to add one.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"sync"
	"syscall"
	"time"
)

func main() {
	var (
		pattern = flag.String("run", "", "run only the mutants whose names match")
		list    = flag.Bool("list", false, "list the mutants instead")
		write   = flag.String("write", "", "update the table in this Markdown document")
		workers = flag.Int("workers", runtime.NumCPU(), "how many mutants to run at a time")
	)
	flag.Parse()
	selected, err := regexp.Compile(*pattern)
	if err != nil || flag.NArg() > 0 || *workers < 1 {
		flag.Usage()
		os.Exit(2)
	}
	var rows []mutant
	for _, m := range mutants {
		if selected.MatchString(m.name) {
			rows = append(rows, m)
		}
	}
	if len(rows) == 0 {
		fmt.Fprintf(os.Stderr, "mutants: no mutant matches %q: -list shows their names\n", *pattern)
		os.Exit(2)
	}
	if *list {
		for _, m := range rows {
			fmt.Printf("%-45s %s\n", m.name, m.breaks)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	begun := time.Now()
	verdicts, err := runAll(ctx, ".", rows, *workers)
	if err == nil && *write != "" {
		err = writeTable(*write, mutants, verdicts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
	s := summarize(verdicts)
	fmt.Printf("%.0f s\n%v\n", time.Since(begun).Seconds(), s)
	if s.failed() {
		os.Exit(1)
	}
}

// runAll tries the mutants of the module at root, and prints each verdict. Each worker has a copy
// of the module, and first checks the tests of some packages.
func runAll(ctx context.Context, root string, rows []mutant, workers int) ([]verdict, error) {
	directory, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	copies := make([]*module, workers)
	for i := range copies {
		if copies[i], err = copyModule(ctx, root, directory); err != nil {
			return nil, err
		}
	}
	var mu sync.Mutex
	all := baseline{}
	pkgs := packages(rows)
	share(copies, len(pkgs), func(m *module, i int) {
		b := m.measure(ctx, pkgs[i], rows)
		mu.Lock()
		defer mu.Unlock()
		for t, err := range b {
			all[t] = err
		}
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	verdicts := make([]verdict, len(rows))
	share(copies, len(rows), func(m *module, i int) {
		v := &verdicts[i]
		if err := all.check(&rows[i]); err != nil {
			*v = verdict{row: &rows[i], outcome: invalid, reason: err}
		} else {
			*v = m.try(ctx, &rows[i])
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			v.print(os.Stdout)
		}
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return verdicts, nil
}

// share calls do for 0 to n-1, on all copies at the same time.
func share(copies []*module, n int, do func(m *module, i int)) {
	next := make(chan int)
	var workers sync.WaitGroup
	for _, m := range copies {
		workers.Go(func() {
			for i := range next {
				do(m, i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
}
