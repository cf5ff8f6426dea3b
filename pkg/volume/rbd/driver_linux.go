// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func (b Backend) configFile() string { return cmp.Or(b.ConfigFile, DefaultConfigFile) }

func (b Backend) minimumFence() time.Duration { return cmp.Or(b.MinimumFence, DefaultMinimumFence) }

// Open connects to the cluster, opens the image or creates it, and takes its exclusive lock.
func (b Backend) Open(spec *volume.Spec) (volume.Volume, error) { return b.Contend(spec, nil) }

// Prepare connects to the cluster.
func (b Backend) Prepare() (release func(), err error) {
	c, err := acquireCluster(b)
	if err != nil {
		return nil, err
	}
	return c.release, nil
}

// Contend is Open for one of several targets.
func (b Backend) Contend(spec *volume.Spec, o *volume.Ownership) (volume.Owned, error) {
	c, err := acquireCluster(b)
	if err != nil {
		return nil, err
	}
	d := &driver{backend: b, cluster: c, ownership: o,
		log: spec.Logger.With(zap.String("volume", spec.Name), zap.String("image", b.path()))}
	info, err := d.open(spec)
	if errors.Is(err, unix.ESHUTDOWN) {
		d.fenced.Store(true)
		c.unshare()
	}
	if err != nil {
		return nil, errors.Join(err, d.free())
	}
	return volume.NewDriven(spec, info, d), nil
}

// driver carries out the requests of a volume on an image. The threads of the queues start requests
// and collect them after librbd's threads have ended them.
type driver struct {
	backend   Backend
	cluster   *cluster
	ownership *volume.Ownership // nil unless the volume contends
	pool      *rados.IOContext
	image     *image
	encrypted encryption
	decrypted bool // the image appears without its encryption
	locked    bool
	volume    atomic.Pointer[volume.Driven]
	log       *zap.Logger
	following sync.Mutex // guards bytes
	bytes     uint64     // the size when last inspected

	slots    slotTable
	searcher *searcher

	presence  *presence // nil of a read-only volume
	answering sync.WaitGroup
	fenced    atomic.Bool
	losing    sync.WaitGroup
}

func (d *driver) open(spec *volume.Spec) (volume.Info, error) {
	b := d.backend
	var err error
	if d.pool, err = d.cluster.OpenIOContext(b.Pool); err != nil {
		return volume.Info{}, b.failed(fmt.Sprintf("open pool %q", b.Pool), withErrno(err))
	}
	d.pool.SetNamespace(b.Namespace)
	if err := d.openImage(); err != nil {
		return volume.Info{}, err
	}
	if err := d.checkSettings(); err != nil {
		return volume.Info{}, err
	}
	if err := d.inspectEncryption(); err != nil {
		return volume.Info{}, err
	}
	if !b.ReadOnly {
		if err := d.lock(); err != nil {
			return volume.Info{}, err
		}
	}
	if err := d.decrypt(); err != nil {
		return volume.Info{}, err
	}
	uuid, err := d.identify()
	if err != nil {
		return volume.Info{}, err
	}
	if d.bytes, err = d.image.size(); err != nil {
		return volume.Info{}, fmt.Errorf("get the size of image %s: %w", b.path(), err)
	}
	usable := d.bytes &^ (uint64(spec.BlockSize) - 1)
	if usable == 0 {
		return volume.Info{}, status.Errorf(status.InvalidValue,
			"image %s has %v, less than one block of %v", b.path(), size.Bytes(d.bytes),
			size.Bytes(spec.BlockSize))
	}
	if d.searcher, err = newSearcher(d.image); err != nil {
		return volume.Info{}, fmt.Errorf("get the size of the objects of image %s: %w", b.path(), err)
	}
	info := volume.Info{Name: spec.Name, UUID: uuid, Size: usable, BlockSize: spec.BlockSize,
		ReadOnly: b.ReadOnly, Fenced: true,
		// Writes are durable when they complete, whoever serves the image next.
		WriteVerifier: binary.LittleEndian.Uint64(uuid[:8]) | 1,
	}
	if !b.ReadOnly {
		info.Capabilities |= volume.CanWriteZeroes | volume.CanFUA
	}
	// Behind encryption, older releases of librbd look for data in the wrong place, and all write
	// zeroes over what is discarded, whatever that costs.
	if !d.decrypted {
		info.Capabilities |= volume.CanReportExtents
		if !b.ReadOnly {
			info.Capabilities |= volume.CanTrim
		}
	}
	return info, nil
}

