// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// sdk is a tree of our own in the shape of the SDK's samples and applications.
const sdk = "testdata/sdk"

// user runs commands as somebody does who writes programs for DOCA.
type user struct {
	t         *testing.T
	directory string
	env       []string
}

func newUser(t *testing.T) *user {
	testkit.RequireTools(t, "gcc", "pkg-config")
	return &user{t: t, directory: t.TempDir(), env: append(os.Environ(), "TMPDIR="+t.TempDir())}
}

// run runs a command, and returns what it prints and its exit code.
func (u *user) run(name string, arguments ...string) (stdout, stderr string, code int) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), testTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir, command.Env, command.WaitDelay = u.directory, u.env, 10*time.Second
	var out, errs strings.Builder
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out.String(), errs.String(), exit.ExitCode()
	}
	if err != nil {
		u.t.Fatalf("%v: %v\n%s", command, err, errs.String())
	}
	return out.String(), errs.String(), 0
}

// shell runs a script that has to succeed, and returns what it prints.
func (u *user) shell(script string) string {
	u.t.Helper()
	stdout, stderr, code := u.run("bash", "-euo", "pipefail", "-c", script)
	if code != 0 {
		u.t.Fatalf("%s\nexits with %d:\n%s%s", script, code, stdout, stderr)
	}
	return stdout
}

// install puts zc-libdoca into the path, and where "make libdoca" puts it, and returns its path
// elsewhere. There, programs meet in a directory of this test.
func (u *user) install() (zcLibdoca string) {
	zcLibdoca = testkit.Libdoca.Program(u.t, "zc-libdoca")
	directory := filepath.Join(u.directory, "bin", "libdoca")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		u.t.Fatal(err)
	}
	u.write("bin/libdoca/zc-libdoca", `#!/bin/sh
command=$1
shift
[ "$command" != run ] || set -- --directory '`+u.directory+`/comch' "$@"
exec '`+zcLibdoca+`' "$command" "$@"
`)
	u.env = append(u.env, "PATH="+directory+":"+os.Getenv("PATH"))
	return zcLibdoca
}

func (u *user) link(target, name string) {
	u.t.Helper()
	path := filepath.Join(u.directory, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		target, err = filepath.Abs(target)
	}
	if err == nil {
		err = os.Symlink(target, path)
	}
	if err != nil {
		u.t.Fatal(err)
	}
}

func (u *user) write(name, text string) {
	u.t.Helper()
	if err := os.WriteFile(filepath.Join(u.directory, name), []byte(text), 0o755); err != nil {
		u.t.Fatal(err)
	}
}

func TestZCLibdocaChecksItsArguments(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	command := u.install()
	u.write("file", "")
	for _, test := range []struct{ arguments, message string }{
		{"", "usage:|zc-libdoca run --role"},
		{"start", `unknown command "start"`},
		{"run", "use --role dpu or --role host"},
		{"run -- true", "use --role dpu or --role host"},
		{"run --role", "--role needs a value"},
		{"run --role= -- true", "value of --role is empty"},
		{"run --role both -- true", `"both" is neither dpu nor host`},
		{"run --role dpu", "which program"},
		{"run --role dpu --", "which program"},
		{"run --role dpu -- ./absent", "found no program ./absent"},
		{"run --role dpu --verbose -- true", "unknown option --verbose"},
		{"run --role dpu --release 2.8 -- true", `unknown release "2.8"`},
		{"run --role dpu --release 3.4 -- true", `unknown release "3.4"`},
		{"run --role dpu --directory file -- true", "file is not a directory"},
		{"run --config absent -- true", "cannot read the configuration file absent"},
		{"env", "use --role dpu or --role host"},
		{"env --role dpu -- true", "env takes no program"},
		{"env --role dpu true", "env takes no argument"},
		{"try", "which directory"},
		{"try absent", "absent is not a directory"},
		{"try --loud .", "unknown option --loud"},
		{"try --timeout soon .", "is no number of seconds"},
		{"try --arguments absent .", "cannot read absent"},
		{"try --release 1.0 .", `unknown release "1.0"`},
		{"try .", "found no program"},
	} {
		_, stderr, code := u.run(command, strings.Fields(test.arguments)...)
		if code != 2 || !regexp.MustCompile(test.message).MatchString(stderr) {
			t.Errorf("zc-libdoca %s: exit code %d: %s", test.arguments, code, stderr)
		}
	}
	for _, arguments := range []string{"--help", "run --help", "try --help"} {
		if stdout, _, code := u.run(command, strings.Fields(arguments)...); code != 0 ||
			!strings.Contains(stdout, "--release") {
			t.Errorf("%s: exit code %d: %s", arguments, code, stdout)
		}
	}
}

