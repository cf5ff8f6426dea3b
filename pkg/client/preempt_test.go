// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// close ends the session as a relay does that has a reason: its queues first.
func (r *fakeRelay) close(reason error) {
	for i := range r.consumers {
		_ = r.consumers[i].Close()
		_ = r.producers[i].Close()
	}
	r.responder.Load().Close(reason)
}

func TestAPreemptedVolumeIsNotReopened(t *testing.T) {
	preempted := status.Errorf(status.InUse, "preempted by another program")
	fail := func(r *fakeRelay) {
		message := make([]byte, iomsg.Size)
		request := r.request()
		iomsg.Encode(message, &request)
		iomsg.TurnIntoResult(message, status.InUse)
		r.send(message)
	}
	nothing := func(*fakeRelay) {}
	for name, test := range map[string]struct {
		end        func(r *fakeRelay)
		afterwards func(r *fakeRelay) // when the outcome of the request is known
	}{
		"with a reason": {func(r *fakeRelay) { r.close(preempted) }, nothing},
		"with a response and a reason": {func(r *fakeRelay) { fail(r); r.close(preempted) },
			nothing},
		"with a response, by a lost relay": {fail, (*fakeRelay).cut},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFakeRelay(t)
			v := openReconnecting(r)
			q := v.Queue(0)
			submit(t, q, 7)
			test.end(r)
			if got := results(t, q, 1)[0]; got.Tag != 7 || got.Code != status.InUse {
				t.Errorf("the outcome is %+v, want IN_USE", got)
			}
			test.afterwards(r)
			select {
			case <-v.Done():
			case <-r.started:
				t.Fatal("the volume is reopened")
			}
			if err := v.Err(); !errors.Is(err, client.ErrPreempted) {
				t.Errorf("the volume ended with %v, want ErrPreempted", err)
			}
			err := q.Submit(&client.Request{Type: client.Read, Length: testBlock})
			if !errors.Is(err, status.InUse) {
				t.Errorf("a later request fails with %v, want IN_USE", err)
			}
			if err := v.Reopen(preempted); err != nil {
				t.Error(err)
			}
			q.Poll(make([]client.Result, 1))
			if err := v.Err(); !errors.Is(err, client.ErrPreempted) {
				t.Errorf("the volume that shall be reopened ended with %v", err)
			}
		})
	}
}

// A device that is in use is no owner that has taken the volume.
func TestAnErrorOfThisSideWithTheCodeOfPreemptIsAPassingOne(t *testing.T) {
	r := newFakeRelay(t)
	v := openReconnecting(r)
	q := v.Queue(0)
	submit(t, q, 7)
	if err := v.Reopen(status.Errorf(status.InUse, "a busy device")); err != nil {
		t.Fatal(err)
	}
	if got := results(t, q, 1)[0]; got.Code != status.ConnectionReset {
		t.Errorf("the outcome is %+v, want CONNECTION_RESET", got)
	}
	testkit.Receive(t, "the next session", r.started)
}

func TestPreemptConcernsTheFirstSessionOnly(t *testing.T) {
	r := newFakeRelay(t, func(m *controlmsg.OpenVolumeReply) { m.HolderID = 0xabc })
	r.holder.Store(0xdef)
	v := r.openWith(client.Config{Preempt: "0000000000000abc", IOTimeout: testkit.Patience,
		Reconnect: &retry.Policy{Total: retry.Within(testkit.Patience)}})
	if m := r.configured.Load(); m.Preempt != 0xabc {
		t.Errorf("the first session replaces holder %v", m.Preempt)
	}
	if info := v.Info(); info.HolderID != "0000000000000abc" ||
		info.OwnHolderID != "0000000000000def" {
		t.Errorf("info: %+v", info)
	}
	r.cut()
	testkit.Receive(t, "the next session", r.started)
	if m := r.configured.Load(); m.Preempt != 0 {
		t.Errorf("a later session replaces holder %v", m.Preempt)
	}
}

func TestOpenRejectsAHolderThatCannotBeReplaced(t *testing.T) {
	r := newFakeRelay(t) // which does not know preempt
	for holder, want := range map[string]struct {
		code status.Code
		text string
	}{
		"abc":              {status.InvalidValue, `holder "abc"`},
		"0000000000000abc": {status.NotSupported, "upgrade"},
	} {
		_, err := client.Open(t.Context(), client.Config{Provider: r.provider,
			Device: emulated.DefaultHostDevice, ControlTimeout: testkit.Patience, Preempt: holder})
		if !errors.Is(err, want.code) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("open in place of holder %q: %v, want %v with %q", holder, err, want.code,
				want.text)
		}
	}
}
