// SPDX-License-Identifier: Apache-2.0

package rbd

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestErrorsOfTheClusterNameTheRemedyOfTheCluster(t *testing.T) {
	b := Backend{Pool: "volumes", Namespace: "tenant", Image: "disk", User: "relay"}
	for _, c := range []struct {
		err           error
		want, unasked string
	}{
		{b.noNamespace(), `pool volumes has no namespace "tenant": create it ` +
			"(rbd namespace create volumes/tenant)", "create=SIZE"},
		{b.noImage(), "image volumes/tenant/disk does not exist: add ,create=SIZE", "namespace "},
		{b.failed("open image volumes/tenant/disk", unix.EPERM), "open image volumes/tenant/disk: " +
			"operation not permitted: the user client.relay needs mon 'profile rbd' " +
			"osd 'profile rbd pool=volumes namespace=tenant' (ceph auth get client.relay", "ls -l"},
		{Backend{Pool: "p", Image: "i"}.failed("open pool p", unix.EACCES),
			"client.admin needs mon 'profile rbd' osd 'profile rbd pool=p' (ceph", "ls -l"},
		{explainConnect("/etc/ceph/ceph.conf", "relay", unix.EPERM), "as client.relay: operation not " +
			"permitted: the user needs a keyring that the target can read " +
			"(/etc/ceph/ceph.client.relay.keyring)", "ls -l"},
		{explainConnect("c", "relay", unix.ENOENT), "ceph auth get client.relay", "client.client"},
		{explainConnect("c", "relay", unix.ETIMEDOUT), "no monitor answered within 30 s", "keyring"},
	} {
		text := c.err.Error()
		if !strings.Contains(text, c.want) || strings.Contains(text, c.unasked) {
			t.Errorf("%q, want %q and no %q", text, c.want, c.unasked)
		}
		if errors.Is(c.err, fs.ErrPermission) {
			t.Errorf("%v is taken for an error of a file", c.err)
		}
	}
}
