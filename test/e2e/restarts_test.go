//go:build !soak

package e2e

// targetRestarts is how often the target is restarted under load.
const targetRestarts = 5
