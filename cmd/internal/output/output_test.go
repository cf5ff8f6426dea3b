// SPDX-License-Identifier: Apache-2.0

package output_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

func TestAFileAppearsOnlyWhenItIsComplete(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	f, err := output.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f.Sink(), "content"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there before it is finished: %v", err)
	}
	if err := f.Finish(nil); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(path); string(content) != "content" || err != nil ||
		len(names(t, dir)) != 1 {
		t.Errorf("the file holds %q, error %v, beside %q", content, err, names(t, dir))
	}
}

func TestAnIncompleteFileIsRemoved(t *testing.T) {
	dir := t.TempDir()
	f, err := output.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Finish(io.ErrUnexpectedEOF); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("finishing gave %v", err)
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}
