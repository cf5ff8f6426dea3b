// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// configuration is the part of a package definition of nfpm that says what is installed.
type configuration struct {
	Contents []struct {
		Source      string `yaml:"src"`
		Destination string `yaml:"dst"`
		Type        string `yaml:"type"`
		Info        struct {
			Mode os.FileMode `yaml:"mode"`
		} `yaml:"file_info"`
	} `yaml:"contents"`
}

// Without a mode, nfpm takes that of the file on the machine that builds the package, whose umask
// may keep everybody else from running the programs.
func TestModesDoNotDependOnTheBuilder(t *testing.T) {
	definitions, err := filepath.Glob("*.yaml")
	if err != nil || len(definitions) == 0 {
		t.Fatalf("found %v, %v", definitions, err)
	}
	ofLibraries, err := filepath.Glob("../../lib*/packages/*.yaml")
	if err != nil || len(ofLibraries) != 4 {
		t.Fatalf("found %v, %v", ofLibraries, err)
	}
	for _, definition := range append(definitions, ofLibraries...) {
		text, err := os.ReadFile(definition)
		if err != nil {
			t.Fatal(err)
		}
		var c configuration
		if err := yaml.Unmarshal(text, &c); err != nil {
			t.Fatalf("%s: %v", definition, err)
		}
		for _, f := range c.Contents {
			want := os.FileMode(0o644)
			switch {
			case f.Type == "symlink":
				continue
			case f.Type == "tree":
				// scripts/packages.sh makes the tree, sets the umask, and checks the packages.
				if !strings.HasPrefix(f.Source, "dist/stage/") {
					t.Errorf("%s: the tree %s is not made by the script", definition, f.Source)
				}
				continue
			case f.Type == "dir", strings.HasPrefix(f.Destination, "/usr/bin/"):
				want = 0o755
			}
			if f.Info.Mode != want {
				t.Errorf("%s: %s has the mode %#o, want file_info: {mode: %#o}", definition,
					f.Destination, f.Info.Mode, want)
			}
		}
	}
	script, err := os.ReadFile("../../scripts/packages.sh")
	if err != nil || !strings.Contains(string(script), "\numask 022") {
		t.Errorf("scripts/packages.sh does not set the umask (%v)", err)
	}
}

// The notices and the bill of materials of a variant are its own, too.
func TestAVariantHasNothingThatWasBuiltForItsPackage(t *testing.T) {
	for _, name := range []string{"zc-relay-target ceph", "zc-relay-target static",
		"zc-relay-initiator static"} {
		of, variant, _ := strings.Cut(name, " ")
		text, err := exec.CommandContext(t.Context(), "./variant.sh", of, variant).Output()
		if err != nil {
			t.Fatal(err)
		}
		var c configuration
		if err := yaml.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		own := 0
		for _, f := range c.Contents {
			built, isBuilt := strings.CutPrefix(f.Source, "dist/stage/"+of)
			if !isBuilt {
				continue
			}
			if !strings.HasPrefix(built, "-"+variant) {
				t.Errorf("%s-%s has %s", of, variant, f.Source)
			}
			own++
		}
		if own != 3 {
			t.Errorf("%s-%s has %d built files, want a program, notices, and a bill of materials",
				of, variant, own)
		}
	}
}
