// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// The owner of an image shows that it is alive by an object beside the image, which contains the ID
// of the owner's connection, and which the owner watches. Who wants to take the image over notifies
// the object, and says if relays wait there: an owner that no relay reaches then hands the image
// over. Only the lock's holder writes to it; a former owner cannot, because it is fenced.

// ownerObject returns the name of the object that belongs to an image.
func ownerObject(imageID string) string { return "zc-relay.owner." + imageID }

const (
	// wantedHere is what a stand-by says to the owner if relays wait at the stand-by.
	wantedHere = "wanted"
	// aliveTimeout is how long an owner may take to answer.
	aliveTimeout = 5 * time.Second
	// fenceExpiry is how long the entry lasts that a new owner adds to the blocklist.
	fenceExpiry = 10 * 365 * 24 * time.Hour
	// noticeTimeout is how long Open waits until the cluster has noticed the death of an owner,
	// which takes 30 s (osd_client_watch_timeout), and noticePause the time between two looks.
	noticeTimeout = 40 * time.Second
	noticePause   = time.Second
	// contentionDuration is how long a process that dies keeps others from contending for the
	// image, and contentionPause the time between two attempts to be next.
	contentionDuration = 20 * time.Second
	contentionPause    = 20 * time.Millisecond
	// rewatchPause is the time between two attempts to watch the object again.
	rewatchPause = time.Second
)

// presence answers those who ask whether this process is alive.
type presence struct {
	driver *driver
	object string
	stop   chan struct{}
}

// contentions makes the contention locks of one process different from each other.
var contentions atomic.Uint64

// lockContention waits until this process alone may contend for an image, and creates the image's
// object. Nobody then locks the image between the moment when its owner is found dead, because it
// has just closed the image, and the moment when the lock is broken: librbd, which knows owners
// only by the addresses of their connections, would break the new lock, too, and fence that owner.
// The contention lock lasts until unlock, or until contentionDuration after locked.
func (d *driver) lockContention(object string) (locked time.Time, unlock func(), err error) {
	const name = "zc-relay.contention"
	if err := withErrno(d.pool.Create(object, rados.CreateIdempotent)); err != nil {
		return locked, nil, d.backend.failed(fmt.Sprintf("create object %q", object), err)
	}
	cookie := strconv.FormatUint(contentions.Add(1), 10)
	for begun := time.Now(); ; time.Sleep(contentionPause) {
		locked = time.Now()
		code, err := d.pool.LockExclusive(object, name, cookie, "", contentionDuration, nil)
		switch {
		case err != nil:
			err = withErrno(err)
			return locked, nil, d.backend.failed(fmt.Sprintf("lock object %q", object), err)
		case code == 0:
			return locked, func() { _, _ = d.pool.Unlock(object, name, cookie) }, nil
		case time.Since(begun) > 2*contentionDuration:
			return locked, nil, status.Errorf(status.InUse, "image %s: others have been contending "+
				"for it for %v", d.backend.path(), 2*contentionDuration)
		}
	}
}

// announce begins to answer for the image, whose lock this process has.
func (d *driver) announce(object string) error {
	p := &presence{driver: d, object: object, stop: make(chan struct{})}
	watcher, err := d.pool.Watch(p.object)
	if err != nil {
		return fmt.Errorf("watch object %q: %w", p.object, withErrno(err))
	}
	// The ID comes last: whoever finds it there can rely on the watch.
	if err := withErrno(d.pool.WriteFull(p.object, []byte(d.cluster.id()))); err != nil {
		return errors.Join(fmt.Errorf("write object %q: %w", p.object, err), watcher.Delete())
	}
	d.presence = p
	d.answering.Go(func() { p.answer(watcher) })
	return nil
}

// answer answers until the presence ends, and watches again whenever the cluster has ended the
// watch.
func (p *presence) answer(watcher *rados.Watcher) {
	for {
		select {
		case <-p.stop:
			_ = watcher.Delete()
			return
		case event := <-watcher.Events():
			_ = event.Ack(nil) // whoever asked asks again
			if string(event.Data) == wantedHere {
				p.driver.handOver()
			}
		case err := <-watcher.Errors():
			p.driver.log.Debug("the cluster has ended the watch", zap.Error(err))
			_ = watcher.Delete()
			if watcher = p.watchAgain(); watcher == nil {
				return
			}
		}
	}
}

// handOver gives the image up if no relay uses it here.
func (d *driver) handOver() {
	v := d.volume.Load()
	if v == nil || !d.ownership.IsIdle() {
		return
	}
	v.Lose("a relay waits at another target, and none has reached this one for seconds: handing the "+
		"image over", status.Errorf(d.backend.lossCode(), "image %s: this target hands it over to "+
		"another one, where a relay waits for it", d.backend.path()))
}

