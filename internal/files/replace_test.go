// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(content), mode),
		os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func expectContent(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s is %q, %v, want %q", filepath.Base(path), got, err, want)
	}
}

func TestAFileIsReplacedAsAWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, "former", 0o600)
	other := path + ".other" // shows what happens to the former file
	if err := os.Link(path, other); err != nil {
		t.Fatal(err)
	}
	write(t, path+".new", "left by a process that was killed", 0o600)
	if err := Replace(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	expectContent(t, path, "new")
	expectContent(t, other, "former")
	if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary file: %v", err)
	}
}

// The content is durable before the name leads to it, and the name before Replace returns.
func TestAFileIsDurableBeforeItIsNamed(t *testing.T) {
	defer func() { sync = (*os.File).Sync }()
	path := filepath.Join(t.TempDir(), "file")
	for _, failing := range []int{0, 1, 2} { // of the calls, from 1
		write(t, path, "former", 0o600)
		calls := 0
		sync = func(f *os.File) error {
			calls++
			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			want := map[int]string{1: "former", 2: "new"}[calls]
			if expectContent(t, path, want); info.IsDir() != (calls == 2) {
				t.Errorf("call %d makes %s durable", calls, f.Name())
			}
			if calls == failing {
				return syscall.EIO
			}
			return f.Sync()
		}
		err := Replace(path, []byte("new"), 0o600)
		if (failing == 0) != (err == nil) || err != nil && !errors.Is(err, syscall.EIO) {
			t.Errorf("with call %d failing: %v", failing, err)
		}
		if want := max(failing, 1); failing > 0 && calls != want || failing == 0 && calls != 2 {
			t.Errorf("with call %d failing, there were %d calls", failing, calls)
		}
		if failing == 1 {
			expectContent(t, path, "former")
		}
		if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the temporary file: %v", err)
		}
	}
}

func TestAFileThatOthersCanChangeIsNotReadAsOwn(t *testing.T) {
	directory := t.TempDir()
	path := func(name string) string { return filepath.Join(directory, name) }
	write(t, path("own"), "content", 0o600)
	write(t, path("readable"), "content", 0o644)
	write(t, path("group"), "content", 0o660)
	write(t, path("all"), "content", 0o666)
	if err := os.Symlink(path("own"), path("link")); err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{"own": "", "readable": "", "group": "chmod 600 " + path("group"),
		"all": "mode 0666", "link": "is a symbolic link", "none": "no such file"}
	if os.Geteuid() == 0 {
		write(t, path("foreign"), "content", 0o600)
		if err := os.Chown(path("foreign"), 12345, -1); err != nil {
			t.Fatal(err)
		}
		wants["foreign"] = "belongs to user 12345"
	}
	for name, want := range wants {
		content, err := ReadOwn(path(name), 64)
		switch {
		case want == "" && (err != nil || string(content) != "content"):
			t.Errorf("%s: %q, %v", name, content, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
