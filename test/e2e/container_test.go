// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// container runs a relay and its clients as a container of the image would: as the image's user,
// with its environment, and with a root of which only the mounted directories are writable.
const container = `set -eu
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
cd "$ROOT"
for link in /bin /lib /lib64; do [ ! -L "$link" ] || cp -P "$link" .; done
mkdir -p usr programs proc dev tmp run var/lib
mount --bind /usr usr
mount -t proc proc proc
touch dev/null
mount --bind /dev/null dev/null
cp "$PROGRAMS"/* programs/
inside="chroot ."
%[1]s
mount -o remount,bind,ro "$ROOT"
inside="chroot --userspec=%[2]s . env -i PATH=/programs:/usr/bin %[3]s"
$inside %[4]s &
relay=$!
trap 'kill -9 $relay 2>/dev/null || true' EXIT
%[5]s
kill -TERM $relay
wait $relay
echo the container has served
`

// image holds what the Containerfile says of the image that it builds.
type image struct{ setUp, user, environment, entry, command string }

func readImage(t *testing.T) image {
	t.Helper()
	content := string(readFile(t, "../../deploy/container/Containerfile"))
	final := content[strings.LastIndex(content, "\nFROM "):]
	find := func(expression string) string {
		t.Helper()
		found := regexp.MustCompile(`(?m)^` + expression + `$`).FindStringSubmatch(final)
		if found == nil {
			t.Fatalf("the Containerfile has no line %s", expression)
		}
		return found[1]
	}
	words := func(list string) string {
		t.Helper()
		var parsed []string
		if err := json.Unmarshal([]byte(list), &parsed); err != nil {
			t.Fatal(err)
		}
		return quoted(parsed)
	}
	return image{setUp: "$inside " + find(`RUN (install -d .*)`), user: find(`USER (.*)`),
		environment: find(`ENV (.*)`), entry: words(find(`ENTRYPOINT (.*)`)),
		command: words(find(`CMD (.*)`))}
}

func quoted(words []string) string { return "'" + strings.Join(words, "' '") + "'" }

// runContainer runs a relay with a configuration in a container, and a script beside it.
func runContainer(t *testing.T, image image, mounts, command, config, script string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	testkit.RequireTools(t, "unshare", "chroot")
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"example=memory:64MiB"},
		address: listenAddress(t)}
	c.startTarget()
	root := filepath.Join(c.dir, "root")
	folder := filepath.Join(root, "etc", "zc-relay")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	config = strings.ReplaceAll(config, "192.0.2.5:7470", c.address.String())
	config = strings.ReplaceAll(config, "0.0.0.0:9470", "127.0.0.1:0")
	if err := os.WriteFile(filepath.Join(folder, "zc-relay.yaml"), []byte(config),
		0o644); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(container, image.setUp+"\n"+mounts, image.user, image.environment, command,
		script)
	environ := []string{"ROOT=" + root, "PROGRAMS=" + testkit.Plain.Directory(t)}
	p := spawnWith(t, inheritance{environ: environ}, "container", "unshare", "--mount", "sh", "-c",
		text)
	if code := p.Wait(); code != 0 ||
		!strings.Contains(p.Stdout.String(), "the container has served\n") {
		t.Errorf("the container ended with %d", code)
	}
}

func TestTheImageServesWithAReadOnlyRoot(t *testing.T) {
	t.Parallel()
	image := readImage(t)
	runContainer(t, image, "mount --bind run/zc-relay run/zc-relay",
		image.entry+" "+image.command,
		"channels: [{target: '192.0.2.5:7470', volume: example}]",
		"$inside initiator verify --passes 1 --length 1MiB --control-timeout 4m")
}

// A pod has a volume for /run/zc-relay, and the node's directory for the emulated Comch.
func TestTheImageServesInAPod(t *testing.T) {
	t.Parallel()
	var command []string
	var config string
	decoder := yaml.NewDecoder(strings.NewReader(string(
		readFile(t, "../../deploy/kubernetes/relay.yaml"))))
	for {
		var object struct {
			Data map[string]string
			Spec struct {
				Template struct {
					Spec struct{ Containers []struct{ Command []string } }
				}
			}
		}
		if decoder.Decode(&object) != nil {
			break
		}
		if object.Data != nil {
			config = object.Data["zc-relay.yaml"]
		}
		if containers := object.Spec.Template.Spec.Containers; len(containers) > 0 {
			command = containers[0].Command
		}
	}
	if command == nil || config == "" {
		t.Fatal("the manifest has no command or no configuration")
	}
	runContainer(t, readImage(t), `mkdir -p var/lib/zc-relay/comch
mount -t tmpfs -o mode=2777,gid=65532 tmpfs run/zc-relay
mount -t tmpfs -o mode=0755,uid=65532,gid=65532 tmpfs var/lib/zc-relay/comch`,
		quoted(command), config,
		`$inside initiator verify --passes 1 --length 1MiB --control-timeout 4m \
	--emulated-dir /var/lib/zc-relay/comch
$inside zc-relay reload --admin unix:/run/zc-relay/admin.sock`)
}