// watchAgain returns nil if the presence ends, or if another process has taken the image over.
func (p *presence) watchAgain() *rados.Watcher {
	for {
		watcher, err := p.driver.pool.Watch(p.object)
		if err == nil {
			return watcher
		}
		if errors.Is(withErrno(err), unix.ESHUTDOWN) {
			_ = p.driver.failFenced(withErrno(err))
			return nil
		}
		p.driver.log.Warn("other targets cannot see that this one is alive", zap.Error(err))
		select {
		case <-p.stop:
			return nil
		case <-time.After(rewatchPause):
		}
	}
}

// observe is replaced by tests, which act between the steps of a take-over.
var observe = func(step takeOverStep) {}

type takeOverStep int

const (
	ownerListed takeOverStep = iota
	ownerDead
)

// errNotDead means that nobody can tell yet whether an owner is alive.
var errNotDead = errors.New("the cluster has not noticed that its owner is gone")

// errDecryptedLate means that deriving the key took so long that the owner has to be asked again.
var errDecryptedLate = errors.New("decrypting the image took long")

// removeOwner makes sure that a former owner of the image cannot write any more. It returns
// status.InUse if the owner is alive, which wraps errNotDead if that is not certain. locked is when
// this process got the contention lock.
func (d *driver) removeOwner(locked time.Time) error {
	path := d.backend.path()
	other, err := rbd.OpenImage(d.pool, d.backend.Image, "")
	if err != nil {
		return fmt.Errorf("open image %s: %w", path, withErrno(err))
	}
	defer func() { _ = other.Close() }()
	_, lockers, err := other.ListLockers()
	if err != nil {
		return fmt.Errorf("list the locks of image %s: %w", path, withErrno(err))
	}
	if len(lockers) == 0 {
		return nil
	}
	owner := lockers[0]
	observe(ownerListed)
	if err := d.checkDead(other, owner); err != nil {
		return err
	}
	observe(ownerDead)
	// Without the right passphrase, there is no reason to fence anybody.
	wasDecrypted := d.decrypted
	if err := d.decrypt(); err != nil {
		return err
	}
	// An owner that has released the image since then had not died. It answers until it has
	// released the image, and cannot lock it again before the contention lock ends. Unlike
	// ListLockers, LockGetOwners asks the cluster each time.
	now, err := other.LockGetOwners()
	if err != nil {
		return fmt.Errorf("get the owner of the lock of image %s: %w", path, withErrno(err))
	}
	if len(now) == 0 {
		return nil
	}
	if now[0].Owner != owner.Addr {
		return status.Errorf(status.InUse, "image %s: %s has locked it meanwhile", path, now[0].Owner)
	}
	isLate := time.Since(locked) > contentionDuration/2
	if isLate && d.decrypted != wasDecrypted {
		return errDecryptedLate
	}
	if isLate {
		return status.Errorf(status.TimeOut, "image %s: the cluster took more than %v to find its "+
			"owner dead", path, contentionDuration/2)
	}
	d.log.Warn("the image's owner is gone: fencing it, and taking the image over",
		zap.String("owner", owner.Client), zap.String("address", owner.Addr))
	// The fence has to come first. librbd adds an entry, too, when it breaks a lock, and that one
	// lasts only for the cluster's default time. The monitors never replace an entry that exists.
	if err := d.cluster.fence(owner.Addr, d.backend.minimumFence()); err != nil {
		return fmt.Errorf("fence %s, the owner of image %s: %w", owner.Client, path, err)
	}
	// librbd calls owners by their addresses, so another target that has been faster keeps its
	// lock.
	err = withErrno(other.LockBreak(rbd.LockModeExclusive, owner.Addr))
	switch {
	case errors.Is(err, unix.EBUSY):
		return status.Errorf(status.InUse, "image %s: another target has taken it over", path)
	case err != nil && !errors.Is(err, unix.ENOENT):
		return fmt.Errorf("break the lock of %s on image %s: %w", owner.Client, path, err)
	}
	return nil
}

// recordedOwner returns the ID in an image's object, "" if there is none.
func (d *driver) recordedOwner(object string) (string, error) {
	recorded := make([]byte, 32)
	n, err := d.pool.Read(object, recorded, 0)
	if err != nil && !errors.Is(withErrno(err), unix.ENOENT) {
		return "", fmt.Errorf("read object %q: %w", object, withErrno(err))
	}
	return string(recorded[:n]), nil
}

