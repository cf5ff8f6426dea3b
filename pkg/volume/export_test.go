package volume

import "testing"

// WithoutFileSystemSupport makes a file volume use none of the optional operations of the file
// system.
func WithoutFileSystemSupport(v Volume) Volume {
	s := v.(*storeVolume).store.(*fileStore)
	s.noNowait.Store(true)
	s.noZeroRange.Store(true)
	s.noPunchHole.Store(true)
	return v
}

// SetSync replaces the system call with which a file volume makes its content durable.
func SetSync(v Volume, sync func() error) { v.(*storeVolume).store.(*fileStore).syncFile = sync }

// HardwareIdentity calls hardwareIdentity on a made-up directory of sysfs.
func HardwareIdentity(t *testing.T, directory string) string {
	t.Helper()
	return hardwareIdentity(directory)
}
