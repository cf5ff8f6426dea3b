// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// newSilentRelay returns a relay that keeps the memory of its sessions after they have ended, until
// the test releases it.
func newSilentRelay(t *testing.T) *fakeRelay {
	r := newFakeRelay(t)
	r.keepMemory.Store(true)
	t.Cleanup(func() {
		for len(r.imported) > 0 {
			release(t, <-r.imported)
		}
	})
	return r
}

func release(t *testing.T, imported *memory.Region) {
	t.Helper()
	if err := imported.Close(); err != nil {
		t.Error(err)
	}
}

func TestRequestsFailOnlyWhenTheRelayHasReleasedTheirBuffers(t *testing.T) {
	for name, end := range map[string]func(*fakeRelay){
		"the client's timeout":  func(*fakeRelay) {},
		"a cut of the relay":    func(r *fakeRelay) { r.cut() },
		"a protocol violation":  func(r *fakeRelay) { r.send([]byte("nonsense")) },
		"the end of the server": func(r *fakeRelay) { r.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newSilentRelay(t)
			v := r.open(100 * time.Millisecond)
			q := v.Queue(0)
			submit(t, q, 7)
			end(r)
			batch := make([]client.Result, testDepth)
			early := 0
			testkit.Eventually(t, "the session has failed", func() bool {
				early += q.Poll(batch)
				return v.Err() != nil
			})
			for range 100 {
				early += q.Poll(batch)
			}
			if early > 0 {
				t.Errorf("%d requests failed while the relay had their buffers", early)
			}
			release(t, <-r.imported)
			if early == 0 {
				got := results(t, q, 1)[0]
				if got.Tag != 7 || got.Quarantined || errors.Is(got.Err(), client.ErrQuarantined) ||
					got.Code == status.Success {
					t.Errorf("outcome is %+v", got)
				}
			}
			<-v.Done()
		})
	}
}

func TestASilentRelayKeepsTheBuffersInQuarantine(t *testing.T) {
	r := newSilentRelay(t)
	v := r.openWith(client.Config{IOTimeout: 50 * time.Millisecond,
		ReleaseTimeout: 50 * time.Millisecond})
	submit(t, v.Queue(0), 7)
	got := results(t, v.Queue(0), 1)[0]
	if err := got.Err(); got.Tag != 7 || !got.Quarantined || !errors.Is(err, status.TimeOut) ||
		!errors.Is(err, client.ErrQuarantined) {
		t.Errorf("outcome is %+v, error %v", got, err)
	}
	<-v.Done()
	imported := <-r.imported
	if err := imported.CopyIn(0, []byte("late")); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(v.Queue(0).Memory(), []byte("late")) {
		t.Error("the memory in quarantine is not accessible")
	}
	if v.Quarantined() == 0 {
		t.Error("no memory is reported to be in quarantine")
	}
	release(t, imported)
	if n := v.Quarantined(); n != 0 {
		t.Errorf("%d bytes that the relay has released are reported to be in quarantine", n)
	}
}

// A relay that is stopped may change the volume when it goes on, as long as its lease lasts.
func TestTheQuarantineBeginsWhenNoLeaseIsLeft(t *testing.T) {
	const lease = 200 * time.Millisecond
	r := newSilentRelay(t)
	r.leaseMs.Store(uint32(lease.Milliseconds()))
	v := r.openWith(client.Config{IOTimeout: testkit.Patience, ReleaseTimeout: time.Millisecond})
	submit(t, v.Queue(0), 7)
	ended := time.Now()
	r.cut()
	got := results(t, v.Queue(0), 1)[0]
	took := time.Since(ended)
	if least := lease + lease/100 + time.Second; !got.Quarantined || took < least {
		t.Errorf("outcome is %+v after %v, want quarantine after at least %v", got, took, least)
	}
	<-v.Done()
}

// What a relay has sent before it died may still arrive. A relay that says why it ends the session
// has waited itself.
func TestChangesOfADeadRelayFailWhenNoLeaseIsLeft(t *testing.T) {
	for name, test := range map[string]struct {
		leaseMs uint32
		end     func(*fakeRelay)
		least   time.Duration
	}{
		"it dies": {300, (*fakeRelay).cut, 1303 * time.Millisecond},
		"it says goodbye": {uint32(controlmsg.MaxLease.Milliseconds()), func(r *fakeRelay) {
			for i := range r.consumers { // or the connection could only be aborted
				_ = r.consumers[i].Close()
				_ = r.producers[i].Close()
			}
			r.farewell = status.Errorf(status.Shutdown, "made up")
			r.cancel()
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFakeRelay(t)
			r.leaseMs.Store(test.leaseMs)
			q := r.openWith(client.Config{IOTimeout: testkit.Patience}).Queue(0)
			for tag, kind := range []client.RequestType{client.Write, client.Read, client.Trim,
				client.Flush} {
				err := q.Submit(&client.Request{Type: kind, Tag: uint64(tag), Length: testBlock})
				if err != nil {
					t.Fatal(err)
				}
			}
			ended := time.Now()
			test.end(r)
			got := results(t, q, 2)
			if test.least > 0 && (len(got) != 2 || got[0].Tag%2 == 0 || got[1].Tag%2 == 0) {
				t.Errorf("the first results are %+v, want those of read and flush", got)
			}
			if got = append(got, results(t, q, 4-len(got))...); len(got) != 4 {
				t.Errorf("the results are %+v", got)
			}
			if took := time.Since(ended); took < test.least {
				t.Errorf("the changes failed after %v, want at least %v", took, test.least)
			}
		})
	}
}

