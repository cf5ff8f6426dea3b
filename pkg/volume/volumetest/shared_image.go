// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"slices"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// SharedImage is content in memory that several programs of a test can serve, while one of them
// owns it. Like a cluster, it rejects what a former owner does. Its methods may be called
// concurrently.
type SharedImage struct {
	mu       sync.Mutex
	content  []byte
	owner    *sharedDriver // nil if nobody owns the image
	owners   int
	rejected int
}

// NewSharedImage returns an image of so many zeroes.
func NewSharedImage(bytes int) *SharedImage { return &SharedImage{content: make([]byte, bytes)} }

// Owners returns how often the image has got an owner, Rejected how many requests of former owners
// it has rejected.
func (i *SharedImage) Owners() (owners, rejected int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.owners, i.rejected
}

// Program is the backend of one of the programs. It contends for the image.
type Program struct {
	Image *SharedImage

	stopped bool // guarded by Image.mu, as what follows
	waiting []*volume.Request
	driver  *sharedDriver
}

// Stop makes the program stand still: it neither answers nor carries out requests.
func (p *Program) Stop() {
	p.Image.mu.Lock()
	defer p.Image.mu.Unlock()
	p.stopped = true
}

// Continue undoes Stop. Requests of the time between take effect if the program still owns the
// image.
func (p *Program) Continue() {
	p.Image.mu.Lock()
	p.stopped = false
	waiting, driver := p.waiting, p.driver
	p.waiting = nil
	p.Image.mu.Unlock()
	for _, r := range waiting {
		driver.Submit(r)
	}
}

// String returns a text that cannot be parsed.
func (p *Program) String() string { return "shared image" }

// Validate returns nil.
func (p *Program) Validate(*volume.Spec) error { return nil }

// Contends returns true.
func (p *Program) Contends() bool { return true }

// Prepare does nothing.
func (p *Program) Prepare() (release func(), err error) { return func() {}, nil }

// Open is Contend.
func (p *Program) Open(spec *volume.Spec) (volume.Volume, error) { return p.Contend(spec, nil) }

// Contend takes the image over unless its owner is alive, or this program stands still. An owner
// that is alive, but not used, hands the image over if it is wanted here.
func (p *Program) Contend(spec *volume.Spec, o *volume.Ownership) (volume.Owned, error) {
	i := p.Image
	i.mu.Lock()
	if owner := i.owner; p.stopped || owner != nil && !owner.program.stopped {
		mayAsk := !p.stopped && o.IsWanted()
		i.mu.Unlock()
		if mayAsk && owner.ownership.IsIdle() {
			_ = owner.lose()
		}
		return nil, status.Errorf(status.InUse, "the owner is alive")
	}
	d := &sharedDriver{program: p, ownership: o, started: make(chan struct{})}
	i.owner, p.driver = d, d
	i.owners++
	i.mu.Unlock()
	return volume.NewDriven(spec, volume.Info{Name: spec.Name, UUID: volume.UUID{1},
		Size: uint64(len(i.content)), BlockSize: spec.BlockSize, WriteVerifier: 1, Fenced: true,
		Capabilities: volume.CanFUA}, d), nil
}

// sharedDriver serves the image for as long as it is the owner.
type sharedDriver struct {
	program   *Program
	ownership *volume.Ownership
	volume    *volume.Driven
	started   chan struct{} // closed by Start
}

// Start keeps the volume.
func (d *sharedDriver) Start(v *volume.Driven) {
	d.volume = v
	close(d.started)
}

// Reserve returns nil.
func (d *sharedDriver) Reserve(int) error { return nil }

// Release does nothing.
func (d *sharedDriver) Release(int) {}

// Inspect does nothing.
func (d *sharedDriver) Inspect() {}

// Resize fails: the image keeps its size.
func (d *sharedDriver) Resize(uint64) error { return status.NotSupported }

// Submit carries out a request, or keeps it while the program stands still.
func (d *sharedDriver) Submit(r *volume.Request) {
	i := d.program.Image
	i.mu.Lock()
	if d.program.stopped {
		d.program.waiting = append(d.program.waiting, r)
		i.mu.Unlock()
		return
	}
	if i.owner != d {
		i.rejected++
		i.mu.Unlock()
		r.Complete(d.lose())
		return
	}
	part := i.content[r.Offset:][:r.Length]
	switch r.Operation {
	case iomsg.OpRead:
		copy(r.Buffer, part)
	case iomsg.OpWrite:
		copy(part, r.Buffer)
	}
	i.mu.Unlock()
	r.Complete(nil)
}

func (d *sharedDriver) lose() error {
	<-d.started
	err := status.Errorf(status.Shutdown, "another program has taken the image over")
	d.volume.Lose("the image is lost", err)
	return err
}

// CheckOwner returns nil if the program is the owner.
func (d *sharedDriver) CheckOwner() error {
	d.program.Image.mu.Lock()
	isOwner := d.program.Image.owner == d
	d.program.Image.mu.Unlock()
	if !isOwner {
		return d.lose()
	}
	return nil
}

// Close lets another program own the image.
func (d *sharedDriver) Close() error {
	i := d.program.Image
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.owner == d {
		i.owner = nil
	}
	return nil
}

// Content returns a copy of the image.
func (i *SharedImage) Content() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.content)
}
