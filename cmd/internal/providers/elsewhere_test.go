// SPDX-License-Identifier: Apache-2.0

package providers

import (
	"os"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

func TestAClientLearnsWhereRelaysOfOtherUsersAre(t *testing.T) {
	if os.Geteuid() == 0 && emulated.DefaultDirectory() != emulated.RootDirectory {
		t.Errorf("relays of root are in %s", emulated.DefaultDirectory())
	}
	const own = "/run/user/1000/zc-relay/comch"
	if got := elsewhereThan(own, 1000); got != "user 1000 looks in "+own+"; what root runs "+
		"listens in /run/zc-relay/comch, as the packaged relay does: give --emulated-dir "+
		"/run/zc-relay/comch" {
		t.Errorf("a user is told %q", got)
	}
	if got := elsewhereThan(emulated.RootDirectory, 0); !strings.Contains(got, "another user") {
		t.Errorf("root is told %q", got)
	}
	if got := Elsewhere(DefaultComch, own) + Elsewhere("doca", ""); got != "" {
		t.Errorf("who has named a place is told %q", got)
	}
	if Elsewhere(DefaultComch, "") == "" {
		t.Error("who has named no place is told nothing")
	}
}