// compile compiles a program in testdata with the settings of "zc-libdoca env".
func (u *user) compile(role, source string) (executable string) {
	u.link(filepath.Join("testdata", source), source)
	executable = strings.TrimSuffix(source, ".c") + "-" + role
	u.shell(`eval "$(zc-libdoca env --role ` + role + `)"
gcc -Wall -Wextra -Werror -o ` + executable + ` ` + source + ` $(pkg-config --cflags --libs \
	doca-common doca-comch doca-dma doca-rdma)`)
	if err := os.Remove(filepath.Join(u.directory, source)); err != nil {
		u.t.Fatal(err)
	}
	return "./" + executable
}

// A process has the device of its role alone, which can do what programs look for on that side.
func TestARoleHasItsDevice(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	command := u.install()
	const dpu = "0000:03:00.0 mlx5_0 server consumer dma rdma imports\n"
	const host = "0000:b1:00.0 mlx5_0 client consumer dma rdma exports\n"
	programs := map[string]string{}
	for _, role := range []string{"dpu", "host"} {
		programs[role] = u.compile(role, "capabilities.c")
	}
	u.write("it's.yaml", "{role: host, release: '3.0'}")
	for _, test := range []struct {
		arguments []string
		program   string
		want      string
	}{
		{[]string{"--role", "dpu"}, programs["dpu"], "dpu, release 3.3\n" + dpu},
		{[]string{"--role=host"}, programs["host"], "host, release 3.3\n" + host},
		{[]string{"--role", "host", "--release", "2.10"}, programs["host"],
			"host, release 2.1\n" + host},
		{[]string{"--config", "it's.yaml"}, programs["host"], "host, release 3.0\n" + host},
		{[]string{"--config=it's.yaml", "--role", "dpu", "--release=3.1"}, programs["dpu"],
			"dpu, release 3.1\n" + dpu},
	} {
		arguments := slices.Concat([]string{"run"}, test.arguments, []string{"--", test.program})
		stdout, stderr, code := u.run(command, arguments...)
		if code != 0 || stdout != test.want || stderr != "" {
			t.Errorf("%q: exit code %d, %s%s", arguments, code, stdout, stderr)
		}
	}
	// Every release that the command takes is one that the library has.
	for _, release := range []string{"2.9", "2.10", "3.0", "3.1", "3.2", "3.3"} {
		stdout, stderr, code := u.run(command, "run", "--role", "dpu", "--release", release, "--",
			programs["dpu"])
		if code != 0 || stderr != "" || !strings.HasSuffix(stdout, dpu) {
			t.Errorf("release %s: exit code %d, %s%s", release, code, stdout, stderr)
		}
	}
}

