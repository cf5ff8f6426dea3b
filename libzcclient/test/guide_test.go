// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// fioSource is where scripts/install-debian.sh puts the source of the installed fio.
const fioSource = "/usr/local/src/fio"

func guide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/guides/c-library.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks returns the code blocks of a language.
func blocks(text, language string) (found []string) {
	expression := regexp.MustCompile("(?s)```" + language + "\n(.*?)```")
	for _, block := range expression.FindAllStringSubmatch(text, -1) {
		found = append(found, block[1])
	}
	return found
}

// TestTheTourOfTheGuide runs the shell commands of the guide as they stand there, in a network and
// a mount namespace, because they use default ports and folders. Without the tag complete, what is
// for fio does nothing: see TestFioVerifies.
func TestTheTourOfTheGuide(t *testing.T) {
	t.Parallel()
	fio := `libzcclient/fio/build.sh() { :; }
fio() { :; }`
	if testkit.IsComplete() {
		testkit.RequireTools(t, "fio", fioSource)
		fio = fmt.Sprintf(`libzcclient/fio/build.sh() {
	if [ "$1" = --get-source ]; then ln -s %s "$2"; else command libzcclient/fio/build.sh "$@"; fi
}`, fioSource)
	}
	testkit.RequireTools(t, "unshare", "curl")
	tour := blocks(guide(t), "sh")
	sources, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`set -eu -o pipefail -m
ip link set lo up
mkdir -p /run/zc-relay
mount -t tmpfs tmpfs /run/zc-relay
make() {
	[ "$*" = "build libzcclient" ]
	mkdir bin
	ln -s %[1]q/* bin/
	ln -s %[2]q bin/libzcclient
}
ln -s %[3]q libzcclient
trap 'builtin kill -9 $(jobs -p) 2>/dev/null || true' EXIT
%[4]s
%[5]s
[ ! -e "$tour" ] && [ "$(echo *)" = "bin libzcclient" ] || { echo "it leaves $(echo *)"; exit 1; }
echo the tour ends here
`, testkit.Plain.Directory(t), built(t), sources, fio,
		strings.Join(tour, ""))
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	shell := exec.CommandContext(ctx, "unshare", "--map-root-user", "--net", "--mount", "bash")
	shell.Dir, shell.Stdin = t.TempDir(), strings.NewReader(script)
	shell.WaitDelay = 10 * time.Second
	output, err := shell.CombinedOutput()
	for _, want := range []string{"\nhello, block\n", "depth 32: ", "the tour ends here\n"} {
		if err != nil || !strings.Contains(string(output), want) {
			t.Fatalf("%v, or it does not print %q:\n%s", err, want, output)
		}
	}
}

func TestTheFirstProgramOfTheGuideRuns(t *testing.T) {
	t.Parallel()
	for _, program := range blocks(guide(t), "c") {
		if !strings.Contains(program, "int main") {
			continue
		}
		c := startChain(t)
		program = strings.Replace(program, "device=b1:00.0", "directory="+c.comch, 1)
		source := filepath.Join(t.TempDir(), "first.c")
		if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, compile(t, source, "-std=c99"))
		return
	}
	t.Fatal("the guide has no program")
}

func TestTheGuideHasEachKey(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../core/configuration.go")
	if err != nil {
		t.Fatal(err)
	}
	keys := regexp.MustCompile(`(?m)^\t"([a-z_]+)":`).FindAllStringSubmatch(string(source), -1)
	rows := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(guide(t), -1)
	described := map[string]bool{}
	for _, row := range rows {
		described[row[1]] = true
	}
	for _, key := range keys {
		if !described[key[1]] {
			t.Errorf("the guide does not have the key %s", key[1])
		}
	}
	if len(keys) < 15 || len(rows) != len(keys) {
		t.Errorf("the guide has %d keys, want %d", len(rows), len(keys))
	}
}

// fio writes at random through two sessions at once, reads what it has written, trims, and flushes.
func TestFioVerifies(t *testing.T) {
	testkit.OnlyComplete(t, "the programs in C of this package")
	t.Parallel()
	testkit.RequireTools(t, "fio", "gcc", fioSource)
	c := startChain(t)
	library := filepath.Join(built(t), "lib")
	engine := filepath.Join(t.TempDir(), "zc.so")
	build := exec.Command("../fio/build.sh", fioSource, engine)
	build.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(library, "pkgconfig"))
	if output, err := build.CombinedOutput(); err != nil || len(output) > 0 {
		t.Fatalf("%v: %v\n%s", build, err, output)
	}
	fio := func(arguments ...string) (string, error) {
		command := exec.Command("fio", append([]string{"--name=verify",
			"--ioengine=external:" + engine,
			"--zc_conf=" + strings.TrimSuffix(c.configuration(""), ",")}, arguments...)...)
		command.Dir = t.TempDir()
		output, err := command.CombinedOutput()
		return string(output), err
	}
	for _, job := range [][]string{
		{"--rw=randrw", "--bsrange=4k-64k", "--blockalign=4k", "--iodepth=32", "--size=8M",
			"--numjobs=2", "--offset_increment=8M", "--fsync=20"},
		{"--rw=randtrimwrite", "--bs=4k", "--iodepth=8", "--size=2M"},
		{"--rw=write", "--bs=16k", "--iodepth=1", "--direct=1", "--size=1M"},
	} {
		job = append(job, "--thread", "--verify=crc32c", "--verify_fatal=1")
		if output, err := fio(job...); err != nil || !strings.Contains(output, "err= 0") {
			t.Errorf("fio %q: %v\n%s", job, err, output)
		}
	}
	output, err := fio("--rw=read", "--size=1M")
	if err == nil || !strings.Contains(output, "zc: jobs have to be threads") {
		t.Errorf("jobs that are processes: %v\n%s", err, output)
	}
}
