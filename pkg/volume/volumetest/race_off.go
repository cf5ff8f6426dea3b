//go:build !race

package volumetest

// raceEnabled tells that the race detector is built in, which allocates.
const raceEnabled = false