// checkDead returns nil if the owner is gone: the cluster itself has noticed that, or the owner is
// a target that does not answer, and its image may be taken over.
func (d *driver) checkDead(other *rbd.Image, owner rbd.Locker) error {
	path := d.backend.path()
	id, err := d.image.id()
	if err != nil {
		return fmt.Errorf("get the ID of image %s: %w", path, err)
	}
	object := ownerObject(id)
	recorded, err := d.recordedOwner(object)
	if err != nil {
		return err
	}
	what := "is no target, or one that is about to start: only targets are taken over from"
	if "client."+recorded == owner.Client {
		isAlive, err := d.ask(object, recorded)
		switch {
		case err != nil:
			return fmt.Errorf("ask the owner of image %s by object %q: %w", path, object, err)
		case isAlive:
			return status.Errorf(status.InUse, "image %s is locked: it is served by another target, "+
				"%s at %s, which is alive", path, owner.Client, owner.Addr)
		case d.backend.TakeOver:
			return nil
		}
		what = "is a target that does not answer"
	}
	watchers, err := other.ListWatchers()
	if err != nil {
		return fmt.Errorf("list the watchers of image %s: %w", path, withErrno(err))
	}
	if !slices.ContainsFunc(watchers, func(w rbd.ImageWatcher) bool {
		return fmt.Sprintf("client.%d", w.Id) == owner.Client
	}) {
		return nil
	}
	return status.Errorf(status.InUse, "image %s is locked by %s at %s, which %s (rbd status %s, "+
		"rbd lock ls %s): %w", path, owner.Client, owner.Addr, what, path, path, errNotDead)
}

// ask reports whether the owner with the given ID answers.
func (d *driver) ask(object, owner string) (isAlive bool, err error) {
	// The OSD learns from this process of the newest map. An owner that is fenced by it, which the
	// OSD may not know yet, cannot answer.
	if err := d.cluster.WaitForLatestOSDMap(); err != nil {
		return false, fmt.Errorf("wait for the newest OSD map: %w", withErrno(err))
	}
	var question []byte
	if d.ownership.IsWanted() {
		question = []byte(wantedHere)
	}
	answers, _, err := d.pool.NotifyWithTimeout(object, question, aliveTimeout)
	return hasAnswered(owner, answers, withErrno(err))
}

// hasAnswered reports whether the owner is among those who have answered a question. It fails if
// the cluster has not asked everybody: then the owner's silence means nothing.
func hasAnswered(owner string, answers []rados.NotifyAck, err error) (bool, error) {
	if slices.ContainsFunc(answers, func(a rados.NotifyAck) bool {
		return strconv.FormatUint(uint64(a.NotifierID), 10) == owner
	}) {
		return true, nil
	}
	if errors.Is(err, unix.ETIMEDOUT) { // somebody who watches, perhaps the owner, does not answer
		return false, nil
	}
	return false, err
}

// fence makes the OSDs reject everything from a client's address, and returns when this process
// has the map that says so: an OSD that gets a request of this process then has it, too. It fails
// if the fence ends in less than minimum, because an entry that existed before has stayed.
func (c *cluster) fence(address string, minimum time.Duration) error {
	_, err := c.tellMonitors(map[string]any{
		"prefix": "osd blocklist", "blocklistop": "add", "addr": address,
		// Monitors take a number without a fraction for an integer, and reject it.
		"expire": json.RawMessage(fmt.Sprintf("%.1f", fenceExpiry.Seconds())),
	})
	if err != nil {
		return err
	}
	if err := c.WaitForLatestOSDMap(); err != nil {
		return withErrno(err)
	}
	list, err := c.tellMonitors(map[string]any{"prefix": "osd blocklist ls", "format": "json"})
	if err != nil {
		return err
	}
	return checkFence(list, address, time.Now().Add(minimum))
}

func (c *cluster) tellMonitors(command map[string]any) (reply []byte, err error) {
	text, err := json.Marshal(command)
	if err != nil {
		return nil, err
	}
	reply, output, err := c.MonCommand(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (%s)", command["prefix"], withErrno(err), output)
	}
	return reply, nil
}

// fenceTime is how monitors write when an entry of the blocklist ends.
const fenceTime = "2006-01-02T15:04:05.999999-0700"

// checkFence returns an error unless the blocklist, as a monitor has listed it, keeps address out
// until the given time.
func checkFence(list []byte, address string, until time.Time) error {
	// A second array may follow, with the entries for whole networks.
	var entries []struct{ Addr, Until string }
	if err := json.NewDecoder(bytes.NewReader(list)).Decode(&entries); err != nil {
		return fmt.Errorf("read the blocklist: %w", err)
	}
	for _, entry := range entries {
		if entry.Addr != address {
			continue
		}
		end, err := time.Parse(fenceTime, entry.Until)
		if err != nil {
			return fmt.Errorf("read the blocklist: %w", err)
		}
		if end.Before(until) {
			return status.Errorf(status.NotPermitted, "the blocklist already had an entry, which ends "+
				"too early, at %s: make sure that the process is dead, or run ceph osd blocklist rm %s, "+
				"for this target to make a longer one", entry.Until, address)
		}
		return nil
	}
	return status.Errorf(status.NotPermitted, "the blocklist has no entry for %s although one was "+
		"added (ceph osd blocklist ls)", address)
}
