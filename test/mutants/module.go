// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// compileLimit bounds a compilation. The first one has to compile everything.
	compileLimit = 10 * time.Minute
	// testLimit is how long the tests of a mutant may take; one that hangs is killed.
	testLimit = 30 * time.Second
	// scheduleLimit is how long a simulated schedule may take on average, beyond testLimit.
	scheduleLimit = time.Second
	// exitLimit is how long a test process may take to end after its own time limit.
	exitLimit = 15 * time.Second
)

// module is a private copy of the module's files.
type module struct {
	root   string // of the copy
	binary string // where test programs go
}

// copyModule copies the files of the module at root that git tracks or could track, into a new
// directory below parent.
func copyModule(ctx context.Context, root, parent string) (*module, error) {
	list, err := run(ctx, compileLimit, root, nil,
		"git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, fmt.Errorf("list the files of %s: %w\n%s", root, err, list)
	}
	directory, err := os.MkdirTemp(parent, "module-")
	if err != nil {
		return nil, err
	}
	m := &module{filepath.Join(directory, "module"), filepath.Join(directory, "test")}
	for name := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(m.root, name)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// copyFile copies a file or a symbolic link. It ignores one that does not exist: git lists files
// that have been removed since.
func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		link, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(link, to)
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}

// with calls do while the mutant's change is applied.
func (m *module) with(row *mutant, do func()) error {
	file := filepath.Join(m.root, row.file)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := row.apply(string(text))
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		return err
	}
	do()
	return os.WriteFile(file, text, 0o600)
}

// compile compiles the tests of a package, for runTests.
func (m *module) compile(ctx context.Context, pkg string) error {
	output, err := run(ctx, compileLimit, m.moduleOf(pkg), nil, "go", "test", "-c", "-trimpath",
		"-vet=off", "-ldflags=-s -w", "-o", m.binary, filepath.Join(m.root, pkg))
	if err != nil {
		return fmt.Errorf("compile the tests of %s: %w\n%s", pkg, err, output)
	}
	return nil
}

// moduleOf returns the folder of the module that has a package: this one, or one below it.
func (m *module) moduleOf(pkg string) string {
	folder := filepath.Join(m.root, pkg)
	for folder != m.root {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			break
		}
		folder = filepath.Dir(folder)
	}
	return folder
}

// runTests runs tests of the package that was compiled last. It returns their output, and an error
// if one fails or hangs.
func (m *module) runTests(ctx context.Context, t test, limit time.Duration, extra ...string,
) (string, error) {
	directory := filepath.Join(m.root, t.pkg)
	// Where rapid records a failure, to repeat it in the next run, which may be of another mutant.
	defer func() { _ = os.RemoveAll(filepath.Join(directory, "testdata", "rapid")) }()
	arguments := append([]string{m.binary, "-test.v", "-test.run", t.run, "-test.timeout",
		limit.String()}, extra...)
	return run(ctx, limit+exitLimit, directory, nil, arguments...)
}

// runSchedules runs simulated schedules, with heirs, until one fails. It uses the program that
// compile has built.
func (m *module) runSchedules(ctx context.Context, schedules int) (string, error) {
	return m.runTests(ctx, simulation, testLimit+time.Duration(schedules)*scheduleLimit,
		"-heirs", "-stop", "-first", "1", "-seeds", fmt.Sprint(schedules))
}
