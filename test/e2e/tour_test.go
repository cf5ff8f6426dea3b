// SPDX-License-Identifier: Apache-2.0

package e2e

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

// tourTime bounds the tour, which includes a benchmark and two passes over a volume of 1 GiB.
const tourTime = 10 * time.Minute

// TestTheTourOfTheReadme runs the shell commands of README.md's tour, and of the section on files
// after it, as they stand there, one after another, each of which must succeed. They run in a
// network and a mount namespace, because they use the default ports and folders, which may be in
// use.
func TestTheTourOfTheReadme(t *testing.T) {
	// Not parallel: daemons with the default settings must serve within seconds.
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	testkit.RequireTools(t, "qemu-img")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, tour, found := strings.Cut(string(readme), "## A quick tour\n")
	tour, _, ends := strings.Cut(tour, "## Where to read on\n")
	if !found || !ends {
		t.Fatal("README.md has no tour")
	}
	var commands strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(tour, -1) {
		commands.WriteString(block[1])
	}

	// What stands before the tour puts the reader into a checkout, on a machine of its own, and
	// lets daemons run for a while before they are stopped.
	script := fmt.Sprintf(`set -eu -o pipefail -m
ip link set lo up
mkdir -p /run/zc-relay
mount -t tmpfs tmpfs /run/zc-relay
mount -t tmpfs tmpfs /var/tmp
checkout=/var/tmp/checkout # which may be below /tmp otherwise
mkdir "$checkout"
mount --rbind %[1]q "$checkout"
mount -t tmpfs tmpfs /tmp
make() { command make -C "$checkout" "$@" && ln -s "$checkout/bin" bin; }
ln -s "$checkout/deploy" "$checkout/README.md" .
kill() { sleep 5; builtin kill "$@"; } # which fails if the daemon has not lasted that long
trap 'builtin kill -9 $(jobs -p) 2>/dev/null || true' EXIT
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
%[2]s
wait
cmp README.md /tmp/copy
[ "$(echo *)" = "README.md bin deploy" ] || { echo "the tour leaves $(echo *)"; exit 1; }
[ -z "$(ls /var/tmp | grep -vx checkout)" ] || { echo "the tour leaves $(ls /var/tmp)"; exit 1; }
echo the tour ends here
`, root, commands.String())
	ctx, cancel := context.WithTimeout(context.Background(), tourTime)
	defer cancel()
	shell := exec.CommandContext(ctx, "unshare", "--map-root-user", "--net", "--mount", "bash")
	shell.Dir = t.TempDir()
	shell.Stdin = strings.NewReader(script)
	shell.WaitDelay = 10 * time.Second
	output, err := shell.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "the tour ends here\n") {
		t.Errorf("%v:\n%s", err, output)
	}
	for _, want := range []string{"zc_relay_io_total", "relay-many-channels.yaml",
		"file format: raw"} {
		if !strings.Contains(string(output), want) {
			t.Errorf("the output lacks %q:\n%s", want, output)
		}
	}
}
