package buildinfo

import "runtime"

// Schema names the format of Description as JSON. Fields may be added within a
// version.
const Schema = "zc-relay.version/1"

// Description is everything that is known of the build.
type Description struct {
	Schema  string `json:"schema"`
	Program string `json:"program"`
	Version string `json:"version"`
	// Revision is that of the source, Modified whether the source differed
	// from it, Time when it was committed; empty if the build has not
	// recorded them.
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
		Schema: Schema, Program: program, Version: Version(),
		Revision: Revision(), Modified: setting("vcs.modified") == "true", Time: setting("vcs.time"),
		Tags: Tags(), GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}
