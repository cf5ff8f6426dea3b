// SPDX-License-Identifier: Apache-2.0

// Package buildinfo identifies the build of zc-relay.
package buildinfo

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// The linker sets these (scripts/ldflags.sh).
var version, revision, modified, time string

// Version returns the version given to the build, or else the revision of the source, or else the
// version of the module, or else "devel".
func Version() string {
	if version != "" {
		return version
	}
	if revision := Revision(); revision != "" {
		const abbreviated = 12
		return "devel-" + revision[:min(abbreviated, len(revision))]
	}
	if version := moduleVersion(); version != "" && version != "(devel)" {
		return version
	}
	return "devel"
}

// moduleVersion returns the version of the module that "go install MODULE@VERSION" has built.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Path != modulePath {
		return ""
	}
	return info.Main.Version
}

const modulePath = "github.com/zc-relay/zc-relay"

// String returns one line with name, version, build tags, Go version and platform.
func String(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", name, Version())
	switch {
	case strings.HasSuffix(Version(), "-dirty"): // says so
	case isModified():
		b.WriteString(" (modified)")
	case Version() == "devel":
		b.WriteString(" (unknown revision)")
	}
	if tags := Tags(); tags != "" {
		fmt.Fprintf(&b, " tags=%s", tags)
	}
	fmt.Fprintf(&b, " %s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return b.String()
}

// Tags returns the build tags, separated by commas.
func Tags() string { return setting("-tags") }

// Revision returns the revision of the source, "" if the build did not record it.
func Revision() string { return cmp.Or(revision, setting("vcs.revision")) }

func isModified() bool { return cmp.Or(modified, setting("vcs.modified")) == "true" }

func setting(key string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// schema names the format of Description as JSON. Fields may be added within a version.
const schema = "zc-relay.version/1"

// Description is everything known about the build.
type Description struct {
	Schema  string `json:"schema"`
	Program string `json:"program"`
	Version string `json:"version"`
	// Revision identifies the source, Modified means that the source differed from it, and Time is
	// when it was committed; empty if the build did not record them.
	Revision  string `json:"revision"`
	Modified  bool   `json:"modified"`
	Time      string `json:"revision_time"`
	Tags      string `json:"tags"` // separated by commas
	GoVersion string `json:"go_version"`
	Platform  string `json:"platform"`
}

// Describe describes the build of a program.
func Describe(program string) Description {
	return Description{
		Schema: schema, Program: program, Version: Version(),
		Revision: Revision(), Modified: isModified(),
		Time: cmp.Or(time, setting("vcs.time")),
		Tags: Tags(), GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}