// createTimeout bounds the wait for another program that creates the image, createPause is the time
// between two looks at it.
const (
	createTimeout = 30 * time.Second
	createPause   = 20 * time.Millisecond
)

// openImage opens the image, or creates it if a size was given. Another program may be creating it:
// until that has finished, the image exists and cannot be opened.
func (d *driver) openImage() error {
	b := d.backend
	opened, err := openImage(d.pool, b.Image, b.ReadOnly)
	deadline := time.Now().Add(createTimeout)
	for errors.Is(err, unix.ENOENT) && b.Create > 0 {
		created := d.createImage()
		if created != nil && !errors.Is(created, unix.EEXIST) {
			if errors.Is(created, unix.ENOENT) && d.lacksNamespace() {
				return b.noNamespace()
			}
			return b.failed("create image "+b.path(), created)
		}
		opened, err = openImage(d.pool, b.Image, b.ReadOnly)
		if errors.Is(err, unix.ENOENT) && time.Now().After(deadline) {
			return status.Errorf(status.NotFound, "image %s exists, but is incomplete: the program "+
				"that created it has not finished (rbd rm %s removes it)", b.path(), b.path())
		}
		if err != nil {
			time.Sleep(createPause)
		}
	}
	switch {
	case errors.Is(err, unix.ENOENT) && d.lacksNamespace():
		return b.noNamespace()
	case errors.Is(err, unix.ENOENT):
		return b.noImage()
	case err != nil:
		return b.failed("open image "+b.path(), err)
	}
	d.image = opened
	return nil
}

// lacksNamespace reports whether the pool is known not to have the namespace. A user may lack the
// right to ask.
func (d *driver) lacksNamespace() bool {
	if d.backend.Namespace == "" {
		return false
	}
	exists, err := rbd.NamespaceExists(d.pool, d.backend.Namespace)
	return err == nil && !exists
}

func (d *driver) createImage() error {
	options := rbd.NewRbdImageOptions()
	defer options.Destroy()
	return withErrno(rbd.CreateImage(d.pool, d.backend.Image, d.backend.Create, options))
}

// checkSettings fails if a setting of the pool or the image overrides one that the volume depends
// on.
func (d *driver) checkSettings() error {
	b := d.backend
	all, err := d.image.settings()
	if err != nil {
		return fmt.Errorf("get the settings of image %s: %w", b.path(), err)
	}
	for _, want := range settings {
		if got := all[want.key]; got.value != want.value {
			object := b.path()
			if got.source == "pool" {
				object = b.Pool
			}
			return status.Errorf(status.NotSupported, "image %s has %s=%s instead of %s, set at the "+
				"%s: run rbd config %s remove %s %s", b.path(), want.key, got.value, want.value,
				got.source, got.source, object, want.key)
		}
	}
	return nil
}

// headerStart is how much of an image tells its encryption: a magic number, and the version of
// LUKS.
const headerStart = 8

// exposureWarning and encryptedWarning are logged when a volume is opened.
const (
	exposureWarning  = "the file with the image's passphrase is not private: chmod 0640 or less"
	encryptedWarning = "the image begins with a LUKS header, and is served as it is: if rbd " +
		"encryption format made the header, clients destroy it: give the passphrase by " +
		"passphrase-file=PATH; if clients encrypt the volume themselves, all is well"
)

// inspectEncryption fails if the image cannot be opened with or without a passphrase, as
// configured. It is quick: only a target that may get the image finds out whether the passphrase is
// right.
func (d *driver) inspectEncryption() error {
	b := d.backend
	start := make([]byte, headerStart)
	if err := d.image.read(start); err != nil {
		return b.failed("read the start of image "+b.path(), err)
	}
	d.encrypted = findEncryption(start)
	if err := b.checkEncryption(d.encrypted); err != nil || b.PassphraseFile == "" {
		return err
	}
	if !canDecrypt() {
		return b.explainDecrypt(d.encrypted.version, errTooOld)
	}
	passphrase, _, err := b.readPassphrase()
	clear(passphrase)
	return err
}

// decrypt makes the image appear without its encryption, unless it has none, or does so already.
func (d *driver) decrypt() error {
	b := d.backend
	if b.PassphraseFile == "" && d.encrypted.version > 0 {
		d.log.Warn(encryptedWarning)
	}
	if b.PassphraseFile == "" || d.decrypted {
		return nil
	}
	passphrase, mode, err := b.readPassphrase()
	if err != nil {
		return err
	}
	defer clear(passphrase)
	if files.IsExposed(mode) {
		d.log.Warn(exposureWarning, zap.String("file", b.PassphraseFile),
			zap.Stringer("mode", mode))
	}
	if err := d.image.decrypt(d.encrypted.version, passphrase); err != nil {
		return b.explainDecrypt(d.encrypted.version, err)
	}
	d.decrypted = true
	d.log.Info("the image is encrypted", zap.Int("luks_version", d.encrypted.version))
	return nil
}