// regionMappings counts the mappings of data memory in this process, by clients and by relays.
func regionMappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "/memfd:zc-relay data")
}

// openReconnecting opens a volume that reopens itself after any loss.
func openReconnecting(r *fakeRelay) *client.Volume { return r.openWith(reconnecting()) }

// reconnecting is the configuration of a volume that reopens itself after any loss.
func reconnecting() client.Config {
	return client.Config{
		IOTimeout: testkit.Patience, ReleaseTimeout: 50 * time.Millisecond,
		Reconnect: &retry.Policy{Total: retry.Within(testkit.Patience),
			FirstPause: time.Millisecond},
	}
}

// loseSession cuts the connection with a request outstanding, and waits for its result.
func loseSession(t *testing.T, r *fakeRelay, q *client.Queue) {
	t.Helper()
	submit(t, q, 1)
	r.cut()
	if got := results(t, q, 1)[0]; !got.Quarantined || got.Code != status.ConnectionReset {
		t.Errorf("outcome is %+v", got)
	}
	<-r.started
}

func TestAReopenedVolumeLeavesQuarantinedMemoryToTheRelay(t *testing.T) {
	r := newSilentRelay(t)
	v := openReconnecting(r)
	q := v.Queue(0)
	former := q.Memory()
	copy(former, "kept for repetition")
	loseSession(t, r, q)

	read := client.Request{Type: client.Read, Length: testBlock}
	var err error
	testkit.Eventually(t, "the queue has a session", func() bool {
		err = q.Submit(&read)
		return !errors.Is(err, status.Again)
	})
	if !errors.Is(err, client.ErrMemoryReplaced) || !errors.Is(err, status.BadState) {
		t.Fatalf("a read into memory that the relay has not released: %v", err)
	}
	if err := q.Submit(&client.Request{Type: client.Flush}); err != nil {
		t.Errorf("a flush, which needs no memory: %v", err)
	}
	old, current := <-r.imported, <-r.imported
	defer release(t, current)
	release(t, old) // yet the queue may still copy from it
	fresh := q.SwitchMemory()
	if &fresh[0] == &former[0] || &fresh[0] != &v.Memory()[0] || len(fresh) != len(former) {
		t.Error("the queue has not switched to other memory")
	}
	if &q.SwitchMemory()[0] != &fresh[0] {
		t.Error("switching again has an effect")
	}
	if copy(fresh, former[:4]); !bytes.HasPrefix(fresh, []byte("kept")) {
		t.Error("the content of the former memory is lost")
	}
	if n := regionMappings(t); n != 3 {
		t.Errorf("%d mappings of data memory, want the client's two and the relay's", n)
	}
	if err := q.Submit(&read); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the former memory is freed", func() bool { return regionMappings(t) == 2 })
	fresh[0]++
}

// loseMemoryTwice makes a silent relay keep two memories of a volume, more than it may.
func loseMemoryTwice(t *testing.T, r *fakeRelay, v *client.Volume) {
	t.Helper()
	q := v.Queue(0)
	loseSession(t, r, q)
	testkit.Eventually(t, "the queue has a session", func() bool {
		q.SwitchMemory()
		err := q.Submit(&client.Request{Type: client.Read, Length: testBlock})
		return err == nil
	})
	r.cut()
	if got := results(t, q, 1)[0]; !got.Quarantined {
		t.Errorf("outcome is %+v", got)
	}
}

func TestQuarantineIsBounded(t *testing.T) {
	r := newSilentRelay(t)
	v := r.openWith(client.Config{
		IOTimeout: testkit.Patience, ReleaseTimeout: 50 * time.Millisecond,
		Reconnect: &retry.Policy{Attempts: retry.Times(3), FirstPause: time.Millisecond},
	})
	loseMemoryTwice(t, r, v)
	<-v.Done()
	if err := v.Err(); !errors.Is(err, client.ErrQuarantineFull) ||
		!errors.Is(err, status.NoMemory) {
		t.Errorf("the volume ended with %v", err)
	}
	if n := regionMappings(t); n != 4 {
		t.Errorf("%d mappings of data memory, want two of the client and two of the relay", n)
	}
}

