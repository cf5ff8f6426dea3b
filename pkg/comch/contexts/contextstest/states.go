// SPDX-License-Identifier: Apache-2.0

package contextstest

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *suite) testContextStates(t *testing.T) {
	t.Run("ServerAllowsWhatItsStateDoes", s.testServerStates)
	t.Run("ClientAllowsWhatItsStateDoes", s.testClientStates)
	t.Run("ConsumerAllowsWhatItsStateDoes", s.testConsumerStates)
	t.Run("ProducerAllowsWhatItsStateDoes", s.testProducerStates)
	t.Run("TasksBelongToOneSideAtATime", s.testTaskOwnership)
	t.Run("FastPathTasksBelongToOneSideAtATime", s.testFastPathOwnership)
	t.Run("PoolsDoNotGrow", s.testPools)
	t.Run("IdleContextsStartAgain", s.testRestart)
}

// subject is a context and its operations.
type subject struct {
	stateful
	configure, start, disconnect func() error
	// allocate also frees the task; submit submits a task that is kept for this.
	allocate, submit func() error
}

// check tries every operation that the present state does not allow.
func (x subject) check(t *testing.T) {
	t.Helper()
	state := x.State()
	for name, o := range map[string]struct {
		call    func() error
		allowed []progress.State
	}{
		"configure":  {x.configure, []progress.State{progress.Idle}},
		"start":      {x.start, []progress.State{progress.Idle}},
		"destroy":    {x.Destroy, []progress.State{progress.Idle}},
		"allocate":   {x.allocate, []progress.State{progress.Running, progress.Stopping}},
		"submit":     {x.submit, []progress.State{progress.Running, progress.Stopping}},
		"stop":       {x.Stop, []progress.State{progress.Running, progress.Stopping}},
		"disconnect": {x.disconnect, []progress.State{progress.Running}},
	} {
		if o.call == nil || contains(o.allowed, state) {
			continue
		}
		wantCode(t, name+" of a context that is "+state.String(), o.call(), status.BadState)
		if x.State() != state {
			t.Fatalf("the rejected %s changed the state from %v to %v", name, state, x.State())
		}
	}
}

func contains(states []progress.State, state progress.State) bool {
	for _, s := range states {
		if s == state {
			return true
		}
	}
	return false
}

func (s *suite) testServerStates(t *testing.T) {
	c := s.newContextPair(t)
	server := c.server
	task, err := server.AllocateSend(c.atServer, []byte("kept"))
	c.must(err)
	x := subject{
		stateful:   server,
		configure:  func() error { return server.Configure(server.serverConfig()) },
		start:      func() error { return server.Start(c.engine) },
		disconnect: func() error { return server.Disconnect(c.atServer) },
		allocate: func() error {
			more, err := server.AllocateSend(c.atServer, nil)
			if err == nil {
				return more.Free()
			}
			return err
		},
		submit: task.Submit,
	}
	x.check(t)
	c.must(x.allocate())
	c.must(server.Stop())
	c.checkStopping(x, &server.transitions, progress.Idle, progress.Running, progress.Stopping,
		progress.Idle)
	c.must(server.Destroy())
	wantCode(t, "start a destroyed server", x.start(), status.BadState)
	wantCode(t, "destroy a destroyed server", server.Destroy(), status.BadState)
}

// checkStopping checks a server or client that is stopping with one task, until it is idle.
func (c *contextPair) checkStopping(x subject, seen *transitions, want ...progress.State) {
	c.t.Helper()
	x.check(c.t)
	c.must(x.Stop()) // allowed while stopping
	c.must(x.submit())
	completions := &c.server.completions
	if x.stateful == stateful(c.client) {
		completions = &c.client.completions
	}
	c.await("the flush of the task", func() bool { return len(*completions) == 1 })
	wantCode(c.t, "task submitted while stopping", (*completions)[0].err, status.Shutdown)
	c.settle()
	if got := x.State(); got != progress.Stopping {
		c.t.Fatalf("context with a task is %v", got)
	}
	c.must(x.allocate())
	c.must((*completions)[0].task.Free())
	*completions = nil
	c.awaitState(x, progress.Idle)
	x.check(c.t)
	seen.check(c.t, want...)
}