// lock makes this process the only one that can write to the image.
func (d *driver) lock() error {
	b := d.backend
	has, err := d.image.hasExclusiveLock()
	if err != nil {
		return fmt.Errorf("get the features of image %s: %w", b.path(), err)
	}
	if !has {
		return status.Errorf(status.NotSupported, "image %s lacks the feature exclusive-lock, which "+
			"keeps others from writing to it: run rbd feature enable %s exclusive-lock", b.path(),
			b.path())
	}
	id, err := d.image.id()
	if err != nil {
		return fmt.Errorf("get the ID of image %s: %w", b.path(), err)
	}
	for begun := time.Now(); ; time.Sleep(noticePause) {
		err := d.lockOnce(ownerObject(id))
		if errors.Is(err, errDecryptedLate) {
			continue
		}
		if !errors.Is(err, errNotDead) || b.TakeOver || time.Since(begun) > noticeTimeout {
			return err
		}
	}
}

// lockOnce takes the lock unless somebody who may be alive has it.
func (d *driver) lockOnce(object string) error {
	b := d.backend
	locked, unlock, err := d.lockContention(object)
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.removeOwner(locked); err != nil {
		return err
	}
	err = d.image.lock()
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EBUSY) {
		return status.Errorf(status.InUse, "image %s is locked: another target or program uses it "+
			"(rbd status %s, rbd lock ls %s): %w", b.path(), b.path(), b.path(), err)
	}
	if err != nil {
		return b.failed("lock image "+b.path(), err)
	}
	d.locked = true
	return d.announce(object)
}

// identify derives a UUID (version 8, RFC 9562, section 5.8) from the cluster and what it calls the
// image. The UUID survives renaming and restarts, and is the same at every target.
func (d *driver) identify() (volume.UUID, error) {
	fsid, err := d.cluster.GetFSID()
	if err != nil {
		return volume.UUID{}, fmt.Errorf("get the ID of the cluster: %w", withErrno(err))
	}
	id, err := d.image.id()
	if err != nil {
		return volume.UUID{}, fmt.Errorf("get the ID of image %s: %w", d.backend.path(), err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "zc-relay volume\nceph %s pool %d namespace %s image %s",
		fsid, d.pool.GetPoolID(), d.backend.Namespace, id))
	return volume.NewUUID(sum[:]), nil
}

// Start starts to look for extents.
func (d *driver) Start(v *volume.Driven) {
	d.volume.Store(v)
	blockSize := uint64(v.Info().BlockSize)
	d.searcher.running.Go(func() { d.searcher.run(blockSize, d.failed) })
}

// Reserve makes room for depth more requests in flight.
func (d *driver) Reserve(depth int) error { return d.slots.reserve(depth) }

// Release takes back a reservation.
func (d *driver) Release(depth int) { d.slots.unreserve(depth) }

// Submit starts a request.
func (d *driver) Submit(r *volume.Request) {
	if r.Operation == iomsg.OpExtents {
		d.searcher.submit(r)
		return
	}
	number, s := d.slots.claim()
	if err := d.image.start(s, r); err != nil {
		d.slots.release(number)
		r.Complete(d.failed(r, err))
	}
}

// finish completes the request in a slot. value is a number of bytes, or a negative error number.
func (d *driver) finish(number uint32, value int64) {
	s := d.slots.at(number)
	r := s.request.Load()
	var err error
	switch {
	case value < 0:
		err = d.failed(r, unix.Errno(-value))
	case r.Operation == iomsg.OpRead && uint64(value) != r.Length:
		err = status.Errorf(status.IOFailed, "read of %d bytes at offset %d of image %s returned %d",
			r.Length, r.Offset, d.backend.path(), value)
	}
	if r.Operation == iomsg.OpRead {
		s.endDetour(r.Buffer)
	}
	d.slots.release(number)
	r.Complete(err)
}

