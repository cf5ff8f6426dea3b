// SPDX-License-Identifier: Apache-2.0

package tokenfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/tokenfile"
)

func TestATokenIsASecretOfOneLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	const token = "0123456789abcdef"
	for _, c := range []struct {
		content string
		mode    os.FileMode
		want    string // in the error, "" for none
	}{
		{token, 0o600, ""}, {token + "\n", 0o400, ""}, {token + "\r\n", 0o640, ""},
		{token, 0o644, "mode 0644"}, {token, 0o660, "mode 0660"}, {token, 0o604, "mode 0604"},
		{"", 0o600, "at least 16"}, {"short\n", 0o600, "at least 16"},
		{token + "\n" + token, 0o600, "one line"}, {token + " x", 0o600, "without spaces"},
		{token + "ä", 0o600, "printable"}, {strings.Repeat("x", 8192), 0o600, "larger than"},
	} {
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := tokenfile.Read(file, tokenfile.How)
		if (err == nil) != (c.want == "") || err == nil && got != token ||
			err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q with mode %#o: %q, %v", c.content, c.mode, got, err)
		}
		if err := os.Chmod(file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tokenfile.Read(filepath.Join(t.TempDir(), "none"),
		tokenfile.How); err == nil ||
		!strings.Contains(err.Error(), "openssl rand") {
		t.Errorf("no file: %v", err)
	}
}
