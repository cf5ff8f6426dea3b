// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// claims counts the users of a region.
type claims struct {
	mu    sync.Mutex
	users int
	alone bool // the only user wants no others
}

// Claim makes the caller a user of the region until release is called, beside others or alone. It
// fails with status.InUse if another user is alone, or the caller wants to be and is not. It binds
// those who claim, and keeps nobody from touching the memory.
func (r *Region) Claim(alone bool) (release func(), err error) {
	c := &r.claims
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users > 0 && (c.alone || alone) {
		return nil, status.Errorf(status.InUse,
			"memory region of %d bytes: something else uses it, and one of the two wants it alone",
			r.length)
	}
	c.users++
	c.alone = alone
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.users--
	}), nil
}
