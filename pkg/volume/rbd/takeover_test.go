// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/rbd"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// ownerVariable makes the test binary the owner of the volume that it contains: see writeForever.
const ownerVariable = "ZC_RELAY_TEST_OWNER"

const writesInFlight = 64

// writeForever opens the volume, keeps writes in flight to each of its first blocks, and prints a
// line once the first has completed, and another when one has failed.
func writeForever(text string) error {
	spec, err := volume.ParseSpec(text, 4096)
	if err != nil {
		return err
	}
	v, err := volume.Open(spec)
	if err != nil {
		return err
	}
	queue, err := v.NewQueue(writesInFlight)
	if err != nil {
		return err
	}
	content := bytes.Repeat([]byte{0x0d}, 4096)
	var requests [writesInFlight]volume.Request
	for i := range requests {
		requests[i] = volume.Request{Operation: iomsg.OpWrite, Offset: uint64(i) * 4096,
			Length: 4096, Buffer: content}
		if err := queue.Submit(&requests[i]); err != nil {
			return err
		}
	}
	completed := make([]*volume.Request, writesInFlight)
	for written := 0; ; time.Sleep(time.Millisecond) {
		for _, r := range completed[:queue.Poll(completed)] {
			if r.Err != nil {
				_, err := fmt.Println("failed:", r.Err)
				return err
			}
			if written++; written == 1 {
				fmt.Println("writing")
			}
			if err := queue.Submit(r); err != nil {
				return err
			}
		}
	}
}

// owner is a process that writes to an image.
type owner struct {
	*exec.Cmd
	lines *bufio.Reader
}

// startOwner returns once the owner's writes are in flight.
func startOwner(t *testing.T, text string) *owner {
	o := &owner{Cmd: exec.Command(os.Args[0])}
	o.Env = append(os.Environ(), ownerVariable+"="+text)
	o.Stderr = os.Stderr
	output, err := o.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	o.lines = bufio.NewReader(output)
	if err := o.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Process.Kill() })
	if line, err := o.lines.ReadString('\n'); line != "writing\n" {
		t.Fatalf("the owner printed %q, %v", line, err)
	}
	return o
}

func (o *owner) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := o.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// contend tries once to own an image.
func contend(t *testing.T, text string) (volume.Owned, error) {
	t.Helper()
	spec, err := volume.ParseSpec(text, 4096)
	if err != nil {
		t.Fatal(err)
	}
	spec.Logger = zap.NewNop()
	return spec.Backend.(volume.Contender).Contend(&spec, nil)
}

// check fills the blocks that the owner writes to, calls between, and expects them unchanged.
func check(t *testing.T, v volume.Volume, between func()) {
	t.Helper()
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	const length = writesInFlight * 4096
	content := bytes.Repeat([]byte{0xf1}, length)
	w := volume.Request{Operation: iomsg.OpWrite, Length: length, Buffer: content}
	r := volume.Request{Operation: iomsg.OpRead, Length: length, Buffer: make([]byte, length)}
	volumetest.Do(t, queue, &w)
	between()
	volumetest.Do(t, queue, &r)
	if w.Err != nil || r.Err != nil {
		t.Fatalf("write: %v; read: %v", w.Err, r.Err)
	}
	if !bytes.Equal(r.Buffer, content) {
		t.Errorf("the former owner has written after the take-over: %d bytes differ",
			len(content)-bytes.Count(r.Buffer, []byte{0xf1}))
	}
}

