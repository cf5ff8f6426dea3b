// SPDX-License-Identifier: Apache-2.0

// Package test compiles the programs in programs/ and ../examples with libzcclient, and runs them
// with a target and a relay.
package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m).Run()) }

// strict is how every compiler accepts the header and the example.
var strict = []string{"-Wall", "-Wextra", "-pedantic", "-Werror"}

// built returns the directory with the library, which it builds if a compiler is installed.
func built(t testing.TB) string {
	t.Helper()
	testkit.RequireTools(t, "gcc", "readelf")
	return testkit.Libzcclient.Directory(t)
}

// compile compiles a program with the library and returns its path.
func compile(t testing.TB, source string, flags ...string) string {
	t.Helper()
	testkit.RequireTools(t, "pkg-config")
	library := filepath.Join(built(t), "lib")
	program := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	// As a user compiles it: $(pkg-config --cflags --libs zcclient).
	ask := exec.Command("pkg-config", "--cflags", "--libs", "zcclient")
	ask.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(library, "pkgconfig"))
	answer, err := ask.Output()
	if err != nil {
		t.Fatal(err)
	}
	arguments := append([]string{"-g", "-O1", "-pthread", "-o", program, source}, strict...)
	arguments = append(append(arguments, flags...), strings.Fields(string(answer))...)
	run(t, "gcc", append(arguments, "-Wl,-rpath,"+library)...)
	return program
}

// compileTest compiles one of programs/, with the sanitizers of addresses and undefined behaviour.
func compileTest(t testing.TB, name string) string {
	t.Helper()
	return compile(t, filepath.Join("programs", name+".c"), "-std=gnu11",
		"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
}

// run runs a command and returns its output.
func run(t testing.TB, name string, arguments ...string) string {
	t.Helper()
	command := exec.Command(name, arguments...)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, output)
	}
	return string(output)
}

// chain is a target and a relay.
type chain struct {
	target, relay *testkit.Process
	address       string // of the target
	comch         string // the directory of the emulated Comch
}

var listening = regexp.MustCompile(`listening for relays.*"control": "([^"]+)"`)

// startChain starts a target with a volume called ram, and a relay.
func startChain(t testing.TB) *chain {
	t.Helper()
	c := &chain{comch: filepath.Join(t.TempDir(), "comch")}
	endpoint := testkit.Endpoint(t)
	c.target = testkit.Start(t, exec.Command(testkit.Plain.Program(t, "target"),
		"--listen-address", endpoint.Addr().String(), "--listen-port", "0",
		"--volume", "ram=memory:16MiB"))
	c.target.AwaitLog("listening for relays")
	found := listening.FindStringSubmatch(c.target.Stderr.String())
	if found == nil {
		t.Fatalf("the target does not say where it listens: %s", c.target.Stderr.String())
	}
	c.address = found[1]
	c.startRelay(t)
	return c
}

func (c *chain) startRelay(t testing.TB) {
	t.Helper()
	c.relay = testkit.Start(t, exec.Command(testkit.Plain.Program(t, "zc-relay"), "run",
		"--storage-server", c.address, "--volume", "ram", "--emulated-dir", c.comch))
	c.relay.AwaitLog("target is ready")
}

// configuration returns a text for zc_open.
func (c *chain) configuration(more string) string {
	return fmt.Sprintf("directory=%s,control_timeout=2m,%s", c.comch, more)
}

// leakless is for programs with the Go runtime, whose memory the leak sanitizer does not know.
func leakless(program string, arguments ...string) *exec.Cmd {
	command := exec.Command(program, arguments...)
	command.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0:handle_segv=0")
	return command
}

