// SPDX-License-Identifier: Apache-2.0

package output_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
)

// stranger is a user that no test runs as.
const stranger = 54321

// shared returns a directory that others can write to, and a file of this user elsewhere.
func shared(t *testing.T) (directory, victim string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as two users")
	}
	directory, victim = t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.Chmod(directory, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	return directory, victim
}

func give(t *testing.T, path string, err error) {
	t.Helper()
	if err == nil {
		err = os.Lchown(path, stranger, stranger)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ways are those in which programs write files.
var ways = map[string]func(path string) error{
	"create": func(path string) error {
		f, err := output.Create(path)
		if err != nil {
			return err
		}
		_, err = io.WriteString(f.Sink(), "new")
		return f.Finish(err)
	},
	"continue": func(path string) error {
		f, err := output.Continue(path)
		if err != nil {
			return err
		}
		_, err = io.WriteString(f.Sink(), "new")
		return f.Finish(err)
	},
	"begin": func(path string) error {
		f, err := output.Begin(path)
		if err != nil {
			return err
		}
		if _, err = io.WriteString(f, "new"); err != nil {
			return err
		}
		return f.Close()
	},
}

func TestWhatOthersHavePlantedIsNotWrittenThrough(t *testing.T) {
	for name, write := range ways {
		t.Run(name, func(t *testing.T) {
			directory, victim := shared(t)
			link, pipe := directory+"/link", directory+"/pipe"
			give(t, link, os.Symlink(victim, link))
			give(t, pipe, syscall.Mkfifo(pipe, 0o600))
			reader, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			chain := directory + "/chain"
			if err := os.Symlink("link", chain); err != nil { // of this user
				t.Fatal(err)
			}
			for _, path := range []string{link, pipe, chain} {
				if err := write(path); err == nil {
					t.Errorf("%s was written to", path)
				} else if !strings.Contains(err.Error(), "belongs to user 54321") &&
					!strings.Contains(err.Error(), "not a regular file") {
					t.Error(err)
				}
			}
			if text, err := os.ReadFile(victim); string(text) != "precious" {
				t.Errorf("the victim holds %q, %v", text, err)
			}
			if text, err := io.ReadAll(reader); len(text) > 0 {
				t.Errorf("the pipe got %q, %v", text, err)
			}
		})
	}
}

func TestOwnLinksAreFollowed(t *testing.T) {
	for name, write := range ways {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			file, link := directory+"/file", directory+"/link"
			if err := os.WriteFile(file, []byte("former content"), 0o640); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("file", link); err != nil {
				t.Fatal(err)
			}
			if err := write(link); err != nil {
				t.Fatal(err)
			}
			about, err := os.Lstat(link)
			if err != nil || about.Mode()&os.ModeSymlink == 0 {
				t.Errorf("the link is %v, %v", about, err)
			}
			text, err := os.ReadFile(file)
			if string(text) != "new" {
				t.Errorf("the file holds %q, %v", text, err)
			}
			if about, err = os.Stat(file); err != nil || about.Mode().Perm() != 0o640 {
				t.Errorf("the file has mode %v, %v", about.Mode(), err)
			}
		})
	}
}

// A file that is replaced may be there so that its permissions are those of the new one.
func TestAFileOfAnotherUserGivesNoPermissions(t *testing.T) {
	directory, _ := shared(t)
	file := directory + "/file"
	give(t, file, os.WriteFile(file, nil, 0o600))
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := ways["create"](file); err != nil {
		t.Fatal(err)
	}
	about, err := os.Stat(file)
	if err != nil || about.Mode().Perm()&0o022 != 0 {
		t.Errorf("the new file has mode %v, %v", about.Mode(), err)
	}
	partial := directory + "/other" + output.PartialSuffix
	give(t, partial, os.WriteFile(partial, []byte("content"), 0o666))
	for name, path := range map[string]string{"continue": directory + "/other", "begin": partial} {
		if err := ways[name](path); err == nil ||
			!strings.Contains(err.Error(), "belongs to user 54321, who can change it") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
