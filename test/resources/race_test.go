//go:build race

package resources

func init() {
	buildFlags = []string{"-race"}
	residentSlack *= 8 // the race detector keeps shadow memory
}