func TestAVolumeWaitsForTheReleaseOfMemoryInQuarantine(t *testing.T) {
	for name, which := range map[string]int{"the first": 0, "the last": 1} {
		t.Run(name, func(t *testing.T) {
			r := newSilentRelay(t)
			v := openReconnecting(r)
			loseMemoryTwice(t, r, v)
			kept := []*memory.Region{<-r.imported, <-r.imported}
			defer func() { release(t, kept[1-which]) }()
			release(t, kept[which])
			<-r.started
			q := v.Queue(0)
			testkit.Eventually(t, "the queue has a session", func() bool {
				q.SwitchMemory()
				err := q.Submit(&client.Request{Type: client.Read, Length: testBlock})
				return err == nil
			})
		})
	}
}

// A queue hears of new memory. Before it switches to that, the session with it is lost, too, and
// replaced, and the relay releases everything.
func TestMemoryIsKeptForAQueueThatHasYetToSwitchToIt(t *testing.T) {
	r := newSilentRelay(t)
	v := openReconnecting(r)
	q := v.Queue(0)
	loseSession(t, r, q)
	testkit.Eventually(t, "the queue hears of new memory", func() bool {
		err := q.Submit(&client.Request{Type: client.Read, Length: testBlock})
		return errors.Is(err, client.ErrMemoryReplaced)
	})
	release(t, <-r.imported)
	second := <-r.imported
	r.cut()
	<-r.started
	release(t, second)
	testkit.Eventually(t, "the volume has been reopened again",
		func() bool { return v.Reconnections().Count == 2 })
	v.FreeUnusedMemory()
	q.SwitchMemory()[0]++ // crashes if it is not mapped
}

func TestOpenTouchesAllDataMemory(t *testing.T) {
	v := newFakeRelay(t).open(testkit.Patience)
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(smaps), "/memfd:zc-relay data")
	_, rest, _ = strings.Cut(rest, "Rss:")
	line, _, _ := strings.Cut(rest, "\n")
	if got, want := strings.TrimSpace(line), fmt.Sprint(len(v.Memory())>>10, " kB"); got != want {
		t.Errorf("%s of the data memory are mapped, want %s", got, want)
	}
}

func TestLimitsOfTheProtocolAreCheckedBeforeAnythingElse(t *testing.T) {
	for name, config := range map[string]client.Config{
		"Queues":     {Queues: 100000},
		"Depth":      {Queues: 1, Depth: 1 << 20},
		"SyncDepth":  {SyncDepth: 1 << 20},
		"BufferSize": {BufferSize: 1<<32 - 1},
		"MemorySize": {MemorySize: 1<<64 - 1},
	} {
		config.Provider = emulated.New(emulated.Options{}) // which has no such device
		_, err := client.Open(context.Background(), config)
		if !errors.Is(err, status.TooBig) || !strings.Contains(err.Error(), name+" is") ||
			!strings.Contains(err.Error(), "limit") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A blocking method repeats its request for as long as the relay may take to come back, however
// often that happens.
func TestABlockingMethodOutlastsManyLosses(t *testing.T) {
	const losses = 40
	r := newFakeRelay(t)
	v, err := client.Open(t.Context(), client.Config{Provider: r.provider,
		Device: emulated.DefaultHostDevice, SyncDepth: 1, BufferSize: testBlock,
		ControlTimeout: testkit.Patience, IOTimeout: testkit.Patience,
		Reconnect: &retry.Policy{Total: retry.Within(testkit.Patience),
			FirstPause: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Abort)
	<-r.started
	flushed := make(chan error, 1)
	go func() { flushed <- v.Flush() }()
	for range losses {
		r.request()
		r.cut()
		<-r.started
		_, _ = r.consumers[0].Close(), r.producers[0].Close()
		r.consumers, r.producers = r.consumers[1:], r.producers[1:]
	}
	var result [iomsg.Size]byte
	iomsg.Encode(result[:], &iomsg.Message{Type: iomsg.Result, UserData: r.request().UserData})
	r.send(result[:])
	if err := <-flushed; err != nil {
		t.Error(err)
	}
}

func TestAVolumeIsReopenedOnDemand(t *testing.T) {
	r := newFakeRelay(t)
	reason := errors.New("a request hangs")
	if err := r.open(testkit.Patience).Reopen(reason); !errors.Is(err, status.NotSupported) {
		t.Errorf("a volume without a policy: %v", err)
	}
	v := openReconnecting(newFakeRelay(t))
	q := v.Queue(0)
	submit(t, q, 7)
	former := q.Session()
	if err := v.Reopen(reason); err != nil {
		t.Fatal(err)
	}
	if got := results(t, q, 1)[0]; got.Tag != 7 || got.Code != status.ConnectionReset {
		t.Errorf("outcome is %+v", got)
	}
	if q.Session() != former {
		t.Error("the session changes before all of its requests have been reported")
	}
	testkit.Eventually(t, "the queue has another session", func() bool {
		return q.Poll(make([]client.Result, 1)) == 0 && q.Session() > former
	})
}
