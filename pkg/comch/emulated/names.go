// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"strings"

	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	maxNameLength = 120 // bytes, as on hardware
	// lockSuffix is the suffix of lock files: see nameLock.
	lockSuffix = ".lock"
)

// CheckName rejects a name that cannot be a file name in the directory of servers. what describes
// the name in the error.
func CheckName(what, name string) error {
	reason := ""
	switch {
	case name == "":
		reason = "is empty"
	case len(name) > maxNameLength:
		reason = "is too long"
	case strings.ContainsAny(name, "/\x00"):
		reason = "contains a slash or a zero byte"
	case name[0] == '.':
		reason = "starts with a dot"
	case strings.HasSuffix(name, lockSuffix):
		reason = "ends in " + lockSuffix
	default:
		return nil
	}
	return status.Errorf(status.InvalidValue,
		"invalid %s %q: it %s: use up to %d bytes, for instance \"storage\" or \"03:00.0\"",
		what, name[:min(len(name), maxNameLength)], reason, maxNameLength)
}