// A stopped owner with writes in flight is taken over from, and then continues: nothing of it may
// arrive. The user has only the rights that the documentation asks for.
func TestAFormerOwnerWritesNothingAfterATakeOver(t *testing.T) {
	keyring := t.TempDir() + "/keyring"
	ceph(t, "ceph", "auth", "get-or-create", "client.limited", "mon", "profile rbd", "osd",
		"profile rbd pool="+pool(), "-o", keyring)
	config := t.TempDir() + "/ceph.conf"
	original, err := os.ReadFile(os.Getenv("CEPH_CONF"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(original), "\n")
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "keyring =") {
			lines[i] = "keyring = " + keyring
		}
	}
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	name := newImage(t)
	options := ",id=limited,takeover"
	text := strings.Replace(backend(name, options), os.Getenv("CEPH_CONF"), config, 1)
	volumetest.CloseVolume(t, mustOpen(t, text+",create=8MiB"))
	for round := range takeOverRounds {
		o := startOwner(t, text)
		if v, err := contend(t, text); !errors.Is(err, status.InUse) ||
			!strings.Contains(err.Error(), "is alive") {
			t.Fatalf("the image of an owner that is alive was opened: %v, %v", v, err)
		}
		o.signal(t, syscall.SIGSTOP)
		former := lockAddress(t, name)
		start := time.Now()
		v := mustOpen(t, text)
		t.Logf("round %d: taken over in %v", round, time.Since(start).Round(time.Millisecond))
		checkFenced(t, former)
		check(t, v, func() {
			outliveDefaultFence(t)
			o.signal(t, syscall.SIGCONT)
			unfenced := time.AfterFunc(noticeTimeout, func() { _ = o.Process.Kill() })
			defer unfenced.Stop()
			rest, err := io.ReadAll(o.lines) // until the owner has noticed
			if err != nil || !strings.Contains(string(rest), "fenced") {
				t.Errorf("the former owner printed %q, %v", rest, err)
			}
			_ = o.Wait()
		})
		volumetest.CloseVolume(t, v)
	}
}

// noticeTimeout is how long a former owner may take to notice that it is fenced.
const noticeTimeout = time.Minute

// takeOverRounds is how often an owner is taken over from.
var takeOverRounds = 2

func TestAKilledOwnerIsTakenOverFrom(t *testing.T) {
	name := newImage(t)
	text := backend(name, ",takeover")
	first := mustOpen(t, text+",create=8MiB")
	volumetest.CloseVolume(t, first)
	o := startOwner(t, text)
	o.signal(t, syscall.SIGKILL)
	_ = o.Wait()
	former := lockAddress(t, name)
	start := time.Now()
	v := mustOpen(t, text)
	t.Logf("taken over in %v", time.Since(start).Round(time.Millisecond))
	checkFenced(t, former)
	check(t, v, func() {})
	// Neither the clean end nor the death of an owner is a loss.
	if now := v.Info().WriteVerifier; now != first.Info().WriteVerifier || now == 0 {
		t.Errorf("write verifier %#x after %#x", now, first.Info().WriteVerifier)
	}
	volumetest.CloseVolume(t, v)
}

// Without takeover, the next target waits until the cluster has noticed the death of the owner.
// The former owner, which was only stopped, may continue at any time.
func TestAnOwnerThatTheClusterHasGivenUpStaysFenced(t *testing.T) {
	ceph(t, "ceph", "config", "set", "osd", "osd_client_watch_timeout", "3")
	defer ceph(t, "ceph", "config", "rm", "osd", "osd_client_watch_timeout")
	name := newImage(t)
	text := backend(name, "")
	volumetest.CloseVolume(t, mustOpen(t, text+",create=8MiB"))
	o := startOwner(t, text)
	o.signal(t, syscall.SIGSTOP)
	former := lockAddress(t, name)
	v := mustOpen(t, text)
	checkFenced(t, former)
	check(t, v, func() {
		outliveDefaultFence(t)
		o.signal(t, syscall.SIGCONT)
		rest, err := io.ReadAll(o.lines)
		if err != nil || !strings.Contains(string(rest), "fenced") {
			t.Errorf("the former owner printed %q, %v", rest, err)
		}
		_ = o.Wait()
	})
	volumetest.CloseVolume(t, v)
}

