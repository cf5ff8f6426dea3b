// SPDX-License-Identifier: Apache-2.0

// Package tokenfile reads files that hold a secret by which a program proves that its user may
// administer a daemon.
package tokenfile

import (
	"os"
	"strings"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The length of a token in bytes.
const (
	minLength = 16
	maxLength = 4096
)

// How says how to make a file.
const How = "(umask 077; openssl rand -hex 32 >FILE) makes one"

// Read returns the token in a file: one line of printable characters without spaces. It fails if
// others than the file's owner and group can read the file, or others than its owner can write it.
// remedy is what the user can do if it has no token: How for a daemon.
func Read(path, remedy string) (string, error) {
	content, err := files.Read(path, maxLength+1)
	if err != nil {
		return "", status.Errorf(status.BadConfig, "read the token: %w (%s)", err, remedy)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", status.Errorf(status.BadConfig, "read the token: %w", err)
	}
	if mode := info.Mode().Perm(); files.IsExposed(mode) {
		return "", status.Errorf(status.BadConfig, "token file %s has mode %#o, so that other "+
			"users can read or change it: chmod u=rw,g=r,o= %[1]s", path, mode)
	}
	token := strings.TrimSpace(string(content))
	isWrong := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(token) < minLength || strings.ContainsFunc(token, isWrong) {
		return "", status.Errorf(status.BadConfig, "token file %s must hold one line of at least "+
			"%d printable characters without spaces: %s", path, minLength, remedy)
	}
	return token, nil
}

// Header returns the value of the header Authorization for a token.
func Header(token string) string { return Scheme + token }

// Scheme begins the value of the header Authorization.
const Scheme = "Bearer "
