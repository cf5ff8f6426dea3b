// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// run runs a command in a directory, with more variables, and returns its output.
func run(t *testing.T, directory string, environ []string, command ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), command[0], command[1:]...)
	c.Dir, c.Env = directory, append(os.Environ(), environ...)
	output, err := c.CombinedOutput()
	return string(output), err
}

func mustRun(t *testing.T, directory string, environ []string, command ...string) string {
	t.Helper()
	output, err := run(t, directory, environ, command...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, output)
	}
	return output
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// makeKey makes a key of gpg without a password, and returns the variables by which it is found.
func makeKey(t *testing.T) []string {
	t.Helper()
	home, err := os.MkdirTemp("", "gpg") // whose path is short enough for the agent's socket
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"GNUPGHOME=" + home, "RELEASE_GPG_KEY=release@example.org"}
	t.Cleanup(func() {
		_, _ = run(t, "/", environ, "gpgconf", "--kill", "all")
		_ = os.RemoveAll(home)
	})
	mustRun(t, "/", environ, "gpg", "--batch", "--passphrase", "", "--quick-generate-key",
		"release@example.org", "ed25519", "sign", "never")
	return environ
}

func TestAReleaseHasSumsSignaturesAndNotes(t *testing.T) {
	testkit.RequireTools(t, "git", "gpg", "gpgconf", "sha256sum")
	tree := t.TempDir()
	for _, name := range []string{"release.sh", "sign-release.sh"} {
		text, err := os.ReadFile("../../scripts/" + name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(tree, "scripts", name), string(text), 0o755)
	}
	write(t, filepath.Join(tree, "scripts/packages.sh"), `#!/bin/sh -eu
[ "$PACKAGE_VERSION" = 1.2.0~rc.1 ] # which sorts before 1.2.0
echo content >"$PACKAGE_DIRECTORY/a.deb"
echo content >"$PACKAGE_DIRECTORY/a.rpm"
`, 0o755)
	write(t, filepath.Join(tree, "CHANGELOG.md"),
		"# Changelog\n\n## Unreleased\n\n### Added\n\n- One.\n\n## 1.1.0 - 2020-01-01\n\n- Old.\n",
		0o644)
	write(t, filepath.Join(tree, ".gitignore"), "/dist/\n", 0o644)
	environ := append(makeKey(t), "RELEASE_CHECKS=true", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@example.org")
	mustRun(t, tree, environ, "git", "init", "--quiet")
	mustRun(t, tree, environ, "git", "add", ".")
	mustRun(t, tree, environ, "git", "commit", "--quiet", "-m", "begin")

	for variable, want := range map[string]string{
		"RELEASE_GPG_KEY=nobody@example.org": "gpg has no such secret key",
		"RELEASE_MINISIGN_KEY=/no/such/key":  "RELEASE_MINISIGN_KEY",
	} {
		output, err := run(t, tree, append(slices.Clone(environ), variable), "scripts/release.sh",
			"1.2.0-rc.1")
		if err == nil || !strings.Contains(output, want) {
			t.Errorf("with %s: %v, %s", variable, err, output)
		}
	}
	if tags := mustRun(t, tree, environ, "git", "tag"); tags != "" {
		t.Fatalf("a release that cannot be signed has made the tags %s", tags)
	}

	mustRun(t, tree, environ, "scripts/release.sh", "1.2.0-rc.1")
	directory := filepath.Join(tree, "dist", "v1.2.0-rc.1")
	mustRun(t, directory, environ, "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums, err := os.ReadFile(filepath.Join(directory, "SHA256SUMS"))
	if err != nil || strings.Count(string(sums), "\n") != 2 {
		t.Errorf("SHA256SUMS has %q, %v", sums, err)
	}
	mustRun(t, directory, environ, "gpg", "--batch", "--verify", "SHA256SUMS.asc", "SHA256SUMS")
	notes, err := os.ReadFile(filepath.Join(directory, "RELEASE_NOTES.md"))
	if err != nil || strings.TrimSpace(string(notes)) != "### Added\n\n- One." {
		t.Errorf("the notes are %q, %v", notes, err)
	}
	log := mustRun(t, tree, environ, "git", "show", "v1.2.0-rc.1:CHANGELOG.md")
	if !strings.Contains(log, "## Unreleased\n\n## 1.2.0-rc.1 - ") {
		t.Errorf("the tag has %s", log)
	}
	if output, err := run(t, tree, environ, "scripts/release.sh", "1.2.0-rc.1"); err == nil {
		t.Errorf("a release is made twice: %s", output)
	}
}

// The real program may not be there.
func TestAReleaseIsSignedByMinisign(t *testing.T) {
	programs, directory := t.TempDir(), t.TempDir()
	write(t, filepath.Join(programs, "minisign"),
		"#!/bin/sh\necho \"$@\" >SHA256SUMS.minisig\n", 0o755)
	key := filepath.Join(programs, "key")
	write(t, key, "secret", 0o600)
	write(t, filepath.Join(directory, "a.deb"), "content", 0o644)
	script, err := filepath.Abs("../../scripts/sign-release.sh")
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, directory, []string{"PATH=" + programs + ":" + os.Getenv("PATH"),
		"RELEASE_MINISIGN_KEY=" + key}, script, directory)
	signature, err := os.ReadFile(filepath.Join(directory, "SHA256SUMS.minisig"))
	if err != nil || string(signature) !=
		"-S -s "+key+" -m SHA256SUMS -x SHA256SUMS.minisig\n" {
		t.Errorf("minisign was called with %q, %v", signature, err)
	}
}
