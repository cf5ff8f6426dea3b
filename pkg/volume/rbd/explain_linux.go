// SPDX-License-Identifier: Apache-2.0

package rbd

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// failed returns err, an error of the cluster, with the action that failed, the likely cause, and
// the remedy. No error for lack of a right matches fs.ErrPermission, because it is not about files.
func (b Backend) failed(action string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return status.Errorf(status.NotPermitted, "%s: %v%s", action, err, b.hint(err))
	}
	return fmt.Errorf("%s: %w%s", action, err, b.hint(err))
}

// hint names the likely cause of an error, and the remedy.
func (b Backend) hint(err error) string {
	switch {
	case errors.Is(err, unix.ENOENT):
		return ": create it and prepare it for images (ceph osd pool create, rbd pool init)"
	case errors.Is(err, fs.ErrPermission):
		scope := "pool=" + b.Pool
		if b.Namespace != "" {
			scope += " namespace=" + b.Namespace
		}
		return fmt.Sprintf(": the user client.%[1]s needs mon 'profile rbd' osd 'profile rbd %[2]s' "+
			"(ceph auth get client.%[1]s shows its rights, ceph auth caps changes them)", b.user(), scope)
	case errors.Is(err, unix.ESHUTDOWN):
		return ": the cluster has blocklisted this client (ceph osd blocklist ls)"
	}
	return ""
}

// noImage is the error for an image that does not exist.
func (b Backend) noImage() error {
	return status.Errorf(status.NotFound,
		"image %s does not exist: add ,create=SIZE to create it", b.path())
}

// noNamespace is the error for a namespace that does not exist.
func (b Backend) noNamespace() error {
	return status.Errorf(status.NotFound, "pool %s has no namespace %q: create it "+
		"(rbd namespace create %[1]s/%[2]s), or correct the name (rbd namespace ls %[1]s)",
		b.Pool, b.Namespace)
}

// explainConnect names the likely cause why a user cannot connect to a cluster.
func explainConnect(configFile, user string, err error) error {
	const what = "connect to the Ceph cluster of %q as client.%s"
	switch {
	case errors.Is(err, unix.ETIMEDOUT):
		return status.Errorf(status.TimeOut, "connect to the Ceph cluster of %q: no monitor "+
			"answered within 30 s: check the addresses there (mon_host), and the network: %w",
			configFile, err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, fs.ErrPermission):
		code := status.NotFound
		if !errors.Is(err, unix.ENOENT) {
			code = status.NotPermitted
		}
		return status.Errorf(code, what+": %[3]v: the user needs a keyring that the target can read "+
			"(/etc/ceph/ceph.client.%[2]s.keyring), and the cluster must know its key "+
			"(ceph auth get client.%[2]s)", configFile, user, err)
	}
	return fmt.Errorf(what+": %w", configFile, user, err)
}