// The settings for a shell keep what it has, and replace those for the other role.
func TestSettingsForAShell(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.install()
	home := testkit.Libdoca.Directory(t)
	u.write("it's.yaml", "{}")
	got := u.shell(`export LD_LIBRARY_PATH=/a PKG_CONFIG_PATH=/b
cp "it's.yaml" 'a $b.yaml'
eval "$(zc-libdoca env --role host)"
eval "$(zc-libdoca env --role dpu --directory 'x y' --config 'a $b.yaml')"
printf '%s\n' "$LD_LIBRARY_PATH" "$PKG_CONFIG_PATH" "$ZC_DOCA_EMULATION"
pkg-config --variable=includedir doca-comch
zc-libdoca env --config "it's.yaml" | grep ^export.ZC`)
	want := strings.Join([]string{home + "/lib:/a", home + "/dpu/lib/pkgconfig:/b",
		"{config: '" + u.directory + "/a $b.yaml', role: dpu, directory: '" + u.directory + "/x y'}",
		home + "/dpu/include",
		`export ZC_DOCA_EMULATION='{config: '\''` + u.directory + `/it'\'''\''s.yaml'\''}'`,
		""}, "\n")
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Each header compiles alone, in C and C++, and brings what programs rely on.
func TestHeaders(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.install()
	home := testkit.Libdoca.Directory(t)
	headers, err := filepath.Glob(filepath.Join(home, "dpu", "include", "*.h"))
	if err != nil || len(headers) < 20 {
		t.Fatalf("found %q, %v", headers, err)
	}
	languages := []string{"c"}
	if _, err := exec.LookPath("g++"); err == nil {
		languages = append(languages, "c++")
	}
	var all strings.Builder
	for _, path := range headers {
		name := filepath.Base(path)
		all.WriteString("#include <" + name + ">\n")
		for _, language := range languages {
			u.write("alone", "#include <"+name+">\n#include <"+name+">\n")
			u.shell("gcc -Wall -Wextra -Werror -fsyntax-only -x " + language + " -I " + home +
				"/dpu/include alone")
		}
	}
	u.link("testdata/headers.c", "headers.c")
	hasRDMA := ""
	if _, err := os.Stat("/usr/include/rdma/rdma_cma.h"); err == nil {
		hasRDMA = "-DHAS_RDMA"
	}
	u.shell("gcc -std=gnu11 -Wall -Wextra -Werror -o headers headers.c " + hasRDMA + " -I " + home +
		"/include && ./headers")
	// The compiler for the other architecture finds no headers of librdmacm.
	if runtime.GOARCH == "amd64" {
		testkit.RequireTools(t, "aarch64-linux-gnu-gcc")
		u.write("all.c", all.String())
		u.shell("aarch64-linux-gnu-gcc -Wall -Wextra -Werror -fsyntax-only -I " + home +
			"/host/include all.c headers.c")
	}
}

// Faults hit the first calls of a program, too, although the library may not be ready yet. The
// calls that are spared get all of their arguments.
func TestFaultsHitTheFirstCalls(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	command := u.install()
	program := u.compile("host", "faults.c")
	for text, want := range map[string]string{
		"{role: host}": "first call 0, second call 0\nlog 0\nlog 0\nlog 0\n",
		"{role: host, faults: [{function: doca_pe_create, error: NO_MEMORY}]}": "first call 7, " +
			"second call 7\nlog 0\nlog 0\nlog 0\n",
		"{role: host, faults: [{function: doca_pe_create, error: AGAIN, every: 2}, " +
			"{function: doca_log, error: IN_USE, every: 3}]}": "first call 0, second call 5\n" +
			"log 0\nlog 0\nlog 3\n",
	} {
		u.write("faults.yaml", text)
		stdout, stderr, code := u.run(command, "run", "--config", "faults.yaml", "--", program)
		var results strings.Builder
		messages := 0
		for line := range strings.Lines(stdout) {
			if strings.HasPrefix(line, "first") || strings.HasPrefix(line, "log") {
				results.WriteString(line)
				continue
			}
			if !strings.Contains(line, fmt.Sprintf("1.50 text %d 8 9 2.25", messages)) {
				t.Errorf("%s: message %d is %q", text, messages, line)
			}
			messages++
		}
		if code != 0 || stderr != "" || messages != strings.Count(want, "log 0") {
			t.Errorf("%s: exit code %d, %d messages, %s", text, code, messages, stderr)
		}
		if got := results.String(); got != want {
			t.Errorf("%s: got\n%swant\n%s", text, got, want)
		}
	}
}

// A program is linked with the library that each function is in, as on a machine with the SDK.
func TestAMissingDependencyShows(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.install()
	u.link("testdata/capabilities.c", "capabilities.c")
	link := func(modules string) (output string, code int) {
		_, output, code = u.run("bash", "-c", `eval "$(zc-libdoca env --role dpu)"
gcc -o program capabilities.c $(pkg-config --cflags --libs `+modules+`)`)
		return output, code
	}
	output, code := link("doca-comch doca-rdma")
	if code == 0 || !strings.Contains(output, "doca_dma_cap_task_memcpy_is_supported") ||
		strings.Contains(output, "doca_comch") || strings.Contains(output, "doca_dev") {
		t.Errorf("without doca-dma: exit code %d: %s", code, output)
	}
	if output, code := link("doca-comch doca-rdma doca-dma"); code != 0 {
		t.Fatal(output)
	}
	needed := u.shell("readelf --dynamic program | sed -n 's/.*NEEDED.*\\[\\(libdoca.*\\)\\]/\\1/p' | sort")
	const want = "libdoca_comch.so.2\nlibdoca_common.so.2\nlibdoca_dma.so.2\nlibdoca_rdma.so.2\n"
	if needed != want {
		t.Errorf("the program needs\n%s", needed)
	}
}

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// The quick start in docs/guides/libdoca.md works as it is typed.
func TestTheQuickStart(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.install()
	u.writeHalves()
	document, err := os.ReadFile("../../docs/guides/libdoca.md")
	if err != nil {
		t.Fatal(err)
	}
	script := shellBlock.FindStringSubmatch(string(document))[1]
	if !strings.Contains(script, "make libdoca ") || !strings.Contains(script, "run --role host") {
		t.Fatalf("this is not the quick start: %s", script)
	}
	// The library is there already.
	output := u.shell("make() { [ \"$1\" = libdoca ]; }\n" + script + "wait $!\n")
	for _, line := range []string{`the dpu got "from the host"`, `the host got "from the DPU"`} {
		if !strings.Contains(output, line+"\n") {
			t.Errorf("no %s in\n%s", line, output)
		}
	}
}

// writeHalves makes the two programs of the quick start, which are the halves of one.
func (u *user) writeHalves() {
	u.link(sdk+"/applications/note/note.c", "my_server.c")
	u.link(sdk+"/applications/note/note.c", "my_client.c")
}

// The steps of the workflow for continuous integration work, except the installation.
func TestTheWorkflow(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.install()
	u.writeHalves()
	text, err := os.ReadFile("../examples/test-doca-program.yml")
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct {
				Name string
				Env  map[string]string
				Run  string
			}
		}
	}
	if err := yaml.Unmarshal(text, &workflow); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, step := range workflow.Jobs["test"].Steps {
		if step.Run == "" || strings.HasPrefix(step.Name, "Install") {
			continue
		}
		env := u.env
		for name, value := range step.Env {
			u.env = append(u.env, name+"="+value)
		}
		u.shell(step.Run)
		u.env = env
		ran++
	}
	if ran != 3 {
		t.Errorf("%d steps ran", ran)
	}
}

