//go:build cgo

package libdoca

import "time"

// SetOrderPatience changes how long consumers wait for messages that the peer has no room for.
func SetOrderPatience(d time.Duration) (restore func()) {
	former := orderPatience
	orderPatience = d
	return func() { orderPatience = former }
}
