// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/inorder"
	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// actor is a side of a connection that acts at random.
type actor struct {
	*control
	peer      *actor
	random    *rand.Rand
	did       []string    // in the order in which it did it
	consumers []*consumer // those that live
	numbers   []int       // of these, in the order of their start
	started   int
	tasks     map[P]bool // submitted messages
	// What it sees of the other one, and the other's consumers by ID.
	saw  []string
	seen map[uint64]int
}

func (a *actor) act() {
	switch choice := a.random.IntN(10); {
	case choice < 5 && len(a.tasks) < 32:
		text := fmt.Sprintf("message %d", len(a.did))
		a.tasks[a.send(text)] = true
		a.did = append(a.did, text)
	case choice < 7 && len(a.consumers) < 4:
		c := newConsumer(a.t, a.control, 1)
		a.whilePeerReads(func() { is(a.t, call("doca_ctx_start", c.ctx), status.InProgress) })
		a.consumers, a.numbers = append(a.consumers, c), append(a.numbers, a.started)
		a.did = append(a.did, fmt.Sprintf("consumer %d", a.started))
		a.started++
	case choice < 8 && len(a.consumers) > 0:
		a.endConsumer(a.random.IntN(len(a.consumers)))
	default:
		for range a.random.IntN(20) {
			docatest.Progress(a.pe)
		}
	}
}

// endConsumer ends a consumer that runs. One that is still starting stays: it has perhaps not been
// announced yet, and then never would be.
func (a *actor) endConsumer(i int) {
	c := a.consumers[i]
	drain(c.pe)
	if stateOf(a.t, c.ctx) != running {
		return
	}
	a.whilePeerReads(func() { is(a.t, call("doca_ctx_stop", c.ctx), status.Success) })
	c.destroy()
	a.did = append(a.did, fmt.Sprintf("end of %d", a.numbers[i]))
	a.consumers, a.numbers = slices.Delete(a.consumers, i, i+1), slices.Delete(a.numbers, i, i+1)
}

// whilePeerReads progresses the peer's engine on another thread, so that messages get room there.
func (a *actor) whilePeerReads(f func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				docatest.Progress(a.peer.pe)
			}
		}
	}()
	f()
	close(done)
	<-ended
}

// note takes an event that is this side's.
func (a *actor) note(e docatest.Event) {
	switch e.Kind {
	case docatest.Completed:
		delete(a.tasks, e.Object)
		docatest.Raw("doca_task_free", e.Object)
	case docatest.Failed:
		a.t.Error("a message has failed")
	case docatest.Message:
		a.saw = append(a.saw, string(e.Data))
	case docatest.ConsumerNew:
		a.seen[e.A] = len(a.seen)
		a.saw = append(a.saw, fmt.Sprintf("consumer %d", a.seen[e.A]))
	case docatest.ConsumerExpired:
		a.saw = append(a.saw, fmt.Sprintf("end of %d", a.seen[e.A]))
	case docatest.Disconnected:
		a.saw = append(a.saw, "disconnection")
	}
}

// Each side sees what the other does in the order in which it does it: messages, the beginnings and
// ends of consumers, and the end of the connection. Small queues make messages wait.
func TestAPeersActionsAreSeenInTheirOrder(t *testing.T) {
	const rounds, steps = 5, 400
	configure(t, libdoca.Config{})
	defer func(former time.Duration) { inorder.Patience = former }(inorder.Patience)
	inorder.Patience = testkit.Patience
	random := seedtest.Random(t, 1)
	for range rounds {
		actors := startActors(t, random)
		collect := func() {
			for _, e := range docatest.Take() {
				for _, a := range actors {
					if e.Object == a.connection || a.tasks[e.Object] {
						a.note(e)
					}
				}
			}
		}
		for range steps {
			actors[random.IntN(2)].act()
			collect()
		}
		finish := func(what string, condition func() bool) {
			testkit.Eventually(t, what, func() bool {
				for _, a := range actors {
					drain(a.pe)
					for _, c := range a.consumers {
						drain(c.pe)
					}
				}
				collect()
				return condition()
			})
		}
		server, client := actors[0], actors[1]
		hasSeenAll := func() bool {
			return len(server.saw) >= len(client.did) && len(client.saw) >= len(server.did) &&
				len(server.tasks)+len(client.tasks) == 0
		}
		finish("each side has seen everything", hasSeenAll)
		for _, a := range actors {
			for len(a.consumers) > 0 {
				a.endConsumer(0)
			}
		}
		finish("each side has seen the end of all consumers", hasSeenAll)
		last := client.send("goodbye")
		client.tasks[last] = true
		until(t, "the last message is sent", func() bool { collect(); return !client.tasks[last] },
			client.pe)
		client.stop()
		client.did = append(client.did, "goodbye", "disconnection")
		finish("the server has seen the end", func() bool {
			return slices.Contains(server.saw, "disconnection")
		})
		for i, a := range actors {
			other := actors[1-i]
			if !slices.Equal(a.saw, other.did) {
				t.Fatalf("the %s did\n%q\nand the %s saw\n%q", other.side, other.did, a.side, a.saw)
			}
		}
		server.stop()
		client.destroy()
		server.destroy()
	}
}

// startActors connects a client to a server.
func startActors(t *testing.T, random *rand.Rand) [2]*actor {
	t.Helper()
	docatest.Take()
	p := &pair{rig: &rig{t: t}, server: newServer(t, 64), client: newClient(t, 64)}
	for _, c := range []*control{p.server, p.client} {
		ok(t, c.call("set_recv_queue_size", 1+random.IntN(4)))
	}
	p.connect()
	var actors [2]*actor
	for i, c := range []*control{p.server, p.client} {
		actors[i] = &actor{control: c, random: random, tasks: make(map[P]bool),
			seen: make(map[uint64]int)}
	}
	actors[0].peer, actors[1].peer = actors[1], actors[0]
	return actors
}

// Neither side reads what the other sends. Their consumers begin and end nevertheless.
func TestConsumersDoNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	configure(t, libdoca.Config{})
	actors := startActors(t, seedtest.Random(t, 1))
	tasks := make(map[P]bool)
	for _, a := range actors {
		for range 32 { // more than the peer has room for
			tasks[a.send("unread")] = true
		}
	}
	for _, a := range actors {
		c := newConsumer(t, a.control, 1)
		c.start() // only its own engine is progressed
		ok(t, call("doca_ctx_stop", c.ctx))
		c.destroy()
	}
	testkit.Eventually(t, "all messages are sent", func() bool {
		drain(actors[0].pe)
		drain(actors[1].pe)
		for _, e := range docatest.Take() {
			if e.Kind == docatest.Completed && tasks[e.Object] {
				delete(tasks, e.Object)
				docatest.Raw("doca_task_free", e.Object)
			}
		}
		return len(tasks) == 0
	})
	p := &pair{rig: &rig{t: t}, server: actors[0].control, client: actors[1].control}
	p.close()
}
