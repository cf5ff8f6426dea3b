// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/zc-relay/zc-relay/"

// Every module that a program is built of is listed, and nothing that only tests need.
func TestTheNoticesOfAProgramAreThoseOfWhatItLinks(t *testing.T) {
	components, err := linked(".", "netgo,osusergo", "arm64", true, []string{module + "cmd/target"})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := write(&text, components); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nGo 1.", "\ngithub.com/spf13/cobra v", "\ngo.uber.org/zap v",
		"\ngithub.com/prometheus/client_golang v", "\n--- NOTICE\n", "\n--- PATENTS\n",
		"Copyright 2009 The Go Authors."} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the notices lack %q", want)
		}
	}
	for _, other := range []string{"go.uber.org/goleak", "pgregory.net/rapid", module} {
		if strings.Contains(text.String(), other) {
			t.Errorf("the notices have %q, which is not linked", other)
		}
	}
}

func TestNoticesAreTheFilesOfWhatIsLinkedAndOfTheFoldersAbove(t *testing.T) {
	root := t.TempDir()
	for _, file := range []string{"LICENSE.txt", "NOTICE", "license.go", "checklicense.sh",
		"a/COPYING", "a/b/x.go", "other/LICENSE"} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := component{name: "m v1", root: root, directories: []string{filepath.Join(root, "a", "b"),
		filepath.Join(root, "a")}}
	files, err := c.notices()
	want := []string{filepath.Join(root, "LICENSE.txt"), filepath.Join(root, "NOTICE"),
		filepath.Join(root, "a", "COPYING")}
	if err != nil || !slices.Equal(files, want) {
		t.Errorf("the files are %q, want %q, error %v", files, want, err)
	}
	c.root, c.directories = filepath.Join(root, "a", "b"), []string{filepath.Join(root, "a", "b")}
	if _, err := c.notices(); err == nil {
		t.Error("a module without a license is accepted")
	}
}
