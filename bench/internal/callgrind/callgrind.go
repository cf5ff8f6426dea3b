// SPDX-License-Identifier: Apache-2.0

// Package callgrind counts the instructions that a Go program executes, with valgrind. Unlike time,
// the count does not depend on what else the machine does.
package callgrind

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Place is a piece of source code: the part of a function that is in one file. Code of another file
// that the compiler has inlined into the function is another place.
type Place struct {
	File     string // as in the program's debug information
	Function string // with its package's path
}

// countTimeout bounds a run of a program, which takes seconds.
const countTimeout = 30 * time.Second

// Count runs a program, built without cgo, and counts the instructions that it executes in function
// and what function calls.
func Count(ctx context.Context, function, program string, arguments ...string) (
	map[Place]uint64, error,
) {
	if _, err := exec.LookPath("valgrind"); err != nil {
		return nil, errors.New("valgrind is not installed: apt-get install valgrind")
	}
	directory, err := os.MkdirTemp("", "callgrind-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	profile := filepath.Join(directory, "profile")
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	// Valgrind runs one thread at a time. Unless it is told to be fair, and the runtime has several
	// processors, a thread that polls for what another one is to do may keep its turn for ever.
	cmd := exec.CommandContext(ctx, "valgrind", append([]string{"--tool=callgrind",
		"--fair-sched=yes", "--callgrind-out-file=" + profile, "--collect-atstart=no",
		"--toggle-collect=" + function, program}, arguments...)...)
	// Callgrind fails on the signals by which the runtime preempts goroutines, and announces RDTSCP
	// where it cannot execute it. Collections would count at random.
	cmd.Env = append(os.Environ(), "GOGC=off", "GOMAXPROCS=4",
		"GODEBUG=asyncpreemptoff=1,cpu.rdtscp=off")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s under valgrind: %w\n%s", program, err, output.String())
	}
	f, err := os.Open(profile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counts, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("read the profile of %s: %w", program, err)
	}
	if len(counts) == 0 {
		return nil, fmt.Errorf("%s does not call %s", program, function)
	}
	return counts, nil
}

// parse reads the instructions of each place, without what it calls, from a profile in the format
// that valgrind's manual describes ("Callgrind Format Specification").
func parse(r io.Reader) (map[Place]uint64, error) {
	counts := make(map[Place]uint64)
	var at Place
	files, functions := names{}, names{}
	inclusive := false // the next line counts what was called
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if key, value, found := strings.Cut(line, "="); found {
			var err error
			switch key {
			case "fl", "fi", "fe":
				at.File, err = files.resolve(value)
			case "fn":
				at.Function, err = functions.resolve(value)
			case "cfi", "cfl":
				_, err = files.resolve(value)
			case "cfn":
				_, err = functions.resolve(value)
			case "calls":
				inclusive = true
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		if line == "" || !strings.ContainsRune("0123456789+-*", rune(line[0])) {
			continue
		}
		if inclusive {
			inclusive = false
			continue
		}
		_, cost, found := strings.Cut(line, " ")
		if !found {
			continue // no instructions
		}
		n, err := strconv.ParseUint(strings.TrimSpace(cost), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %q is not a line number and a count", line)
		}
		counts[at] += n
	}
	return counts, lines.Err()
}

// names resolves compressed names: "(1) name" defines number 1, "(1)" refers to it.
type names map[string]string

func (n names) resolve(text string) (string, error) {
	if !strings.HasPrefix(text, "(") {
		return text, nil
	}
	number, name, defines := strings.Cut(text, " ")
	if defines {
		n[number] = name
		return name, nil
	}
	name, found := n[number]
	if !found {
		return "", fmt.Errorf("name %s is not defined", number)
	}
	return name, nil
}
