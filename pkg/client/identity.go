package client

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
)

// Instance identifies a client across sessions. The target may still carry out a write whose
// session ended before the response. With the same Instance, a new session starts only after all IO
// of the earlier sessions has finished, so no such write can take effect later. Volumes that are
// open at the same time need different Instances.
type Instance struct {
	id    [16]byte
	epoch atomic.Uint64
}

// NewInstance returns an Instance with a random id.
func NewInstance() *Instance {
	i := &Instance{}
	_, _ = rand.Read(i.id[:]) // never fails
	return i
}

// next starts a new epoch.
func (i *Instance) next() (id [16]byte, epoch uint64) { return i.id, i.epoch.Add(1) }

// Owner is a program as others see it whom a volume is refused because that program has it open
// exclusively.
type Owner struct {
	id   [16]byte
	name string
}

// NewOwner returns an Owner with a random id. The name is for people, and at most
// controlmsg.MaxClientLength bytes of it are used; "" means the name of the program and the host,
// and the process id.
func NewOwner(name string) *Owner {
	if name == "" {
		host, _ := os.Hostname() // "" if it is unknown
		name = fmt.Sprintf("%s on %s (process %d)", filepath.Base(os.Args[0]), host, os.Getpid())
	}
	o := &Owner{name: printable.Line(name, controlmsg.MaxClientLength)}
	_, _ = rand.Read(o.id[:]) // never fails
	return o
}
