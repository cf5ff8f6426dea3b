// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/rbd"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(ownerVariable); text != "" {
		if err := writeForever(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("CEPH_CONF") == "" || os.Getenv("CEPH_POOL") == "" {
		fmt.Fprintln(os.Stderr, "these tests need a Ceph cluster: run make test-ceph")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

var images atomic.Int32

// newImage returns the name of an image that does not exist, and removes it after the test.
func newImage(t testing.TB) string {
	name := fmt.Sprintf("test-%d-%d", os.Getpid(), images.Add(1))
	t.Cleanup(func() { _ = exec.Command("rbd", "rm", "--no-progress", pool()+"/"+name).Run() })
	return name
}

func pool() string { return os.Getenv("CEPH_POOL") }

// backend returns the text of a backend.
func backend(image, options string) string {
	return fmt.Sprintf("disk=rbd:%s/%s,conf=%s%s", pool(), image, os.Getenv("CEPH_CONF"), options)
}

func open(t testing.TB, text string) (volume.Volume, error) {
	t.Helper()
	spec, err := volume.ParseSpec(text, 4096)
	if err != nil {
		return nil, err
	}
	spec.Logger = zap.NewNop()
	return volume.Open(spec)
}

func mustOpen(t testing.TB, text string) volume.Volume {
	t.Helper()
	v, err := open(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ceph runs one of Ceph's tools.
func ceph(t testing.TB, arguments ...string) string {
	t.Helper()
	out, err := exec.Command(arguments[0], arguments[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// TestATargetWaitsForTheOneThatCreatesTheImage makes an image that is as incomplete as while
// somebody creates it: its name is taken, but there is nothing behind it.
func TestATargetWaitsForTheOneThatCreatesTheImage(t *testing.T) {
	image := newImage(t)
	rados := func(input string, arguments ...string) {
		t.Helper()
		c := exec.Command("rados", append([]string{"-p", pool()}, arguments...)...)
		c.Stdin = strings.NewReader(input)
		if output, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", c, err, output)
		}
	}
	rados("\x04\x00\x00\x00none", "put", "rbd_id."+image, "-")
	opened := make(chan error, 1)
	go func() {
		v, err := open(t, backend(image, ",create=8MiB"))
		if err == nil {
			volumetest.CloseVolume(t, v)
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("opening an incomplete image: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	rados("", "rm", "rbd_id."+image)
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

func TestVolume(t *testing.T) {
	volumetest.Run(t, func(t testing.TB) (volume.Volume, error) {
		return open(t, backend(newImage(t), ",create=32MiB"))
	})
}

// What was never written, or trimmed away, is a hole; the content of a parent is none.
func TestHolesAreTold(t *testing.T) {
	const object = 4 << 20
	name := newImage(t)
	v := mustOpen(t, backend(name, ",create=1GiB"))
	queue := volumetest.NewQueue(t, v, 1)
	for _, at := range []uint64{0, 10*object + 8192, 11 * object, 200 * object} {
		r := volume.Request{Operation: iomsg.OpWrite, Offset: at, Length: 4096,
			Buffer: bytes.Repeat([]byte{1}, 4096)}
		if volumetest.Do(t, queue, &r); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	trim := volume.Request{Operation: iomsg.OpTrim, Offset: 11 * object, Length: object}
	if volumetest.Do(t, queue, &trim); trim.Err != nil {
		t.Fatal(trim.Err)
	}
	checkData(t, queue, map[uint64]bool{0: true, 10: true, 200: true})
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)

	clone := newImage(t)
	parent := pool() + "/" + name + "@s"
	ceph(t, "rbd", "snap", "create", "--no-progress", parent)
	ceph(t, "rbd", "snap", "protect", parent)
	t.Cleanup(func() { // after the clone has been removed, and before the parent is
		ceph(t, "rbd", "rm", "--no-progress", pool()+"/"+clone)
		ceph(t, "rbd", "snap", "unprotect", parent)
		ceph(t, "rbd", "snap", "rm", "--no-progress", parent)
	})
	ceph(t, "rbd", "clone", parent, pool()+"/"+clone)
	v = mustOpen(t, backend(clone, ""))
	queue = volumetest.NewQueue(t, v, 1)
	w := volume.Request{Operation: iomsg.OpWrite, Offset: 50 * object, Length: 4096,
		Buffer: make([]byte, 4096)}
	if volumetest.Do(t, queue, &w); w.Err != nil {
		t.Fatal(w.Err)
	}
	checkData(t, queue, map[uint64]bool{0: true, 10: true, 50: true, 200: true})
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}

// checkData compares the objects that have data, of a volume of 1 GiB, with those expected.
func checkData(t *testing.T, queue volume.Queue, want map[uint64]bool) {
	t.Helper()
	const object, end = 4 << 20, 1 << 30
	got := map[uint64]bool{}
	for position := uint64(0); position < end; {
		r := volume.Request{Operation: iomsg.OpExtents, Offset: position, Length: end - position,
			Buffer: make([]byte, 16*iomsg.ExtentSize)}
		if volumetest.Do(t, queue, &r); r.Err != nil {
			t.Fatal(r.Err)
		}
		extents, err := iomsg.DecodeExtents(nil, r.Buffer, r.Length)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range extents {
			if e.Flags&iomsg.Hole == 0 {
				for at := position; at < position+e.Length; at += 4096 {
					got[at/object] = true
				}
			}
			position += e.Length
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("objects %v have data, want %v", slices.Sorted(maps.Keys(got)),
			slices.Sorted(maps.Keys(want)))
	}
}

func BenchmarkVolume(b *testing.B) {
	volumetest.Benchmark(b, func(b testing.TB) (volume.Volume, error) {
		return open(b, backend(newImage(b), ",create=32MiB"))
	})
}

func TestTheUUIDFollowsTheImageAndNotItsName(t *testing.T) {
	name, other := newImage(t), newImage(t)
	v := mustOpen(t, backend(name, ",create=8MiB"))
	before := v.Info()
	volumetest.CloseVolume(t, v)
	ceph(t, "rbd", "rename", pool()+"/"+name, pool()+"/"+other)
	v = mustOpen(t, backend(other, ""))
	if after := v.Info(); after.UUID != before.UUID || after.WriteVerifier == 0 ||
		after.WriteVerifier != before.WriteVerifier {
		t.Errorf("%+v became %+v", before, after)
	}
	volumetest.CloseVolume(t, v)
	v = mustOpen(t, backend(name, ",create=8MiB"))
	if v.Info().UUID == before.UUID {
		t.Error("another image of the same name has the same UUID")
	}
	volumetest.CloseVolume(t, v)
}

// Reads into registered memory take no detour; the suite covers the heap.
func TestReadsGoStraightIntoMappedMemory(t *testing.T) {
	v := mustOpen(t, backend(newImage(t), ",create=8MiB"))
	defer volumetest.CloseVolume(t, v)
	region, err := memory.Alloc("test", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = region.Close() }()
	queue := volumetest.NewQueue(t, v, 2)
	defer volumetest.CloseQueue(t, queue)
	content := bytes.Repeat([]byte("zc-relay"), 64<<10>>3)
	copy(region.Bytes(), content)
	w := volume.Request{Operation: iomsg.OpWrite, Offset: 4 << 20, Length: 64 << 10,
		Buffer: region.Bytes()[:64<<10]}
	r := volume.Request{Operation: iomsg.OpRead, Offset: 4 << 20, Length: 64 << 10,
		Buffer: region.Bytes()[512<<10:][:64<<10]}
	volumetest.Do(t, queue, &w)
	volumetest.Do(t, queue, &r)
	if w.Err != nil || r.Err != nil || !bytes.Equal(r.Buffer, content) {
		t.Errorf("write: %v; read: %v", w.Err, r.Err)
	}
}

// librbd's discard leaves old content or zeroes; write zeroes keeps its promise at any size.
func TestWriteZeroesZeroesWhatDiscardMayKeep(t *testing.T) {
	v := mustOpen(t, backend(newImage(t), ",create=16MiB"))
	defer volumetest.CloseVolume(t, v)
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	const length = 8 << 20
	content := bytes.Repeat([]byte{0xa5}, length)
	read := make([]byte, length)
	for _, c := range []struct {
		offset, length uint64
		deallocate     bool
	}{
		{4096, 4096, true}, {4096, 4096, false}, {4096, 128 << 10, true}, {0, 4 << 20, true},
		{4096, 5 << 20, false}, {0, length, true},
	} {
		w := volume.Request{Operation: iomsg.OpWrite, Length: length, Buffer: content}
		z := volume.Request{Operation: iomsg.OpWriteZeroes, Offset: c.offset, Length: c.length,
			Deallocate: c.deallocate}
		r := volume.Request{Operation: iomsg.OpRead, Length: length, Buffer: read}
		for _, request := range []*volume.Request{&w, &z, &r} {
			volumetest.Do(t, queue, request)
			if request.Err != nil {
				t.Fatal(request.Err)
			}
		}
		want := bytes.Clone(content)
		clear(want[c.offset : c.offset+c.length])
		if !bytes.Equal(read, want) {
			t.Errorf("%+v: the content is wrong", c)
		}
	}
}

func TestAResizedImageChangesTheVolume(t *testing.T) {
	name := newImage(t)
	v := mustOpen(t, backend(name, ",create=8MiB"))
	defer volumetest.CloseVolume(t, v)
	old := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, old)
	for _, mib := range []uint64{12, 4} {
		ceph(t, "rbd", "resize", "--no-progress", "--allow-shrink", "--size", fmt.Sprint(mib),
			pool()+"/"+name)
		testkit.Eventually(t, "the volume has the new size", func() bool { return v.Info().Size == mib<<20 })
	}
	// A queue from before, which does not know of the cut, gets errors instead of data.
	r := volume.Request{Operation: iomsg.OpWrite, Offset: 6 << 20, Length: 4096,
		Buffer: make([]byte, 4096)}
	volumetest.Do(t, old, &r)
	if !errors.Is(r.Err, status.IOFailed) {
		t.Errorf("a write past the end returned %v", r.Err)
	}
}

func TestOnlyOneVolumeWritesToAnImage(t *testing.T) {
	name := newImage(t)
	v := mustOpen(t, backend(name, ",create=8MiB"))
	// Another group has a connection of its own, as another target has.
	if second, err := open(t, backend(name, ",group=other")); !errors.Is(err, status.InUse) ||
		!strings.Contains(err.Error(), "is locked") || !strings.Contains(err.Error(), "alive") {
		t.Errorf("a second volume on the image: %v, %v", second, err)
	}
	reader := mustOpen(t, backend(name, ",group=other,readonly"))
	if !reader.Info().ReadOnly || reader.Info().UUID != v.Info().UUID {
		t.Errorf("reader: %+v", reader.Info())
	}
	volumetest.CloseVolume(t, reader)
	volumetest.CloseVolume(t, v)
	volumetest.CloseVolume(t, mustOpen(t, backend(name, ",group=other")))
}

func TestAFencedVolumeFailsEverythingAndSaysWhy(t *testing.T) {
	name := newImage(t)
	v := mustOpen(t, backend(name, ",create=8MiB"))
	queue := volumetest.NewQueue(t, v, 1)
	address := strings.Fields(strings.SplitAfter(ceph(t, "rbd", "status", pool()+"/"+name),
		"watcher=")[1])[0]
	fenceByHand(t, address)
	r := volume.Request{Operation: iomsg.OpWrite, Length: 4096, Buffer: make([]byte, 4096)}
	testkit.Eventually(t, "the OSDs know the fence", func() bool {
		volumetest.Do(t, queue, &r)
		return r.Err != nil
	})
	if !strings.Contains(r.Err.Error(), "fenced") {
		t.Errorf("the fenced write returned %v", r.Err)
	}
	r.Operation = iomsg.OpRead
	volumetest.Do(t, queue, &r)
	if !errors.Is(r.Err, status.IOFailed) {
		t.Errorf("a read after that returned %v", r.Err)
	}
	volumetest.CloseQueue(t, queue)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	_ = v.Close(ctx) // reports that it could not flush
}

func TestWrongClustersAreExplained(t *testing.T) {
	name := newImage(t)
	volumetest.CloseVolume(t, mustOpen(t, backend(name, ",create=8MiB")))
	plain := newImage(t)
	ceph(t, "rbd", "create", "--size", "8", "--image-feature", "layering", pool()+"/"+plain)
	cached := newImage(t)
	ceph(t, "rbd", "create", "--size", "8", pool()+"/"+cached)
	ceph(t, "rbd", "config", "image", "set", pool()+"/"+cached, "rbd_cache", "true")
	for text, want := range map[string]string{
		backend(newImage(t), ""):                            "add ,create=SIZE",
		backend(plain, ""):                                  "rbd feature enable",
		backend(cached, ""):                                 "rbd config image remove " + pool() + "/" + cached,
		backend(name, ",id=nobody"):                         "client.nobody",
		"disk=rbd:nowhere/i,conf=" + os.Getenv("CEPH_CONF"): "ceph osd pool create",
		"disk=rbd:p/i,conf=/nonexistent":                    "conf=PATH",
	} {
		if _, err := open(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A cluster that does not answer delays only the volumes of its own group, which all get the same
// error.
func TestASilentClusterDelaysNoOtherGroup(t *testing.T) {
	silent, release := errors.New("no monitor answered"), make(chan struct{})
	begun, restore := rbd.DelayConnect("silent", release, silent)
	defer restore()
	failed := make(chan error, 2)
	for range cap(failed) {
		go func() {
			_, err := open(t, backend("any", ",group=silent"))
			failed <- err
		}()
	}
	<-begun
	served := make(chan struct{})
	go func() {
		defer close(served)
		volumetest.CloseVolume(t, mustOpen(t, backend(newImage(t), ",create=8MiB")))
	}()
	select {
	case <-served:
	case <-time.After(testkit.Patience):
		t.Error("a volume of another group was not opened and closed within 2 minutes")
	}
	close(release)
	for range cap(failed) {
		if err := <-failed; !errors.Is(err, silent) {
			t.Errorf("a volume of the silent cluster: %v", err)
		}
	}
	<-served
}

// Volumes of a group share the threads of a connection; each adds the thread that completes.
func TestThreadsAreBounded(t *testing.T) {
	first := mustOpen(t, backend(newImage(t), ",create=8MiB"))
	defer volumetest.CloseVolume(t, first)
	before := threads(t)
	const more = 8
	for range more {
		defer volumetest.CloseVolume(t, mustOpen(t, backend(newImage(t), ",create=8MiB")))
	}
	// Go's runtime may start a few for calls of C that block.
	if after := threads(t); after > before+2*more+4 {
		t.Errorf("%d volumes more have added %d threads", more, after-before)
	} else {
		t.Logf("one volume: %d threads; %d more add %d", before, more, after-before)
	}
}

func threads(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
