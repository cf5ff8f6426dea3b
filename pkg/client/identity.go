// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Instance identifies a client across sessions. The target may still carry out a write whose
// session ended before the response. With the same Instance, a new session starts only after all IO
// of the earlier sessions has finished, so no such write can take effect later. Volumes that are
// open at the same time need different Instances, because each session would end those of the
// other volume: Open fails with status.InUse. NewInstance makes an Instance.
type Instance struct {
	id    [16]byte
	mu    sync.Mutex // guards the fields below
	epoch uint64
	user  any // the volume that is open with the Instance; nil if there is none
	// canEvict reports whether user has a session, or may have another one.
	canEvict func() bool
}

// NewInstance returns an Instance with a random id.
func NewInstance() *Instance {
	i := &Instance{}
	_, _ = rand.Read(i.id[:]) // never fails
	return i
}

// ResumeInstance returns the Instance with an id that an earlier process had, so that the next Open
// ends that process's session, and returns only when none of its IO can take effect any more. The
// epoch has to be larger than all that were used with the id, with room for one of each Open.
// Whoever knows the id can end the sessions of the Instance.
func ResumeInstance(id [16]byte, epoch uint64) *Instance {
	return &Instance{id: id, epoch: epoch}
}

// next starts a new epoch.
func (i *Instance) next() (id [16]byte, epoch uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.epoch++
	return i.id, i.epoch
}

// claim makes a volume the one that is open with the Instance. One that has failed, and has not
// been closed, is in nobody's way.
func (i *Instance) claim(user any, canEvict func() bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.user != nil && i.canEvict() {
		return status.Errorf(status.InUse, "Config.Instance belongs to a volume that is still "+
			"open, and each would end the other's sessions: close that one first, or use another "+
			"Instance (NewInstance)")
	}
	i.user, i.canEvict = user, canEvict
	return nil
}

// release undoes claim, and does nothing for a volume that has not claimed the Instance.
func (i *Instance) release(user any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.user == user {
		i.user, i.canEvict = nil, nil
	}
}

// Owner is a program as others see it whom a volume is refused because that program has it open
// exclusively. NewOwner makes an Owner.
type Owner struct {
	id   [16]byte
	name string
}

// NewOwner returns an Owner with a random id. The name is for people, and at most
// controlmsg.MaxClientLength bytes of it are used; "" means the name of the program and the host,
// and the process id.
func NewOwner(name string) *Owner {
	o := &Owner{name: ownerName(name)}
	_, _ = rand.Read(o.id[:]) // never fails
	return o
}

// ResumeOwner returns the Owner with an id that an earlier process had, which is not kept out of
// what that process has open exclusively.
func ResumeOwner(id [16]byte, name string) *Owner { return &Owner{id: id, name: ownerName(name)} }

func ownerName(name string) string {
	if name == "" {
		host, _ := os.Hostname() // "" if it is unknown
		name = fmt.Sprintf("%s on %s (process %d)", filepath.Base(os.Args[0]), host, os.Getpid())
	}
	return printable.Line(name, controlmsg.MaxClientLength)
}
