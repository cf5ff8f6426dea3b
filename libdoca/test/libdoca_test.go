// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package test compiles the programs in programs/ with each C compiler, against the
// emulation of libdoca as a shared library, and runs each of their tests as two processes.
package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// objects is a directory for what is compiled once.
var objects string

func TestMain(m *testing.M) {
	var err error
	if objects, err = os.MkdirTemp("", "zc-relay-objects-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := testkit.Main(m).Run()
	_ = os.RemoveAll(objects)
	os.Exit(code)
}

// toolchain is how to compile the programs.
type toolchain struct {
	name     string
	compiler string
	flags    []string
	inGate   bool // the others find no other warnings, and no other faults of memory

	once   sync.Once
	shared []string // the objects of what all programs share
	err    error
}

var sanitize = []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"}

var toolchains = []toolchain{
	{name: "gcc", compiler: "gcc", flags: []string{"-O2"}, inGate: true},
	{name: "gcc-sanitized", compiler: "gcc", flags: sanitize},
	{name: "clang", compiler: "clang", flags: []string{"-O2"}},
	{name: "clang-sanitized", compiler: "clang", flags: sanitize, inGate: true},
}

// eachToolchain runs a test with each compiler, or with -short only the first.
func eachToolchain(t *testing.T, test func(t *testing.T, c *toolchain)) {
	for i := range toolchains {
		c := &toolchains[i]
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.require(t)
			test(t, c)
		})
	}
}

// require skips a test that need not run with this compiler.
func (c *toolchain) require(t *testing.T) {
	t.Helper()
	if testing.Short() && c != &toolchains[0] {
		t.Skip("-short: one compiler is enough")
	}
	if !c.inGate {
		testkit.OnlyComplete(t, "gcc, and clang with its sanitizers")
	}
	testkit.RequireTools(t, c.compiler)
}

// compile compiles a program, and returns the path of the executable.
func (c *toolchain) compile(t testing.TB, program string) string {
	t.Helper()
	directory := testkit.Libdoca.Directory(t)
	include := filepath.Join(directory, "include")
	c.once.Do(func() {
		for _, name := range []string{"program", "channel", "remote", "storage"} {
			object := filepath.Join(objects, c.name+"-"+name+".o")
			c.shared = append(c.shared, object)
			c.err = errors.Join(c.err, c.run("-I", include, "-c", "-o", object, sourceOf(name)))
		}
	})
	executable := filepath.Join(t.TempDir(), program)
	arguments := append([]string{"-I", include, "-o", executable, sourceOf(program)}, c.shared...)
	arguments = append(arguments, "-L", filepath.Join(directory, "lib"), "-l:libdoca_common.so.2",
		"-l:libdoca_comch.so.2", "-l:libdoca_rdma.so.2", "-l:libdoca_dma.so.2",
		"-l:libdoca_argp.so.2")
	if err := errors.Join(c.err, c.run(arguments...)); err != nil {
		t.Fatal(err)
	}
	return executable
}

func sourceOf(program string) string { return "programs/" + program + ".c" }

// run runs the compiler.
func (c *toolchain) run(arguments ...string) error {
	flags := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror",
		"-pthread"}, c.flags...)
	command := exec.Command(c.compiler, append(flags, arguments...)...)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", command, err, output)
	}
	return nil
}

var testEntry = regexp.MustCompile(`(?m)^\t\{"([a-z_0-9]+)", `)

// testsOf returns the names of a program's tests.
func testsOf(t *testing.T, program string) (names []string) {
	t.Helper()
	source, err := os.ReadFile(sourceOf(program))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range testEntry.FindAllStringSubmatch(string(source), -1) {
		names = append(names, match[1])
	}
	if len(names) == 0 {
		t.Fatalf("%s has no tests", program)
	}
	return names
}

// process is one of the two processes of a test.
type process struct {
	command *exec.Cmd
	output  bytes.Buffer
}

// environment returns what configures the library in a process.
func environment(t testing.TB, config string) []string {
	return append(os.Environ(),
		"LD_LIBRARY_PATH="+filepath.Join(testkit.Libdoca.Directory(t), "lib"),
		"ZC_DOCA_EMULATION="+config, "ZC_DOCA_DEBUG=report",
		// The library keeps the memory of destroyed objects for a while, and the Go runtime keeps
		// pointers to C's memory where the leak detector does not look.
		"ASAN_OPTIONS=detect_leaks=0:abort_on_error=0", "UBSAN_OPTIONS=print_stacktrace=1")
}