// arguments is what the programs in sdk get.
const arguments = `# Both sides exchange the details of their connection by files.
rdma_note_send     -d mlx5_0 -ld send -re receive
rdma_note_receive  -d mlx5_0 -ld receive -re send
note@dpu   -p 03:00.0 -r b1:00.0
note@host  -p b1:00.0
`

var columns = regexp.MustCompile(`^(\S+) +(dpu host|dpu|host|no) +(-|ok|failed|no end in \d+ s) *(.*)$`)

// try runs "zc-libdoca try", and returns the lines of the table by program.
func (u *user) try(arguments ...string) (table map[string][]string, code int) {
	u.t.Helper()
	stdout, stderr, code := u.run("bash", append([]string{"-c", `exec zc-libdoca try "$@"`, "bash"},
		arguments...)...)
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if !strings.HasPrefix(lines[0], "program ") {
		u.t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	table = map[string][]string{}
	for _, line := range lines[1:] {
		match := columns.FindStringSubmatch(line)
		if match == nil {
			u.t.Fatalf("unexpected line %q", line)
		}
		table[match[1]] = match[2:]
	}
	return table, code
}

// Without meson, the sources of programs are compiled.
func TestSamplesAreBuiltAndRun(t *testing.T) {
	t.Parallel()
	const works, broken = "dpu host|ok|$", "dpu host|failed|The sample is broken on purpose$"
	testSamples(t, []string{"--no-meson"}, map[string]string{
		"applications/note":                    works,
		"samples/doca_comch/comch_note_client": works,
		"samples/doca_comch/comch_note_server": works,
		"samples/doca_dma/dma_note_dpu":        works,
		"samples/doca_dma/dma_note_host":       works,
		"samples/doca_rdma/rdma_note_send":     works,
		"samples/doca_rdma/rdma_note_receive":  works,
		"samples/doca_common/broken_requester": broken,
		"samples/doca_common/broken_responder": broken,
		"samples/doca_flow/flow_note":          "no|-|error: found no pkg-config module doca-flow$",
	})
}

// With meson, samples are projects, and applications are parts of one, which asks for the role.
func TestSamplesAreBuiltWithMeson(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "meson", "ninja")
	const works = "dpu host|ok|$"
	testSamples(t, nil, map[string]string{
		"applications/note":              works,
		"samples/doca_dma/dma_note_dpu":  works,
		"samples/doca_dma/dma_note_host": works,
		"samples/doca_flow/flow_note": "no|-|samples/doca_flow/flow_note/meson.build:14:0: ERROR: " +
			`Dependency "doca-flow" not found`,
	})
}

