// SPDX-License-Identifier: Apache-2.0

package ublk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Existing is a device that the kernel has.
type Existing struct {
	ID     int
	Queues int
	Depth  int
	// Cookie is that of the Config with which the device was made.
	Cookie uint64
	// Process is the server, or was if it has gone.
	Process int
	// IsServed is set if there is a server.
	IsServed bool
}

// Find returns the device with a number. It fails with status.NotFound if there is none.
func Find(ctx context.Context, id int) (Existing, error) {
	d, err := openDriver()
	if err != nil {
		return Existing{}, fmt.Errorf("find %s: %w", Path(id), err)
	}
	found, err := existing(ctx, d, id)
	if err = errors.Join(err, d.close()); err != nil {
		return Existing{}, fmt.Errorf("find %s: %w", Path(id), err)
	}
	return found, nil
}

func existing(ctx context.Context, d driver, id int) (Existing, error) {
	info, err := find(ctx, d, id)
	if err != nil {
		return Existing{}, err
	}
	return Existing{ID: id, Queues: int(info.queues), Depth: int(info.depth), Cookie: info.cookie,
		Process: int(info.process), IsServed: isServed(d, &info)}, nil
}

// isServed reports whether a device has a server.
func isServed(d driver, info *deviceInfo) bool {
	return info.state == stateLive && d.isAlive(info.process)
}

// find returns what the kernel knows about a device.
func find(ctx context.Context, d driver, id int) (deviceInfo, error) {
	buffer := make([]byte, infoSize)
	// A device without privileges wants its path, and others ignore it.
	err := d.control(ctx, getInfo, control{id: id, buffer: buffer})
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EPERM) {
		err = d.control(ctx, getInfo, control{id: id, buffer: buffer, withPath: true})
	}
	switch {
	case errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENOENT):
		return deviceInfo{}, status.Errorf(status.NotFound, "there is no %s", serverPath(id))
	case err != nil:
		return deviceInfo{}, err
	}
	return decodeInfo(buffer), nil
}

// Remove removes a device that has no server, with everything that it was to write. Without force,
// it fails with status.InUse if the device is in exclusive use. It fails with status.InUse if there
// is a server, whose task removing is.
func Remove(ctx context.Context, id int, force bool) error {
	d, err := openDriver()
	if err == nil {
		err = errors.Join(remove(ctx, d, id, force), d.close())
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", Path(id), err)
	}
	return nil
}

func remove(ctx context.Context, d driver, id int, force bool) error {
	info, err := find(ctx, d, id)
	if err != nil {
		return err
	}
	if isServed(d, &info) {
		return status.Errorf(status.InUse, "process %d serves the device: end that", info.process)
	}
	if !force {
		if err := d.checkUnused(id); err != nil {
			return err
		}
	}
	command := control{id: id, withPath: info.features&featureUnprivileged != 0}
	if err := d.control(ctx, stopDevice, command); err != nil {
		return err
	}
	return d.control(ctx, deletion(&info, force), command)
}

// Features describes what the kernel's driver can do.
type Features struct {
	// CanRecover is set if devices outlive their servers.
	CanRecover bool
	// CanGrow is set if devices can become larger.
	CanGrow bool
}

// Probe returns what the kernel's driver can do. Its error says what is missing.
func Probe(ctx context.Context) (Features, error) {
	d, err := openDriver()
	if err != nil {
		return Features{}, fmt.Errorf("ublk: %w", err)
	}
	features, err := probe(ctx, d)
	if err = errors.Join(err, d.close()); err != nil {
		return Features{}, fmt.Errorf("ublk: %w", err)
	}
	return features, nil
}

func probe(ctx context.Context, d driver) (Features, error) {
	var buffer [8]byte
	if err := d.control(ctx, getFeatures, control{id: AnyID, buffer: buffer[:]}); err != nil {
		return Features{}, status.Errorf(status.NotSupported,
			"the kernel's ublk is too old (Linux 6.12 or newer is needed): %w", err)
	}
	found := feature(binary.NativeEndian.Uint64(buffer[:]))
	if missing := required &^ found; missing != 0 {
		return Features{}, status.Errorf(status.NotSupported,
			"the kernel lacks the features %#x of ublk (Linux 6.12 or newer has them)", uint64(missing))
	}
	const recovery = featureRecovery | featureReissue
	return Features{CanRecover: found&recovery == recovery,
		CanGrow: found&featureUpdateSize != 0}, nil
}
