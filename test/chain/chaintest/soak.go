//go:build soak

package chaintest

func init() { sessionCount = 1000 }
