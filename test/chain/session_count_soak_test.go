//go:build soak

package chain

// sessionCount is how many sessions the leak test goes through.
const sessionCount = 1000
