// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"os"
	"testing"
	"time"
)

// WithoutFileSystemSupport makes a file volume use none of the optional operations of the file
// system.
func WithoutFileSystemSupport(v Volume) Volume {
	s := v.(*storeVolume).store.(*fileStore)
	s.noNowait.Store(true)
	s.noZeroRange.Store(true)
	s.noPunchHole.Store(true)
	s.noAllocate.Store(true)
	return v
}

// SetSync replaces fdatasync(2) for a file volume.
func SetSync(v Volume, sync func() error) { v.(*storeVolume).store.(*fileStore).syncFile = sync }

// CarryOut carries out a change that a file volume has accepted before.
func CarryOut(v Volume, r *Request) error { return v.(*storeVolume).store.(*fileStore).change(r) }

// CheckPlace examines whether the file of a volume is where it was.
func CheckPlace(v Volume) error { return v.(*storeVolume).store.(*fileStore).place.check() }

// SetPlaceCheck replaces the search for the files of volumes, until restore.
func SetPlaceCheck(check func() error) (restore func()) {
	checkPlace = func(*place) error { return check() }
	return func() { checkPlace = (*place).check }
}

// SetInspectInterval sets how often a volume is inspected. Failures are logged every tenth time.
func SetInspectInterval(v Volume, interval time.Duration) {
	v.(*storeVolume).health.inspections.Reset(interval)
}

// LogRepeated logs what a volume logs every 10 s.
func LogRepeated(v Volume) { v.(*storeVolume).health.logRepeated() }

// HardwareIdentity calls hardwareIdentity on a made-up directory of sysfs.
func HardwareIdentity(t *testing.T, directory string) string {
	t.Helper()
	return hardwareIdentity(directory)
}

// HandleIdentity calls handleIdentity on a file, DeviceUUID deviceUUID.
func HandleIdentity(file *os.File) (string, error) { return handleIdentity(int(file.Fd())) }

func DeviceUUID(directory string, device uint64) string { return deviceUUID(directory, device) }

// SetContendPause changes the pause between attempts to own a volume, until restore.
func SetContendPause(pause time.Duration) (restore func()) {
	former := contendPause
	contendPause = pause
	return func() { contendPause = former }
}

// SetIdleBound changes how long an owner keeps a volume that is wanted elsewhere, until restore.
func SetIdleBound(bound time.Duration) (restore func()) {
	former := idleBound
	idleBound = bound
	return func() { idleBound = former }
}

// SetPauseClock changes the clock by which volumes notice that the program stood still, and the
// bound, until restore.
func SetPauseClock(now func() time.Duration, bound time.Duration) (restore func()) {
	formerNow, formerBound := pauseClock, pauseBound
	pauseClock, pauseBound = now, bound
	return func() { pauseClock, pauseBound = formerNow, formerBound }
}

// MaxCleanEnds is the most proofs of clean ends in a directory.
const MaxCleanEnds = maxCleanEnds

// TakeForDevice makes a file volume take its file for a block device.
func TakeForDevice(v Volume) { v.(*storeVolume).store.(*fileStore).regular = false }

// NewDevicePlace returns the check of a device that has a made-up entry in sysfs.
func NewDevicePlace(entry string) (check, closePlace func() error, err error) {
	p, err := placeAt(entry, "device")
	if err != nil {
		return nil, nil, err
	}
	return p.check, p.close, nil
}
