//go:build soak

package chain

func init() { sessionCount = 1000 }