// runPair runs a test of a program as two processes, which both have to succeed.
func runPair(t *testing.T, executable, test string) {
	t.Helper()
	directory := t.TempDir()
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var processes [2]process
	for i, role := range []string{"dpu", "host"} {
		p := &processes[i]
		p.command = exec.CommandContext(ctx, executable, role, test)
		p.command.Env = environment(t, "{role: "+role+", directory: "+directory+"}")
		p.command.Stdout, p.command.Stderr = &p.output, &p.output
		p.command.WaitDelay = 10 * time.Second // for a child of it that keeps the output open
		peer := os.NewFile(uintptr(sockets[i]), "peer")
		p.command.ExtraFiles = []*os.File{peer}
		if err := p.command.Start(); err != nil {
			t.Fatal(err)
		}
		_ = peer.Close()
	}
	ended := make(chan error)
	for i := range processes {
		go func() {
			err := processes[i].command.Wait()
			if err != nil {
				err = fmt.Errorf("%s: %w", processes[i].command.Args[1], err)
			}
			ended <- err
		}()
	}
	for range processes {
		if err := <-ended; err != nil {
			t.Error(err)
			cancel() // the other one would wait for it in vain
		}
	}
	for i := range processes {
		output := processes[i].output.String()
		checkMisuse(t, processes[i].command.Args[1], output)
		if t.Failed() {
			t.Logf("%s:\n%s", processes[i].command.Args[1], output)
		}
	}
}

var (
	misuseLine   = regexp.MustCompile(`(?m)misuse: ([a-z_0-9]+): `)
	expectedLine = regexp.MustCompile(`(?m)^expected: ([a-z_0-9]+)$`)
)

// checkMisuse checks that the library has reported the misuse that the program announced, and no
// other.
func checkMisuse(t testing.TB, process, output string) {
	t.Helper()
	functions := func(line *regexp.Regexp) (names []string) {
		for _, match := range line.FindAllStringSubmatch(output, -1) {
			names = append(names, match[1])
		}
		slices.Sort(names)
		return names
	}
	reported, expected := functions(misuseLine), functions(expectedLine)
	if !slices.Equal(reported, expected) {
		t.Errorf("%s: the library reports misuse of %q, expected %q", process, reported, expected)
	}
}

// programs holds the programs whose tests are run as two processes.
var programs = []string{"rules_channel", "rules_memory", "rules_rdma", "fast_path", "rdma",
	"atomics", "argp", "log", "misuse", "memory", "sync_event", "teardown", "versions"}

func TestPrograms(t *testing.T) {
	t.Parallel()
	eachToolchain(t, func(t *testing.T, c *toolchain) {
		for _, program := range programs {
			executable := c.compile(t, program)
			for _, test := range testsOf(t, program) {
				t.Run(program+"/"+test, func(t *testing.T) {
					t.Parallel()
					runPair(t, executable, test)
				})
			}
		}
	})
}

// With ZC_DOCA_DEBUG=abort, the first misuse ends the process.
func TestMisuseAbortsAProgram(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, toolchains[0].compiler)
	command := exec.Command(toolchains[0].compile(t, "misuse"), "host", "of_states")
	command.Env = append(environment(t, "{role: host, directory: "+t.TempDir()+"}"),
		"ZC_DOCA_DEBUG=abort")
	output, err := command.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGABRT {
		t.Errorf("the program ends with %v", err)
	}
	checkMisuse(t, "the program", string(output)) // it announces each misuse before it happens
	if reports := misuseLine.FindAllString(string(output), -1); len(reports) != 1 {
		t.Errorf("it reports %q before it ends", reports)
	}
}

var (
	declaration = regexp.MustCompile(`\b(doca_[a-z0-9_]+)\(`)
	definition  = regexp.MustCompile(
		`(?m)^\s*(?:static [^;(]*(?:\(.*\) )?|#define )(doca_[a-z0-9_]+)\(`)
	listing = regexp.MustCompile(`(?m)^EMU_FUNCTION\([a-z_]+, (doca_[a-z0-9_]+),`)
)

// The list of functions, which makes the library and what the programs look for in it, has all
// functions that the headers declare and do not define, and no others.
func TestTheHeadersDeclareWhatTheLibraryHas(t *testing.T) {
	t.Parallel()
	named := func(expression *regexp.Regexp, pattern string) (names []string) {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: no such files, %v", pattern, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range expression.FindAllStringSubmatch(string(text), -1) {
				names = append(names, match[1])
			}
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	declared := named(declaration, "../../libdoca/include/*.h")
	defined := named(definition, "../../libdoca/include/*.h")
	declared = slices.DeleteFunc(declared, func(name string) bool {
		return slices.Contains(defined, name)
	})
	listed := named(listing, "../functions.h")
	if difference := cmp.Diff(declared, listed); difference != "" {
		t.Errorf("declared (-) and listed (+) functions: %s", difference)
	}
}
