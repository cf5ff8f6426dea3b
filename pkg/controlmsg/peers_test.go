// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// losses says whose messages a network loses.
type losses struct{ ofRelay, ofTarget atomic.Bool }

// path is a transport over a network that may lose everything.
type path struct {
	controlmsg.Transport
	lost *atomic.Bool
}

func (p path) Send(ctx context.Context, message []byte) error {
	if p.lost.Load() {
		return nil
	}
	return p.Transport.Send(ctx, message)
}

// processes are a relay and a target with any number of conversations.
type processes struct {
	relay, target *controlmsg.Peers
	keepAlives    atomic.Int64 // that have arrived on either side
}

func newProcesses() *processes {
	return &processes{relay: controlmsg.NewPeers(), target: controlmsg.NewPeers()}
}

// converse begins a conversation in which the relay answers for an instance.
func (p *processes) converse(t *testing.T, instance byte) (r *controlmsg.Requester,
	lost *losses) {
	t.Helper()
	count := func(*controlmsg.KeepAlive) error {
		p.keepAlives.Add(1)
		return nil
	}
	lost = &losses{}
	near, far := controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
	target := watching(controlmsg.RoleTarget)
	target.Peers, target.OnKeepAlive, target.AnnounceEvery = p.target, count, time.Second
	controlmsgtest.ServeOn(t, path{far, &lost.ofTarget}, target, acceptAll())
	relay := watching(controlmsg.RoleRelay)
	relay.Peers, relay.OnKeepAlive = p.relay, count
	relay.Announce = func(m *controlmsg.KeepAlive) {
		m.Answer = lease.Answer{Instance: lease.Instance{instance}}
	}
	r = newRequester(t, relay, path{near, &lost.ofRelay})
	mustCall(t, r, &controlmsg.OpenVolume{})
	r.Announce()
	synctest.Wait()
	return r, lost
}

func TestConversationsOfTwoProcessesShareTheirKeepAlives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcesses()
		var all []*controlmsg.Requester
		for range 100 {
			r, _ := p.converse(t, 1)
			all = append(all, r)
		}
		before := p.keepAlives.Load()
		time.Sleep(time.Minute)
		if sent := p.keepAlives.Load() - before; sent > 4*60+4 {
			t.Errorf("%d keep-alives in a minute", sent)
		}
		for len(all) > 1 { // the last one keeps alive what is left
			last := len(all) - 1
			all[last].Close(nil)
			all = all[:last]
		}
		time.Sleep(time.Hour)
		mustCall(t, all[0], &controlmsg.OpenVolume{})
	})
}

func TestASilentProcessEndsAllItsConversations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcesses()
		type conversation struct {
			*controlmsg.Requester
			lost *losses
		}
		var all []conversation
		for range 10 {
			r, lost := p.converse(t, 1)
			all = append(all, conversation{r, lost})
		}
		time.Sleep(time.Minute)
		for _, c := range all {
			c.lost.ofTarget.Store(true)
		}
		begun := time.Now()
		for _, c := range all {
			<-c.Done()
			checkError(t, "Err", c.Err(), status.TimeOut, "has been silent for")
		}
		if silent := time.Since(begun); silent < 4*time.Second || silent > 5*time.Second {
			t.Errorf("declared dead after %v", silent)
		}
		r, _ := p.converse(t, 1) // the processes can talk again
		time.Sleep(time.Minute)
		mustCall(t, r, &controlmsg.OpenVolume{})
	})
}

// TestKeepAlivesOutliveThePathOfOneConversation loses what one of three conversations sends. Only
// that one may suffer, and it does when it has something to say.
func TestKeepAlivesOutliveThePathOfOneConversation(t *testing.T) {
	for broken := range 3 {
		synctest.Test(t, func(t *testing.T) {
			p := newProcesses()
			var all []*controlmsg.Requester
			for i := range 3 {
				r, lost := p.converse(t, 1)
				defer time.AfterFunc(time.Minute, func() {
					lost.ofRelay.Store(i == broken)
					lost.ofTarget.Store(i == broken)
				}).Stop()
				all = append(all, r)
			}
			time.Sleep(time.Minute - time.Millisecond)
			// What has brought the latest message is what breaks.
			mustCall(t, all[broken], &controlmsg.OpenVolume{})
			time.Sleep(time.Hour)
			for i, r := range all {
				if r.Err() != nil {
					t.Errorf("conversation %d, while %d is broken: %v", i, broken, r.Err())
				}
			}
			_, err := all[broken].Call(t.Context(), &controlmsg.OpenVolume{})
			checkError(t, "Call", err, status.TimeOut, "")
		})
	}
}

// TestAnInstanceDoesNotSpeakForAnother is about two relays at a target, and two targets of a relay.
func TestAnInstanceDoesNotSpeakForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcesses()
		alive, _ := p.converse(t, 1)
		dead, lost := p.converse(t, 2)
		lost.ofTarget.Store(true)
		time.Sleep(6 * time.Second)
		checkError(t, "Err", dead.Err(), status.TimeOut, "has been silent for")
		if alive.Err() != nil {
			t.Error(alive.Err())
		}
	})
}