func (s *suite) testClientStates(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(nil)
	client := h.newClient(server.name, nil)
	_, err := client.Connection()
	wantCode(t, "connection of an idle client", err, status.BadState)
	x := subject{
		stateful: client,
		configure: func() error {
			return client.Configure(contexts.ClientConfig{ControlConfig: client.controlConfig()})
		},
		start:    func() error { return client.Start(h.engine) },
		allocate: func() error { _, err := client.AllocateSend(nil, nil); return err },
	}
	x.check(t)
	h.must(client.Start(h.engine))
	if got := client.State(); got != progress.Starting {
		t.Fatalf("client is %v after start", got)
	}
	x.check(t)
	_, err = client.Connection()
	wantCode(t, "connection of a starting client", err, status.BadState)
	h.awaitState(client, progress.Running)
	atClient, err := client.Connection()
	h.must(err)
	task, err := client.AllocateSend(atClient, nil)
	h.must(err)
	x.submit = task.Submit
	x.allocate = func() error {
		more, err := client.AllocateSend(atClient, nil)
		if err == nil {
			return more.Free()
		}
		return err
	}
	x.check(t)
	h.must(client.Stop())
	c := &contextPair{harness: h, server: server, client: client}
	c.checkStopping(x, &client.transitions, progress.Idle, progress.Starting, progress.Running,
		progress.Stopping,
		progress.Idle)
}

func (s *suite) testConsumerStates(t *testing.T) {
	c := s.newContextPair(t)
	r := c.newReceiver(c.atClient)
	x := subject{
		stateful:  r,
		configure: func() error { return r.Configure(r.config()) },
		start:     func() error { return r.Start(c.engine) },
		allocate: func() error {
			task, err := r.AllocateReceive(0, 1)
			if err == nil {
				return task.Free()
			}
			return err
		},
	}
	x.check(t)
	c.must(r.Start(c.engine))
	if got := r.State(); got != progress.Starting {
		t.Fatalf("consumer is %v after start", got)
	}
	x.check(t)
	c.awaitState(r, progress.Running)
	task, err := r.AllocateReceive(0, 1)
	c.must(err)
	x.submit = task.Submit
	x.check(t)
	c.must(x.allocate())
	c.must(r.Stop())
	x.check(t)
	c.must(r.Stop())
	c.must(x.submit())
	c.await("the flush of the task", func() bool { return len(r.failed) == 1 })
	wantCode(t, "receive submitted while stopping", r.errs[0], status.Shutdown)
	c.must(x.allocate())
	c.settle()
	if got := r.State(); got != progress.Stopping {
		t.Fatalf("consumer with a task is %v", got)
	}
	c.must(task.Free())
	c.awaitState(r, progress.Idle)
	x.check(t)
	r.check(t, progress.Idle, progress.Starting, progress.Running, progress.Stopping, progress.Idle)
	c.must(r.Destroy())
	wantCode(t, "start a destroyed consumer", r.Start(c.engine), status.BadState)
}

func (s *suite) testProducerStates(t *testing.T) {
	c := s.newContextPair(t)
	p := c.newTransmitter(c.atServer)
	x := subject{
		stateful:  p,
		configure: func() error { return p.Configure(p.config()) },
		start:     func() error { return p.Start(c.engine) },
		allocate: func() error {
			task, err := p.AllocateSend(1, nil, nil)
			if err == nil {
				return task.Free()
			}
			return err
		},
	}
	x.check(t)
	c.must(p.Start(c.engine))
	if got := p.State(); got != progress.Running {
		t.Fatalf("producer is %v after start", got)
	}
	task, err := p.AllocateSend(1, nil, nil)
	c.must(err)
	x.submit = task.Submit
	x.check(t)
	c.must(x.allocate())
	c.must(p.Stop())
	x.check(t)
	c.must(p.Stop())
	c.must(x.submit())
	c.await("the flush of the task", func() bool { return len(p.failed) == 1 })
	wantCode(t, "send submitted while stopping", p.errs[0], status.Shutdown)
	c.settle()
	if got := p.State(); got != progress.Stopping {
		t.Fatalf("producer with a task is %v", got)
	}
	c.must(task.Free())
	c.awaitState(p, progress.Idle)
	x.check(t)
	p.check(t, progress.Idle, progress.Running, progress.Stopping, progress.Idle)
}

// heldTask is the common part of tasks of all kinds.
type heldTask interface {
	Submit() error
	Free() error
}

// checkOwnership checks a task through its life. complete makes it complete.
func (h *harness) checkOwnership(task heldTask, complete func()) {
	h.t.Helper()
	for range 2 { // a completed task can be submitted again
		h.must(task.Submit())
		wantCode(h.t, "submit a submitted task", task.Submit(), status.InUse)
		wantCode(h.t, "free a submitted task", task.Free(), status.InUse)
		complete()
	}
	h.must(task.Free())
	wantCode(h.t, "free a freed task", task.Free(), status.BadState)
	wantCode(h.t, "submit a freed task", task.Submit(), status.BadState)
}

