// SPDX-License-Identifier: Apache-2.0

package command

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/client"
)

// deviceIdentity is what a gateway of a device has in common with the next one: the owner and the
// instance as which it opens the volume, so that what a killed gateway had in progress has ended
// before the next one begins. The kernel keeps the device's cookie: a random number in its upper
// half, and a digest of the volume's UUID in its lower. The other input is the ID of the machine's
// boot, because the device ends with the boot.
type deviceIdentity struct {
	random      uint32
	digest      uint32 // of the volume's UUID, if isInherited
	isInherited bool
	owner       *client.Owner
	instance    *client.Instance
}

// newDeviceIdentity returns the identity for a new device.
func newDeviceIdentity() (*deviceIdentity, error) {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return makeIdentity(binary.NativeEndian.Uint32(b[:]))
}

// deviceIdentityOf returns the identity that belongs to a device's cookie.
func deviceIdentityOf(cookie uint64) (*deviceIdentity, error) {
	d, err := makeIdentity(uint32(cookie >> 32))
	if err != nil {
		return nil, err
	}
	d.digest, d.isInherited = uint32(cookie), true
	return d, nil
}

func makeIdentity(random uint32) (*deviceIdentity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("identify the gateway: %w", err)
	}
	// Time since the boot, which every process reads alike, and which only grows.
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return nil, fmt.Errorf("identify the gateway: %w", err)
	}
	text := fmt.Sprintf("zc-relay ublk %s %08x ", strings.TrimSpace(string(boot)), random)
	return &deviceIdentity{random: random, owner: client.ResumeOwner(idOf(text+"owner"), ""),
		instance: client.ResumeInstance(idOf(text+"instance"), uint64(now.Nano()))}, nil
}

// idOf returns an id that nobody can guess who does not know the text.
func idOf(text string) [16]byte {
	sum := sha256.Sum256([]byte(text))
	return [16]byte(sum[:])
}

// digestOf returns a digest of a volume's UUID.
func digestOf(info client.Info) uint32 {
	sum := sha256.Sum256(info.UUID[:])
	return binary.NativeEndian.Uint32(sum[:])
}

// fits reports whether the device belongs to the volume, or is new.
func (d *deviceIdentity) fits(info client.Info) bool {
	return !d.isInherited || d.digest == digestOf(info)
}

// cookie returns the cookie of a device of the volume.
func (d *deviceIdentity) cookie(info client.Info) uint64 {
	return uint64(d.random)<<32 | uint64(digestOf(info))
}