func TestTheHeaderSuitsEveryCompiler(t *testing.T) {
	t.Parallel()
	include := filepath.Join(built(t), "include")
	source := filepath.Join(t.TempDir(), "header.c")
	if err := os.WriteFile(source, []byte("#include <zcclient.h>\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, compiler := range []string{"gcc -std=c99 -x c", "gcc -std=c17 -x c",
		"g++ -std=c++98 -Wno-long-long -x c++", "g++ -std=c++20 -x c++", "clang -std=c99 -x c"} {
		words := strings.Fields(compiler)
		testkit.RequireTools(t, words[0])
		arguments := append(words[1:], "-I", include, "-fsyntax-only", source)
		run(t, words[0], append(arguments, strict...)...)
	}
}

func TestTheExampleWritesAndReads(t *testing.T) {
	t.Parallel()
	c := startChain(t)
	output := run(t, compile(t, "../examples/hello.c", "-std=c99"), c.configuration(""))
	want := "ram has 16777216 bytes in blocks of 4096\nhello, block\n"
	if output != want {
		t.Errorf("it prints %q, want %q", output, want)
	}
	output = run(t, compile(t, "../examples/bench.c", "-std=c99", "-D_POSIX_C_SOURCE=199309L"),
		"32", "0.01", c.configuration(""))
	if !strings.Contains(output, "depth 32: ") {
		t.Errorf("the benchmark prints %q", output)
	}
}

// succeed runs a program, which has to exit with 0.
func succeed(t *testing.T, command *exec.Cmd) {
	t.Helper()
	if code := testkit.Start(t, command).Wait(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
}

func TestEachOperationDoesWhatItSays(t *testing.T) {
	t.Parallel()
	c := startChain(t)
	succeed(t, leakless(compileTest(t, "operations"), c.configuration("depth=8,")))
}

func TestEachMisuseIsAnError(t *testing.T) {
	t.Parallel()
	c := startChain(t)
	succeed(t, leakless(compileTest(t, "misuse"), c.configuration("depth=8")))
}

func TestAProcessMayForkBeforeItOpensAVolume(t *testing.T) {
	t.Parallel()
	c := startChain(t)
	// It causes faults, and handles signals on its own stack.
	program := compile(t, "programs/fork.c", "-std=gnu11")
	succeed(t, exec.Command(program, c.configuration("")))
}

func TestAProcessGetsNoSecondGoRuntime(t *testing.T) {
	t.Parallel()
	program := compile(t, "programs/runtime.c", "-std=gnu11")
	run(t, program, filepath.Join(testkit.Libdoca.Directory(t), "lib", "libdoca_emulated.so"))
}

// A library whose private part is missing, or of another build, says so.
func TestAPrivatePartThatDoesNotFitIsAnError(t *testing.T) {
	t.Parallel()
	library := filepath.Join(built(t), "lib")
	program := compile(t, "../examples/hello.c", "-std=c99")
	alone := t.TempDir()
	text, err := os.ReadFile(filepath.Join(library, "libzcclient.so.0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(alone, "libzcclient.so.0"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	attempt := func() string {
		command := exec.Command(program)
		command.Env = append(os.Environ(), "LD_LIBRARY_PATH="+alone)
		output, err := command.CombinedOutput()
		if err == nil || command.ProcessState.ExitCode() != 1 {
			t.Errorf("%v: %v", command, err)
		}
		return string(output)
	}
	core := filepath.Join(alone, "libzcclient", "libzcclient-core.so")
	want := "open: INITIALIZATION: load the private part of libzcclient: " + core +
		": No such file or directory: install the library again\n"
	if output := attempt(); output != want {
		t.Errorf("without it: %q, want %q", output, want)
	}
	if err := os.Mkdir(filepath.Dir(core), 0o700); err != nil {
		t.Fatal(err)
	}
	// Any other library stands for one that is too old.
	source := filepath.Join(alone, "other.c")
	if err := os.WriteFile(source, []byte("int other;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "gcc", "-shared", "-fPIC", "-o", core, source)
	if output := attempt(); !strings.Contains(output, core+" has version another") {
		t.Errorf("with another one: %q", output)
	}
}