// failed returns the error of a request.
func (d *driver) failed(r *volume.Request, cause error) error {
	path := d.backend.path()
	switch {
	case errors.Is(cause, unix.ESHUTDOWN):
		err := d.fencedError(cause)
		if d.fenced.CompareAndSwap(false, true) {
			d.losing.Go(func() { d.lose(err) }) // it may block, and this may be a queue's thread
		}
		return err
	case errors.Is(cause, unix.EROFS) && !d.backend.ReadOnly:
		err := status.Errorf(d.backend.lossCode(), "image %s: the exclusive lock is lost: somebody else "+
			"has taken it (rbd lock ls %s)%s: %w", path, path, d.backend.remedy(), cause)
		d.volume.Load().Lose("the image's exclusive lock is lost: the volume fails every request until "+
			"it is reopened", err)
		return err
	}
	return status.Errorf(status.IOFailed, "%v %d bytes at offset %d of image %s: %w", r.Operation,
		r.Length, r.Offset, path, cause)
}

// fencedError returns the error of a request that the cluster has rejected because of a fence.
func (d *driver) fencedError(cause error) error {
	return status.Errorf(d.backend.lossCode(), "image %s: the cluster has fenced this target, because "+
		"another one has taken the image over, or by hand (ceph osd blocklist ls)%s: %w",
		d.backend.path(), d.backend.remedy(), cause)
}

// failFenced makes the volume fail every request after a fence, and returns the error. It may
// block.
func (d *driver) failFenced(cause error) error {
	d.fenced.Store(true)
	err := d.fencedError(cause)
	d.lose(err)
	return err
}

func (d *driver) lose(err error) {
	d.cluster.unshare()
	if v := d.volume.Load(); v != nil {
		v.Lose("the cluster has fenced this target: the volume fails every request until it is "+
			"reopened", err)
	}
}

// lossCode is the code of requests that fail because the image is lost.
func (b Backend) lossCode() status.Code {
	if b.TakeOver {
		return status.Shutdown
	}
	return status.IOFailed
}

// remedy says what reopens a lost volume.
func (b Backend) remedy() string {
	if b.TakeOver {
		return ""
	}
	return ": restart the target"
}

// CheckOwner asks the cluster until it answers. It has to be asked with the newest map: an older
// one may not show the fence.
func (d *driver) CheckOwner() error {
	if d.presence == nil {
		return nil
	}
	for {
		err := withErrno(d.cluster.WaitForLatestOSDMap())
		var recorded string
		if err == nil {
			recorded, err = d.recordedOwner(d.presence.object)
		}
		switch {
		case errors.Is(err, unix.ESHUTDOWN):
			return d.failFenced(err)
		case err == nil && recorded != d.cluster.id():
			err := status.Errorf(d.backend.lossCode(), "image %s: client.%s has taken the image over",
				d.backend.path(), recorded)
			d.volume.Load().Lose("another target owns the image: the volume fails every request "+
				"until it is reopened", err)
			return err
		case err == nil:
			return nil
		}
		d.log.Warn("cannot find out whether this target still owns the image", zap.Error(err))
		time.Sleep(rewatchPause)
	}
}

// Inspect follows the size of the image.
func (d *driver) Inspect() { _ = d.follow() }

// Resize follows the size of the image. Whoever manages the image changes it.
func (d *driver) Resize(bytes uint64) error {
	if bytes != 0 && bytes != d.volume.Load().Info().Size {
		return status.Errorf(status.NotSupported,
			"resize the image instead (rbd resize %s --size …): the volume follows",
			d.backend.path())
	}
	return d.follow()
}

func (d *driver) follow() error {
	if d.fenced.Load() {
		return nil // librbd would wait for an answer that does not come
	}
	d.following.Lock()
	defer d.following.Unlock()
	bytes, err := d.image.size()
	if err != nil || bytes == d.bytes {
		return err
	}
	d.log.Info("the image has been resized", zap.Uint64("before_bytes", d.bytes),
		zap.Uint64("after_bytes", bytes))
	d.bytes = bytes
	d.volume.Load().Resized(bytes)
	return nil
}

// Close releases lock, image, and connection.
func (d *driver) Close() error {
	d.searcher.stop()
	return d.free()
}

// free releases what open has opened, even if open failed.
func (d *driver) free() error {
	var errs []error
	if d.image != nil {
		isFenced := d.fenced.Load() // librbd would only wait for answers that do not come
		// Without the lock, librbd would ask the owner for it before it flushed, and wait for half
		// a minute if the owner has just died.
		if d.locked && !isFenced {
			errs = append(errs, d.image.flush(), d.image.unlock())
		}
		errs = append(errs, d.image.close())
	}
	// Whoever gets no answer takes the owner for dead, so it answers until it has no lock.
	if d.presence != nil {
		close(d.presence.stop)
		d.answering.Wait()
	}
	d.losing.Wait()
	d.slots.free()
	if d.pool != nil {
		d.pool.Destroy()
	}
	d.cluster.release()
	return errors.Join(errs...)
}