// The monitors keep an entry that exists, however short it is. Who would rely on it must not serve.
func TestATargetDoesNotServeBehindAShortFence(t *testing.T) {
	name := newImage(t)
	text := backend(name, ",takeover")
	volumetest.CloseVolume(t, mustOpen(t, text+",create=8MiB"))
	o := startOwner(t, text)
	o.signal(t, syscall.SIGSTOP)
	former := lockAddress(t, name)
	ceph(t, "ceph", "osd", "blocklist", "add", former, "3600")
	remedy := "ceph osd blocklist rm " + former
	for range 2 { // the refusal leaves nothing behind that makes the next attempt succeed
		if v, err := contend(t, text); !errors.Is(err, status.NotPermitted) ||
			!strings.Contains(err.Error(), remedy) {
			t.Fatalf("the image was opened: %v, %v", v, err)
		}
	}
	v, err := contend(t, text+",fence=59m")
	if err != nil {
		t.Fatal(err)
	}
	volumetest.CloseVolume(t, v)

	o = startOwner(t, text)
	o.signal(t, syscall.SIGSTOP)
	former = lockAddress(t, name)
	ceph(t, "ceph", "osd", "blocklist", "add", former, "3600")
	ceph(t, "ceph", "osd", "blocklist", "rm", former)
	v, err = contend(t, text)
	if err != nil {
		t.Fatal(err)
	}
	checkFenced(t, former)
	volumetest.CloseVolume(t, v)
}

// fenceByHand adds an entry to the blocklist, as an administrator does.
func fenceByHand(t *testing.T, address string) {
	t.Helper()
	ceph(t, "ceph", "osd", "blocklist", "add", address, "315360000")
}

// checkFenced fails the test unless a former owner is fenced for years.
func checkFenced(t *testing.T, address string) {
	t.Helper()
	list := []byte(ceph(t, "ceph", "osd", "blocklist", "ls", "--format", "json"))
	list = list[max(bytes.IndexByte(list, '['), 0):] // the program may say how many there are
	if err := rbd.CheckFence(list, address, time.Now().AddDate(9, 0, 0)); err != nil {
		t.Errorf("%v\n%s", err, list)
	}
}

// outliveDefaultFence returns when an entry of the blocklist has ended that was added now with the
// cluster's default time, which test/ceph/cluster.sh makes short.
func outliveDefaultFence(t *testing.T) {
	t.Helper()
	const decoy = "192.0.2.1:0/1"
	ceph(t, "ceph", "osd", "blocklist", "add", decoy)
	testkit.Eventually(t, "the fence of the decoy has ended", func() bool {
		return !strings.Contains(ceph(t, "ceph", "osd", "blocklist", "ls"), decoy)
	})
}

// Of two targets that contend for an image, one owns it for as long as it is alive. When it has
// stood still and lost the image, it is a stand-by on a new connection, and can own it again while
// the fence is in force.
func TestAFencedTargetIsAStandByThatCanTakeOver(t *testing.T) {
	name := newImage(t)
	volumetest.CloseVolume(t, mustOpen(t, backend(name, ",create=8MiB")))
	volumes := [2]volume.Volume{mustOpen(t, backend(name, ",takeover")),
		mustOpen(t, backend(name, ",takeover,group=other"))}
	standBy := func(i int) error {
		err, _ := volumes[i].Ownership().State()
		return err
	}
	if standBy(0) != nil || !errors.Is(standBy(1), status.NoLock) {
		t.Fatalf("the targets are stand-bys because of %v and %v", standBy(0), standBy(1))
	}
	var fences []string
	for round := range 2 {
		former := lockAddress(t, name)
		fenceByHand(t, former)
		start := time.Now()
		owner := -1
		testkit.Eventually(t, "another target owns the image", func() bool {
			// Usually the other one, but the fenced one may be faster.
			owner = slices.IndexFunc([]int{0, 1}, func(i int) bool { return standBy(i) == nil })
			now := lockAddress(t, name)
			return owner >= 0 && standBy(1-owner) != nil && now != "" && now != former
		})
		t.Logf("round %d: target %d owns the image %v after the fence", round, owner,
			time.Since(start).Round(time.Millisecond))
		fences = append(fences, former)
		check(t, volumes[owner], func() {})
	}
	for _, fence := range fences {
		checkFenced(t, fence)
	}
	for _, v := range volumes {
		volumetest.CloseVolume(t, v)
	}
}

