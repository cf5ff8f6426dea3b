// SPDX-License-Identifier: Apache-2.0

// Command programs builds what tests run, before several of them do, and prints the variables that
// tell them where it is:
//
//	eval "$(go run ./internal/testkit/programs DIRECTORY [VARIABLE...])"
//
// Without a variable it builds every set.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "programs:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return fmt.Errorf("no directory is given: programs DIRECTORY [VARIABLE...]")
	}
	directory, err := filepath.Abs(arguments[0])
	if err != nil {
		return err
	}
	wanted := arguments[1:]
	for _, set := range testkit.Sets() {
		i := slices.Index(wanted, set.Variable)
		if len(arguments) > 1 && i < 0 {
			continue
		}
		if i >= 0 {
			wanted = slices.Delete(wanted, i, i+1)
		}
		place := filepath.Join(directory, set.Variable)
		if err := os.MkdirAll(place, 0o755); err != nil {
			return err
		}
		if err := set.Build(place); err != nil {
			return err
		}
		fmt.Printf("export %s='%s'\n", set.Variable, place)
	}
	if len(wanted) > 0 {
		return fmt.Errorf("no set has the variable %s: see the package testkit", wanted[0])
	}
	return nil
}
