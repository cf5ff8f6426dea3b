// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch/emulated/rawtest"
)

// hoard opens and closes consumers behind one whose doorbell cannot be closed.
func (a *attacker) hoard() {
	s, err := rawtest.Greet(rawtest.Path(filepath.Join(a.directory, "comch"), "disk"), callTimeout)
	if err != nil {
		a.t.Error(err)
		return
	}
	a.hold(func() { _ = unix.Close(s) })
	const most = 2000
	count, release, err := rawtest.Hoard(s, most)
	if err != nil {
		a.t.Error(err)
		return
	}
	a.hold(release)
	if count == most {
		a.t.Errorf("the relay lets a client hoard %d consumers", most)
	}
}