// testSamples builds the programs in sdk that are wanted, runs them, and compares the table.
func testSamples(t *testing.T, flags []string, wanted map[string]string) {
	u := newUser(t)
	u.install()
	u.link(sdk, "sdk")
	u.write("arguments", arguments)
	programs := slices.Collect(maps.Keys(wanted))
	table, code := u.try(slices.Concat(flags, []string{"--arguments", "arguments", "sdk"}, programs)...)
	if code != 1 { // not all were built
		t.Errorf("exit code %d", code)
	}
	for program, want := range wanted {
		if got := strings.Join(table[program], "|") + "$"; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", program, got)
		}
	}
	if len(table) != len(wanted) {
		t.Errorf("the table has %q", table)
	}
}

// Names select programs, a pair that hangs is ended, and misuse is shown.
func TestTrySelectsProgramsAndEndsThem(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.install()
	for name, main := range map[string]string{
		"hang_client": "for (;;) ;", "hang_server": "return getchar() != '\\n';",
		"misuse_client": "return doca_devinfo_destroy_list(NULL) == DOCA_SUCCESS;",
		"misuse_server": "return 0;",
		"other":         "return no_such_function();",
	} {
		directory := filepath.Join(u.directory, "mine", name)
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		u.write("mine/"+name+"/meson.build", "deps = dependency('doca-common')\n")
		u.write("mine/"+name+"/"+name+".c", "#include <stdio.h>\n#include <doca_dev.h>\n"+
			"int no_such_function(void);\nint main(void)\n{\n\t"+main+"\n}\n")
	}
	started := time.Now()
	table, code := u.try("--timeout", "3", "mine", "hang_*", "misuse_*")
	if code != 1 || len(table) != 4 || time.Since(started) > testTimeout {
		t.Errorf("exit code %d, %q", code, table)
	}
	for program, want := range map[string]string{
		"hang_client": "no end in 3 s", "hang_server": "no end in 3 s",
		"misuse_client": "ok", "misuse_server": "ok",
	} {
		if row := table[program]; len(row) != 3 || row[0] != "dpu host" || row[1] != want {
			t.Errorf("%s: %q", program, row)
		}
	}
	if row := table["misuse_client"]; !strings.Contains(row[2], "devinfo_destroy_list") {
		t.Errorf("misuse: %q", row)
	}
	if table, code := u.try("mine", "misuse_*"); code != 0 {
		t.Errorf("exit code %d, %q", code, table)
	}
	table, code = u.try("mine/other")
	if row := table["."]; code != 1 || len(row) != 3 || row[0] != "no" ||
		!strings.Contains(row[2], "undefined reference to `no_such_function'") {
		t.Errorf("exit code %d, %q", code, table)
	}
}
