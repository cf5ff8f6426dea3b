// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/zc-relay/zc-relay/internal/goldentest"
)

// TestWhatIsSaidOfWrongConfigurations compares all messages with golden files, for review: each
// line must tell a person what to do.
func TestWhatIsSaidOfWrongConfigurations(t *testing.T) {
	for name, load := range map[string]func(file string) error{
		"wrong-relay": func(file string) error {
			_,
				err := LoadRelay(Sources{File: file})
			return err
		},
		"wrong-target": func(file string) error {
			_,
				err := LoadTarget(Sources{File: file})
			return err
		},
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
			goldentest.Check(t, filepath.Join("testdata", name+".golden"), []byte(said.String()))
		})
	}
}

// workingDirectory is where the tests begin.
var workingDirectory, _ = os.Getwd()