// An owner that is no target does not know the question, so its silence means nothing.
func TestOnlyTargetsAreTakenOverFrom(t *testing.T) {
	name := newImage(t)
	v := mustOpen(t, backend(name, ",create=8MiB"))
	defer volumetest.CloseVolume(t, v)
	// Somebody else's lock looks like this one once the record is about another client.
	record := t.TempDir() + "/record"
	if err := os.WriteFile(record, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	ceph(t, "rados", "-p", pool(), "put", ownerObject(t, name), record)
	if v, err := contend(t, backend(name, ",takeover,group=other")); !errors.Is(err, status.InUse) ||
		!strings.Contains(err.Error(), "is no target") {
		t.Errorf("the image was opened: %v, %v", v, err)
	}
}

// A target that closes an image may be asked at any time whether it is alive. Closing must not
// look like death: the fence would hit the other volumes of its group, too.
func TestAClosingOwnerIsNotFenced(t *testing.T) {
	moving, staying := backend(newImage(t), ",takeover"), backend(newImage(t), ",takeover")
	volumetest.CloseVolume(t, mustOpen(t, moving+",create=8MiB"))
	other := mustOpen(t, staying+",create=8MiB")
	stop := make(chan struct{})
	var asking sync.WaitGroup
	stopAsking := sync.OnceFunc(func() {
		close(stop)
		asking.Wait()
	})
	defer stopAsking()
	asking.Go(func() {
		for {
			v, err := contend(t, moving+",group=other")
			if err == nil {
				volumetest.CloseVolume(t, v)
			} else if !errors.Is(err, status.InUse) {
				t.Errorf("a stand-by: %v", err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range closeRounds {
		var v volume.Owned
		testkit.Eventually(t, "the volume can be opened", func() (owned bool) {
			var err error
			v, err = contend(t, moving)
			if err != nil && !errors.Is(err, status.InUse) {
				t.Fatal(err)
			}
			return err == nil
		})
		volumetest.CloseVolume(t, v)
	}
	stopAsking()
	check(t, other, func() {})
	volumetest.CloseVolume(t, other)
}

// An owner that has just closed an image looks dead. If it opens the image again at this moment, it
// must not be fenced.
func TestAnOwnerThatReopensIsNotFenced(t *testing.T) {
	moving, staying := backend(newImage(t), ",takeover"), backend(newImage(t), ",takeover")
	owner, other := mustOpen(t, moving+",create=8MiB"), mustOpen(t, staying+",create=8MiB")
	type outcome struct {
		v   volume.Owned
		err error
	}
	reopened := make(chan outcome, 1)
	closeOwner := sync.OnceFunc(func() { volumetest.CloseVolume(t, owner) })
	reopen := sync.OnceFunc(func() {
		opening := make(chan struct{})
		go func() {
			close(opening)
			v, err := contend(t, moving)
			reopened <- outcome{v, err}
		}()
		<-opening
		for end := time.Now().Add(time.Second); len(reopened) == 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // it should wait for its turn
		}
	})
	defer rbd.ObserveTakeOvers(closeOwner, reopen)()
	taken, err := contend(t, moving+",group=other")
	if err != nil {
		t.Errorf("the stand-by does not get the image that was closed: %v", err)
	} else {
		defer volumetest.CloseVolume(t, taken)
	}
	if o := <-reopened; !errors.Is(o.err, status.InUse) {
		t.Errorf("the former owner opens the image again: %v", o.err)
		if o.err == nil {
			volumetest.CloseVolume(t, o.v)
		}
	}
	check(t, other, func() {}) // on the former owner's connection
	volumetest.CloseVolume(t, other)
}

// closeRounds is how often an owner closes an image while a stand-by asks.
const closeRounds = 20

// An owner may release the image after it was asked, and before its lock is broken.
func TestAReleasedImageIsNotTakenOver(t *testing.T) {
	name := newImage(t)
	text := backend(name, ",takeover")
	volumetest.CloseVolume(t, mustOpen(t, text+",create=8MiB"))
	connection, err := rados.NewConn()
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Shutdown()
	if err := errors.Join(connection.ReadConfigFile(os.Getenv("CEPH_CONF")),
		connection.Connect()); err != nil {
		t.Fatal(err)
	}
	objects, err := connection.OpenIOContext(pool())
	if err != nil {
		t.Fatal(err)
	}
	defer objects.Destroy()
	image, err := librbd.OpenImage(objects, name, "")
	if err != nil {
		t.Fatal(err)
	}
	object := ownerObject(t, name)
	watcher, err := objects.Watch(object)
	if err != nil {
		t.Fatal(err)
	}
	owner := strconv.FormatUint(connection.GetInstanceID(), 10)
	if err := errors.Join(image.LockAcquire(librbd.LockModeExclusive),
		objects.WriteFull(object, []byte(owner))); err != nil {
		t.Fatal(err)
	}
	left := make(chan error)
	go func() {
		<-watcher.Events()
		left <- errors.Join(image.LockRelease(), watcher.Delete(), image.Close())
	}()
	address := lockAddress(t, name)
	volumetest.CloseVolume(t, mustOpen(t, text))
	if err := <-left; err != nil {
		t.Error(err)
	}
	if list := ceph(t, "ceph", "osd", "blocklist", "ls"); strings.Contains(list, address) {
		t.Errorf("the former owner %s was fenced: %s", address, list)
	}
}

// lockAddress returns the address of who has locked an image, "" if nobody has.
func lockAddress(t *testing.T, image string) string {
	t.Helper()
	var locks []struct{ Address string }
	list := ceph(t, "rbd", "lock", "ls", "--format", "json", pool()+"/"+image)
	if err := json.Unmarshal([]byte(list), &locks); err != nil {
		t.Fatal(err)
	}
	if len(locks) == 0 {
		return ""
	}
	return locks[0].Address
}

// ownerObject returns the name of the object by which the owner of an image shows that it is alive.
func ownerObject(t *testing.T, image string) string {
	t.Helper()
	var info struct{ ID string }
	text := ceph(t, "rbd", "info", "--format", "json", pool()+"/"+image)
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		t.Fatal(err)
	}
	return "zc-relay.owner." + info.ID
}

// Only what the cluster itself has found counts: an error is no sign that the owner is dead.
func TestAFailedQuestionDoesNotMakeTheOwnerDead(t *testing.T) {
	owner, other := rados.NotifyAck{NotifierID: 17}, rados.NotifyAck{NotifierID: 18}
	for _, c := range []struct {
		answers []rados.NotifyAck
		err     error
		isAlive bool
		fails   bool
	}{
		{answers: []rados.NotifyAck{other, owner}, isAlive: true},
		{answers: []rados.NotifyAck{owner}, err: unix.ETIMEDOUT, isAlive: true},
		{answers: []rados.NotifyAck{other}},
		{answers: []rados.NotifyAck{other}, err: unix.ETIMEDOUT},
		{err: unix.ENOENT, fails: true},
		{err: unix.EPERM, fails: true},
		{err: unix.ENOTCONN, fails: true},
		{err: unix.ESHUTDOWN, fails: true},
	} {
		isAlive, err := rbd.HasAnswered("17", c.answers, c.err)
		if isAlive != c.isAlive || c.fails != (err != nil) || err != nil && !errors.Is(err, c.err) {
			t.Errorf("%+v: %v, %v", c, isAlive, err)
		}
	}
}

// A stand-by has no open volume that would notice a fence.
func TestAFencedStandByConnectsAnew(t *testing.T) {
	name := newImage(t)
	owner := mustOpen(t, backend(name, ",takeover,create=8MiB"))
	waiting := mustOpen(t, backend(name, ",takeover,group=other"))
	if err, _ := waiting.Ownership().State(); !errors.Is(err, status.NoLock) {
		t.Fatalf("the second target is no stand-by: %v", err)
	}
	var fenced string
	testkit.Eventually(t, "the group has a connection", func() bool {
		fenced = rbd.GroupAddress(t, "other")
		return fenced != ""
	})
	fenceByHand(t, fenced)
	volumetest.CloseVolume(t, owner)
	testkit.Eventually(t, "the stand-by owns the image", func() bool {
		err, _ := waiting.Ownership().State()
		return err == nil
	})
	if now := rbd.GroupAddress(t, "other"); now == fenced {
		t.Errorf("the stand-by still uses the fenced connection %s", now)
	}
	check(t, waiting, func() {})
	volumetest.CloseVolume(t, waiting)
}
