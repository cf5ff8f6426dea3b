// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/files"
)

func TestWhatCanBeCreatedIsNotCreated(t *testing.T) {
	directory := t.TempDir()
	file := filepath.Join(directory, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path                string
		alone, with, inside error
	}{
		{directory + "/new", nil, nil, nil},
		{directory + "/a/b/new", fs.ErrNotExist, nil, fs.ErrNotExist},
		{file + "/new", syscall.ENOTDIR, syscall.ENOTDIR, syscall.ENOTDIR},
	} {
		for name, check := range map[string]struct {
			call func(string) error
			want error
		}{
			"CheckCreatable":            {files.CheckCreatable, c.alone},
			"CheckCreatableWithParents": {files.CheckCreatableWithParents, c.with},
			"CheckDirectory":            {files.CheckDirectory, c.inside},
		} {
			if err := check.call(c.path); !errors.Is(err, check.want) {
				t.Errorf("%s(%s): %v, want %v", name, c.path, err, check.want)
			}
		}
	}
	if entries, err := os.ReadDir(directory); err != nil || len(entries) != 1 {
		t.Errorf("there are %v (%v)", entries, err)
	}
}
