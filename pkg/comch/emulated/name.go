package emulated

import (
	"strings"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// lockSuffix marks the file whose lock makes a server's name unique.
const lockSuffix = ".lock"

// checkName refuses what cannot be the name of a file in the directory where
// servers meet clients. what tells which setting it came from.
func checkName(what, name string) error {
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
	return status.Errorf(status.InvalidValue, "%s %q %s: up to %d bytes can be used, for instance \"storage\" or \"03:00.0\"",
		what, name[:min(len(name), maxNameLength)], reason, maxNameLength)
}
