// SPDX-License-Identifier: Apache-2.0

// Command suites runs the tests that a change has to pass: the gate, which is short and runs for
// every change, and the complete suites with real peers, which run when what they cover has
// changed.
//
// Usage:
//
//	suites gate             run the gate
//	suites peers [SUITE...] run all suites, or those named
//	suites since REF        run the suites whose sources have changed since REF
//	suites list [REF]       print the suites, or those that since would run
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := runCommand(ctx, &lockedWriter{w: os.Stdout}, os.Args[1:]); err != nil {
		fmt.Printf("\nFAILED: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func runCommand(ctx context.Context, w io.Writer, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: suites gate | peers [SUITE...] | since REF | list [REF]")
	}
	switch command, rest := args[0], args[1:]; {
	case command == "gate" && len(rest) == 0:
		return gate(ctx, w)
	case command == "peers":
		return peers(ctx, w, rest)
	case command == "since" && len(rest) == 1:
		names, err := suitesSince(ctx, rest[0])
		if err != nil {
			return err
		}
		if len(names) == 0 {
			fmt.Fprintf(w, "no suite covers what has changed since %s\n", rest[0])
			return nil
		}
		return peers(ctx, w, names)
	case command == "list" && len(rest) == 1:
		names, err := suitesSince(ctx, rest[0])
		if err == nil {
			fmt.Fprintln(w, strings.Join(names, "\n"))
		}
		return err
	case command == "list" && len(rest) == 0:
		for _, s := range suites {
			fmt.Fprintf(w, "%-12s%s\n", s.name, s.command)
		}
		return nil
	}
	return fmt.Errorf("unknown command %q: see the comment of test/suites/main.go", args)
}

// peers runs suites one after the other, because each may use the whole machine.
func peers(ctx context.Context, w io.Writer, names []string) error {
	steps, err := stepsOf(names)
	if err != nil {
		return err
	}
	done, err := runAll(ctx, w, steps)
	fmt.Fprintln(w)
	for _, o := range done {
		fmt.Fprintln(w, o)
	}
	return err
}

// suitesSince returns the suites that cover what differs between a commit and the working tree.
func suitesSince(ctx context.Context, ref string) ([]string, error) {
	changed, err := exec.CommandContext(ctx, "git", "diff", "--name-only", "--no-renames", "-z",
		ref, "--").Output()
	if err != nil {
		return nil, fmt.Errorf("git diff %s: %w", ref, err)
	}
	added, err := exec.CommandContext(ctx, "git", "ls-files", "--others", "--exclude-standard",
		"-z").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	files := strings.FieldsFunc(string(changed)+string(added), func(r rune) bool { return r == 0 })
	return suitesFor(files)
}

// lockedWriter lets steps that run beside each other write to one terminal.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
