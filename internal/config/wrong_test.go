package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestWhatIsSaidOfWrongConfigurations compares with files that people read
// when they change: each line has to tell somebody what to do.
func TestWhatIsSaidOfWrongConfigurations(t *testing.T) {
	for name, load := range map[string]func(file string) error{
		"wrong-relay":  func(file string) error { _, err := LoadRelay(Sources{File: file}); return err },
		"wrong-target": func(file string) error { _, err := LoadTarget(Sources{File: file}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			archive, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
			if err != nil {
				t.Fatal(err)
			}
			var said strings.Builder
			t.Chdir(t.TempDir())
			for _, f := range archive.Files {
				if err := os.WriteFile(f.Name, f.Data, 0o600); err != nil {
					t.Fatal(err)
				}
				err := load(f.Name)
				if err == nil {
					t.Fatalf("%s was accepted", f.Name)
				}
				if _, listed := errors.AsType[Problems](err); !listed {
					t.Errorf("%s: %T is no list of problems: %v", f.Name, err, err)
				}
				said.WriteString(err.Error() + "\n\n")
			}
			t.Chdir(workingDirectory)
			compareGolden(t, filepath.Join("testdata", name+".golden"), said.String())
		})
	}
}

// workingDirectory is where the tests begin.
var workingDirectory, _ = os.Getwd()

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-update writes it anew):\n%s", file, diff)
	}
}
