package volume

import "testing"

// WithoutFileSystemSupport makes a file volume do everything the slow way.
func WithoutFileSystemSupport(v Volume) Volume {
	s := v.(*storeVolume).store.(*fileStore)
	s.noNowait.Store(true)
	s.noZeroRange.Store(true)
	s.noPunchHole.Store(true)
	return v
}

// SetSync replaces what a file volume makes its content durable with.
func SetSync(v Volume, sync func() error) { v.(*storeVolume).store.(*fileStore).syncFile = sync }

// HardwareIdentity is hardwareIdentity, for a made-up folder of sysfs.
func HardwareIdentity(t *testing.T, directory string) string {
	t.Helper()
	return hardwareIdentity(directory)
}