func (s *suite) testTaskOwnership(t *testing.T) {
	c := s.newContextPair(t)
	task, err := c.client.AllocateSend(c.atClient, []byte("x"))
	c.must(err)
	task.UserData = "mine"
	done := 0
	c.checkOwnership(task, func() {
		done++
		c.await("the completion", func() bool { return len(c.client.completions) == done })
		if got := c.client.completions[done-1]; got.task != task || got.err != nil ||
			task.UserData != "mine" {
			t.Errorf("completed: %+v with user data %v", got, task.UserData)
		}
	})
}

func (s *suite) testFastPathOwnership(t *testing.T) {
	s.bothLinks(t, func(l *link, _, _ *contexts.Connection) {
		receive, err := l.receiver.AllocateReceive(0, bufferSize)
		l.must(err)
		send, err := l.transmitter.AllocateSend(l.receiver.ID(), []byte("x"), nil)
		l.must(err)
		for i := range 2 {
			l.must(receive.Submit())
			wantCode(l.t, "change the buffer of a submitted task", receive.SetBuffer(0, 1),
				status.InUse)
			wantCode(l.t, "submit a submitted receive", receive.Submit(), status.InUse)
			wantCode(l.t, "free a submitted receive", receive.Free(), status.InUse)
			l.must(send.Submit())
			wantCode(l.t, "change a submitted send", send.Set(1, nil, nil), status.InUse)
			wantCode(l.t, "submit a submitted send", send.Submit(), status.InUse)
			wantCode(l.t, "free a submitted send", send.Free(), status.InUse)
			l.awaitOutcomes(i+1, 0, i+1, 0)
		}
		l.must(receive.Free())
		l.must(send.Free())
		wantCode(l.t, "free a freed receive", receive.Free(), status.BadState)
		wantCode(l.t, "submit a freed receive", receive.Submit(), status.BadState)
		wantCode(l.t, "change a freed receive", receive.SetBuffer(0, 1), status.BadState)
		wantCode(l.t, "free a freed send", send.Free(), status.BadState)
		wantCode(l.t, "submit a freed send", send.Submit(), status.BadState)
		wantCode(l.t, "change a freed send", send.Set(1, nil, nil), status.BadState)
	})
}

func (s *suite) testPools(t *testing.T) {
	c := s.newContextPair(t)
	l := c.newLink(c.atClient, c.atServer)
	for name, allocate := range map[string]func() (heldTask, error){
		"control send": func() (heldTask, error) { return c.client.AllocateSend(c.atClient, nil) },
		"receive":      func() (heldTask, error) { return l.receiver.AllocateReceive(0, 1) },
		"send":         func() (heldTask, error) { return l.transmitter.AllocateSend(1, nil, nil) },
	} {
		size := sendTasks
		if name == "receive" {
			size = receives
		}
		var tasks []heldTask
		for range size {
			task, err := allocate()
			c.must(err)
			tasks = append(tasks, task)
		}
		_, err := allocate()
		wantCode(t, "allocate one "+name+" task too many", err, status.NoMemory)
		c.must(tasks[0].Free())
		tasks[0], err = allocate()
		c.must(err)
		for _, task := range tasks {
			c.must(task.Free())
		}
	}
}

func (s *suite) testRestart(t *testing.T) {
	h := s.newHarness(t)
	server := h.startServer(nil)
	client := h.startClient(server.name)
	for range 2 {
		h.await("the connection event", func() bool { return len(server.events) > 0 })
		atClient, err := client.Connection()
		h.must(err)
		l := h.newLink(atClient, server.events[0].connection)
		for range 2 {
			l.post(0, bufferSize)
			l.send("again", "")
			l.awaitOutcomes(1, 0, 1, 0)
			l.free()
			h.must(l.receiver.Stop())
			h.must(l.transmitter.Stop())
			wantIdle(t, l.receiver)
			wantIdle(t, l.transmitter)
			h.must(l.receiver.Start(h.engine))
			h.must(l.transmitter.Start(h.engine))
			h.awaitState(l.receiver, progress.Running)
		}
		h.must(l.receiver.Stop())
		h.must(l.transmitter.Stop())
		h.must(server.Stop())
		h.awaitState(server, progress.Idle)
		h.awaitState(client, progress.Idle)
		server.events = nil
		h.must(server.Start(h.engine))
		h.must(client.Start(h.engine))
		h.awaitState(client, progress.Running)
	}
}
