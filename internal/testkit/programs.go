// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// module is the path of this repository's module, below which packages are named.
const module = "github.com/zc-relay/zc-relay/"

// Set is a set of programs that are built together, in one configuration.
type Set struct {
	Variable string // names the directory of the programs where they have been built
	build    func(directory string) *exec.Cmd

	once      sync.Once
	directory string
	err       error
}

// The package comment describes the sets.
var (
	Plain = &Set{Variable: "ZC_RELAY_PROGRAMS",
		build: goBuild("0", nil, "cmd/...")}
	Race = &Set{Variable: "ZC_RELAY_RACE_PROGRAMS",
		build: goBuild("1", []string{"-race"}, "cmd/zc-relay", "cmd/target")}
	Emulation = &Set{Variable: "ZC_RELAY_EMULATION_PROGRAMS",
		build: inFolder("libdoca", "CGO_ENABLED=1 go build -trimpath -buildvcs=false -ldflags='-s -w' "+
			`-o "$1/" ./cmd/...`)}
	Manual = &Set{Variable: "ZC_RELAY_MANUAL_PROGRAMS",
		build: goBuild("0", []string{"-tags", "manual"}, "cmd/...")}
	Examples = &Set{Variable: "ZC_RELAY_EXAMPLE_PROGRAMS",
		build: goBuild("0", nil, "examples/...")}
	Libdoca = &Set{Variable: "ZC_RELAY_LIBDOCA",
		build: inFolder("libdoca", `scripts/build.sh "$(go env GOHOSTARCH)" "$1"`)}
	Libzcclient = &Set{Variable: "ZC_RELAY_LIBZCCLIENT",
		build: inFolder("libzcclient", `scripts/build.sh "$(go env GOHOSTARCH)" "$1"`)}
)

// Sets returns all sets.
func Sets() []*Set {
	return []*Set{Plain, Race, Emulation, Manual, Examples, Libdoca, Libzcclient}
}

// Directory returns the directory of the programs of a set, which it builds when a test of this
// process first needs them.
func (s *Set) Directory(t testing.TB) string {
	t.Helper()
	s.once.Do(func() { s.directory, s.err = s.findOrBuild() })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.directory
}

// Program returns the path of one program of a set.
func (s *Set) Program(t testing.TB, name string) string {
	t.Helper()
	return filepath.Join(s.Directory(t), name)
}

// Find returns the directory that the variable of the set names, "" if it names none.
func (s *Set) Find() (directory string, err error) {
	if directory = os.Getenv(s.Variable); directory == "" {
		return "", nil
	}
	if directory, err = filepath.Abs(directory); err == nil {
		_, err = os.Stat(directory)
	}
	if err != nil {
		return "", fmt.Errorf("find the programs that %s names: %w", s.Variable, err)
	}
	return directory, nil
}

// Build builds the programs of the set into a directory.
func (s *Set) Build(directory string) error {
	build := s.build(directory)
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build programs for %s: %v: %w\n%s", s.Variable, build, err, output)
	}
	return nil
}

func (s *Set) findOrBuild() (string, error) {
	if directory, err := s.Find(); directory != "" || err != nil {
		return directory, err
	}
	directory, err := makeDirectory()
	if err != nil {
		return "", err
	}
	return directory, s.Build(directory)
}

// built are the directories of the sets that this process has built.
var built struct {
	sync.Mutex
	isCleaned   bool // by what Main returns
	directories []string
}

func makeDirectory() (string, error) {
	built.Lock()
	defer built.Unlock()
	if !built.isCleaned {
		return "", errors.New(
			"no TestMain calls testkit.Main: the programs would stay when the tests have ended")
	}
	directory, err := os.MkdirTemp("", "zc-relay-programs-")
	if err == nil {
		built.directories = append(built.directories, directory)
	}
	return directory, err
}

// Main wraps the tests of a package, for its TestMain, so that what sets have built is removed
// after them.
func Main(m *testing.M) interface{ Run() int } {
	built.Lock()
	defer built.Unlock()
	built.isCleaned = true
	return cleaning{m}
}

type cleaning struct{ *testing.M }

func (c cleaning) Run() int {
	code := c.M.Run()
	built.Lock()
	defer built.Unlock()
	for _, directory := range built.directories {
		if err := os.RemoveAll(directory); err != nil {
			fmt.Fprintln(os.Stderr, "testkit:", err)
			code = max(code, 1)
		}
	}
	return code
}

// goBuild returns a function that builds packages of this repository into a directory.
func goBuild(cgo string, flags []string, packages ...string) func(string) *exec.Cmd {
	return func(directory string) *exec.Cmd {
		// What debuggers need would take a third of the linker's time.
		arguments := slices.Concat([]string{"build", "-trimpath", "-buildvcs=false",
			"-ldflags=-s -w", "-o", directory + "/"}, flags)
		for _, name := range packages {
			arguments = append(arguments, module+name)
		}
		build := exec.Command("go", arguments...)
		build.Env = append(withoutFlags(os.Environ()), "CGO_ENABLED="+cgo)
		return build
	}
}

// inFolder returns a function that runs a shell command, whose argument is a directory, in a folder
// of this repository, such as libdoca/, which is a module of its own.
func inFolder(folder, command string) func(string) *exec.Cmd {
	return func(directory string) *exec.Cmd {
		build := exec.Command("sh", "-ec", `cd "$(go list -m -f '{{.Dir}}' `+
			strings.TrimSuffix(module, "/")+`)/`+folder+"\"\n"+command, "sh", directory)
		build.Env = withoutFlags(os.Environ())
		return build
	}
}

// withoutFlags removes the flags of go that this test was built with, such as the race detector's,
// which would make another configuration of every set.
func withoutFlags(environ []string) []string {
	return slices.DeleteFunc(environ, func(variable string) bool {
		return strings.HasPrefix(variable, "GOFLAGS=")
	})
}
