// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// until progresses engines until condition holds.
func until(t testing.TB, what string, condition func() bool, pes ...P) {
	t.Helper()
	testkit.Eventually(t, what, func() bool {
		for !condition() {
			idle := true
			for _, pe := range pes {
				if docatest.Progress(pe) {
					idle = false
				}
			}
			if idle {
				return false
			}
		}
		return true
	})
}

// control is a server or a client.
type control struct {
	t               testing.TB
	side            string // "server" or "client"
	dev, rep        P
	pe, object, ctx P
	connection      P
}

const channelName = "storage"

func newServer(t testing.TB, tasks int) *control {
	t.Helper()
	c := &control{t: t, side: "server", dev: openDevice(t, dpuDevice)}
	list, count := docatest.NewCell(), docatest.NewCell()
	defer list.Free()
	defer count.Free()
	ok(t, call("doca_devinfo_rep_create_list", c.dev, 2, list, count))
	c.rep = create(t, "doca_dev_rep_open", docatest.Load(list.Result().Pointer()))
	ok(t, call("doca_devinfo_rep_destroy_list", list.Result().Pointer()))
	c.object = create(t, "doca_comch_server_create", c.dev, c.rep, channelName)
	c.configure(tasks)
	ok(t, call("doca_comch_server_event_connection_status_changed_register", c.object,
		docatest.Callback(docatest.Connected), docatest.Callback(docatest.Disconnected)))
	return c
}

func newClient(t testing.TB, tasks int) *control {
	t.Helper()
	c := &control{t: t, side: "client", dev: openDevice(t, hostDevice)}
	c.object = create(t, "doca_comch_client_create", c.dev, channelName)
	c.configure(tasks)
	return c
}

// call calls doca_comch_SIDE_NAME.
func (c *control) call(name string, arguments ...any) status.Code {
	return call("doca_comch_"+c.side+"_"+name, append([]any{c.object}, arguments...)...)
}

func (c *control) configure(tasks int) {
	c.t.Helper()
	c.ctx = docatest.Pointer("doca_comch_"+c.side+"_as_ctx", c.object)
	c.pe = create(c.t, "doca_pe_create")
	ok(c.t, c.call("task_send_set_conf", docatest.Callback(docatest.Completed),
		docatest.Callback(docatest.Failed), tasks))
	ok(c.t, c.call("event_msg_recv_register", docatest.Callback(docatest.Message)))
	ok(c.t, c.call("event_consumer_register", docatest.Callback(docatest.ConsumerNew),
		docatest.Callback(docatest.ConsumerExpired)))
	ok(c.t, call("doca_ctx_set_state_changed_cb", c.ctx, docatest.Callback(docatest.State)))
	ok(c.t, call("doca_pe_connect_ctx", c.pe, c.ctx))
}

// destroy destroys an idle server or client.
func (c *control) destroy() {
	c.t.Helper()
	ok(c.t, c.call("destroy"))
	ok(c.t, call("doca_pe_destroy", c.pe))
	if c.rep != nil {
		ok(c.t, call("doca_dev_rep_close", c.rep))
	}
	ok(c.t, call("doca_dev_close", c.dev))
}

// stop stops the context, and waits until it is idle.
func (c *control) stop() {
	c.t.Helper()
	if code := call("doca_ctx_stop", c.ctx); code != status.InProgress && code != status.Success {
		c.t.Fatalf("stop %s: %v", c.side, code)
	}
	until(c.t, c.side+" is idle", func() bool { return stateOf(c.t, c.ctx) == idle }, c.pe)
}

// send submits a message, and returns the task.
func (c *control) send(message string) P {
	c.t.Helper()
	buffer := docatest.Alloc(len(message))
	copy(docatest.Bytes(buffer, len(message)), message)
	task := create(c.t, "doca_comch_"+c.side+"_task_send_alloc_init", c.object, c.connection,
		buffer, len(message))
	ok(c.t, call("doca_task_submit", docatest.Pointer("doca_comch_task_send_as_task", task)))
	copy(docatest.Bytes(buffer, len(message)), make([]byte, len(message))) // it has been copied
	docatest.Free(buffer)
	return task
}

// pair is a server and a client that are connected.
type pair struct {
	*rig
	server, client *control
	log            []docatest.Event
}

func newPair(t testing.TB, config libdoca.Config) *pair {
	t.Helper()
	p := &pair{rig: configure(t, config)}
	p.server, p.client = newServer(t, 64), newClient(t, 64)
	p.connect()
	return p
}

// connect starts both sides, and waits until they are connected.
func (p *pair) connect() {
	p.t.Helper()
	ok(p.t, call("doca_ctx_start", p.server.ctx))
	is(p.t, call("doca_ctx_start", p.client.ctx), status.InProgress)
	p.client.connection = create(p.t, "doca_comch_client_get_connection", p.client.object)
	until(p.t, "client runs", func() bool { return stateOf(p.t, p.client.ctx) == running },
		p.client.pe)
	p.wait("connection", func(e docatest.Event) bool { return e.Kind == docatest.Connected },
		p.server.pe)
	p.server.connection = p.last(docatest.Connected).Object
}

// collect adds the events since the last call to the log.
func (p *pair) collect() { p.log = append(p.log, docatest.Take()...) }

// wait progresses engines until the log has an event.
func (p *pair) wait(what string, match func(docatest.Event) bool, pes ...P) {
	p.t.Helper()
	until(p.t, what, func() bool {
		p.collect()
		return slices.ContainsFunc(p.log, match)
	}, pes...)
}

// waitCount progresses engines until the log has n events of a kind and object.
func (p *pair) waitCount(kind docatest.Kind, object P, n int, pes ...P) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("%d events of kind %d", n, kind), func() bool {
		p.collect()
		return p.count(kind, object) >= n
	}, pes...)
	if got := p.count(kind, object); got != n {
		p.t.Fatalf("%d events of kind %d, expected %d", got, kind, n)
	}
}

// count returns how many events of a kind the log has; object nil means of any object.
func (p *pair) count(kind docatest.Kind, object P) (n int) {
	for _, e := range p.log {
		if e.Kind == kind && (object == nil || e.Object == object) {
			n++
		}
	}
	return n
}

// last returns the last event of a kind.
func (p *pair) last(kind docatest.Kind) docatest.Event {
	p.t.Helper()
	for _, e := range slices.Backward(p.log) {
		if e.Kind == kind {
			return e
		}
	}
	p.t.Fatalf("no event of kind %d in %v", kind, p.log)
	return docatest.Event{}
}

func (p *pair) both() []P { return []P{p.server.pe, p.client.pe} }

// close disconnects the client, and destroys everything.
func (p *pair) close() {
	p.t.Helper()
	p.client.stop()
	p.wait("disconnection", func(e docatest.Event) bool { return e.Kind == docatest.Disconnected },
		p.server.pe)
	p.server.stop()
	p.client.destroy()
	p.server.destroy()
}

func TestControlMessages(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	states := 0
	for _, e := range p.log {
		if e.Kind == docatest.State && e.Object == p.server.ctx && e.B == running {
			states++
		}
	}
	if states != 1 {
		t.Errorf("the server's start reported running %d times, expected once", states)
	}
	if got := docatest.Pointer("doca_comch_server_get_server_ctx",
		p.server.connection); got != p.server.object {
		t.Errorf("the connection belongs to server %p", got)
	}
	if got := docatest.Pointer("doca_comch_client_get_client_ctx", p.server.connection); got != nil {
		t.Errorf("the server's connection belongs to client %p", got)
	}
	ok(t, call("doca_comch_connection_set_user_data", p.server.connection, 42))
	if got := docatest.Raw("doca_comch_connection_get_user_data", p.server.connection); got != 42 {
		t.Errorf("the connection's user data is %d", got)
	}

	// Messages arrive whole and in order, in both directions; 32 are in flight at a time.
	for _, way := range []struct{ from, to *control }{{p.client, p.server}, {p.server, p.client}} {
		p.log = nil
		var tasks []P
		var want [][]byte
		for i := range 32 {
			message := fmt.Sprintf("message %d%s", i, bytes.Repeat([]byte{'.'}, 100*i))
			want = append(want, []byte(message))
			tasks = append(tasks, way.from.send(message))
		}
		p.waitCount(docatest.Completed, nil, 32, way.from.pe)
		p.waitCount(docatest.Message, way.to.connection, 32, way.to.pe)
		i := 0
		for _, e := range p.log {
			if e.Kind == docatest.Message {
				if !bytes.Equal(e.Data, want[i]) || e.B != 1 {
					t.Errorf("message %d is %q", i, e.Data)
				}
				i++
			}
		}
		for _, task := range tasks {
			call("doca_task_free", task)
		}
		ok(t, call("doca_comch_connection_update_info", way.from.connection))
		ok(t, call("doca_comch_connection_update_info", way.to.connection))
		sent, code := docatest.Get("doca_comch_connection_get_counter", way.from.connection, 1)
		ok(t, code)
		received, code := docatest.Get("doca_comch_connection_get_counter", way.to.connection, 3)
		ok(t, code)
		if sent.Uint64() != 32 || received.Uint64() != 32 {
			t.Errorf("counted %d sent and %d received", sent.Uint64(), received.Uint64())
		}
	}
	p.close()
}

// Servers, clients, and what they can do tell what they were made with.
func TestPropertiesOfComch(t *testing.T) {
	r := configure(t, libdoca.Config{})
	server, client := newServer(t, 1), newClient(t, 1)
	get := func(c *control, name string) *docatest.Result {
		t.Helper()
		result, code := docatest.Get("doca_comch_"+c.side+"_"+name, c.object)
		ok(t, code)
		return result
	}
	for i, c := range []*control{server, client} {
		if get(c, "get_device").Pointer() != c.dev {
			t.Errorf("the %s has another device", c.side)
		}
		if n := get(c, "get_recv_queue_size").Uint32(); n != 64 {
			t.Errorf("the %s receives %d messages by default", c.side, n)
		}
		ok(t, c.call("set_recv_queue_size", 5+i))
		if n := get(c, "get_recv_queue_size").Uint32(); n != uint32(5+i) {
			t.Errorf("the %s receives %d messages, expected %d", c.side, n, 5+i)
		}
		is(t, c.call("get_device", nil), status.InvalidValue)
		r.expectMisuse("doca_comch_"+c.side+"_get_device", "dev is NULL")
		is(t, c.call("get_recv_queue_size", nil), status.InvalidValue)
		r.expectMisuse("doca_comch_"+c.side+"_get_recv_queue_size", "size is NULL")
		info := docatest.Pointer("doca_dev_as_devinfo", c.dev)
		for _, kind := range []string{"consumer", "producer"} {
			name := "doca_comch_" + kind + "_cap_get_max_buf_list_len"
			if n, code := docatest.Get(name, info); code != status.Success || n.Uint32() != 1 {
				t.Errorf("%s is %d, %v", name, n.Uint32(), code)
			}
		}
	}
	if get(server, "get_device_rep").Pointer() != server.rep {
		t.Error("the server has another representor")
	}
	_, code := docatest.Get("doca_comch_server_get_device", client.object)
	is(t, code, status.InvalidValue)
	r.expectMisuse("doca_comch_server_get_device", "is a comch_client")
	_, code = docatest.Get("doca_comch_server_get_device_rep", nil)
	is(t, code, status.InvalidValue)
	r.expectMisuse("doca_comch_server_get_device_rep", "NULL")
	client.destroy()
	server.destroy()

	configure(t, libdoca.Config{Devices: []libdoca.Device{{PCI: dpuDevice, NoComch: true}}})
	dev := openDevice(t, dpuDevice)
	_, code = docatest.Get("doca_comch_consumer_cap_get_max_buf_list_len",
		docatest.Pointer("doca_dev_as_devinfo", dev))
	is(t, code, status.NotSupported)
	ok(t, call("doca_dev_close", dev))
}

// A receiver that does not progress holds up the sender, and memory stays bounded.
func TestReceiveQueueIsBounded(t *testing.T) {
	r := configure(t, libdoca.Config{})
	p := &pair{rig: r, server: newServer(t, 64), client: newClient(t, 1024)}
	ok(t, p.server.call("set_recv_queue_size", 4))
	ok(t, call("doca_ctx_start", p.server.ctx))
	is(t, call("doca_ctx_start", p.client.ctx), status.InProgress)
	p.client.connection = create(t, "doca_comch_client_get_connection", p.client.object)
	until(t, "client runs", func() bool { return stateOf(t, p.client.ctx) == running }, p.client.pe)
	p.wait("connection", func(e docatest.Event) bool { return e.Kind == docatest.Connected },
		p.server.pe)
	p.server.connection = p.last(docatest.Connected).Object
	var tasks []P
	for range 64 {
		tasks = append(tasks, p.client.send("x"))
	}
	// At most 4 wait in the library, and 4 on their way.
	until(t, "messages are sent", func() bool {
		p.collect()
		return p.count(docatest.Completed, nil) >= 4
	}, p.client.pe)
	if n := p.count(docatest.Completed, nil); n > 9 {
		t.Errorf("%d messages were sent to a server that does not progress", n)
	}
	p.waitCount(docatest.Message, nil, 64, p.both()...)
	p.waitCount(docatest.Completed, nil, 64, p.both()...)
	for _, task := range tasks {
		call("doca_task_free", task)
	}
	p.close()
}

func TestClientWithoutServer(t *testing.T) {
	configure(t, libdoca.Config{})
	client := newClient(t, 1)
	is(t, call("doca_ctx_start", client.ctx), status.InProgress)
	until(t, "client is idle", func() bool { return stateOf(t, client.ctx) == idle }, client.pe)
	events := docatest.Take()
	expectKinds(t, events, docatest.State, docatest.State)
	if events[0].B != starting || events[1].A != starting || events[1].B != idle {
		t.Errorf("the client's states: %+v", events)
	}
	// And it can be stopped while it is starting.
	is(t, call("doca_ctx_start", client.ctx), status.InProgress)
	client.stop()
	client.destroy()
}

func TestServerDisconnects(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	task := p.server.send("goodbye")
	p.waitCount(docatest.Completed, nil, 1, p.server.pe)
	docatest.OnEvent(func(e docatest.Event) {
		if e.Kind == docatest.Disconnected &&
			docatest.Pointer("doca_comch_server_get_server_ctx", e.Object) != p.server.object {
			t.Error("the disconnected connection does not know its server")
		}
	})
	ok(t, call("doca_comch_server_disconnect", p.server.object, p.server.connection))
	p.waitCount(docatest.Disconnected, p.server.connection, 1, p.server.pe)
	until(t, "client is idle", func() bool { return stateOf(t, p.client.ctx) == idle }, p.client.pe)
	p.collect()
	if got := string(p.last(docatest.Message).Data); got != "goodbye" {
		t.Errorf("the last message is %q", got)
	}
	call("doca_task_free", task)
	is(t, call("doca_comch_server_disconnect", p.server.object, p.server.connection),
		status.InvalidValue)
	p.expectMisuse("doca_comch_server_disconnect", "has been destroyed")
	p.server.stop()
	p.client.destroy()
	p.server.destroy()
}

func TestServersOnlyOnDPUs(t *testing.T) {
	configure(t, libdoca.Config{})
	host, dpu := openDevice(t, hostDevice), openDevice(t, dpuDevice)
	_, code := docatest.Get("doca_comch_client_create", dpu, channelName)
	is(t, code, status.NotSupported)
	for dev, want := range map[P][2]status.Code{
		dpu:  {status.Success, status.NotSupported},
		host: {status.NotSupported, status.Success},
	} {
		info := docatest.Pointer("doca_dev_as_devinfo", dev)
		is(t, call("doca_comch_cap_server_is_supported", info), want[0])
		is(t, call("doca_comch_cap_client_is_supported", info), want[1])
		size, code := docatest.Get("doca_comch_cap_get_max_msg_size", info)
		if code != status.Success || size.Uint32() != 4080 {
			t.Errorf("messages have up to %d bytes, %v", size.Uint32(), code)
		}
	}
	ok(t, call("doca_dev_close", host))
	ok(t, call("doca_dev_close", dpu))
}

func TestTwoServersOfOneName(t *testing.T) {
	configure(t, libdoca.Config{})
	first, second := newServer(t, 1), newServer(t, 1)
	ok(t, call("doca_ctx_start", first.ctx))
	is(t, call("doca_ctx_start", second.ctx), status.AlreadyExist)
	if stateOf(t, second.ctx) != idle {
		t.Error("the second server is not idle")
	}
	first.stop()
	ok(t, call("doca_ctx_start", second.ctx))
	second.stop()
	first.destroy()
	second.destroy()
}

func TestMisuseOfComch(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	cell := docatest.NewCell()
	defer cell.Free()
	for _, test := range []struct {
		function  string
		arguments []any
		want      status.Code
		rule      string
	}{
		{"doca_comch_server_set_max_msg_size", []any{p.server.object, 100}, status.BadState,
			"must be idle"},
		{"doca_comch_server_event_msg_recv_register", []any{p.server.object, cell}, status.BadState,
			"must be idle"},
		{"doca_comch_server_destroy", []any{p.server.object}, status.InUse, "must be idle"},
		{"doca_comch_client_destroy", []any{p.client.object}, status.InUse, "must be idle"},
		{"doca_comch_client_destroy", []any{p.server.object}, status.InvalidValue,
			"is a comch_server"},
		{"doca_comch_client_task_send_alloc_init", []any{p.client.object, p.server.connection, cell,
			1, cell}, status.InvalidValue, "another context's"},
		{"doca_comch_client_task_send_alloc_init", []any{p.client.object, p.client.connection, cell,
			4081, cell}, status.InvalidValue, "maximum of 4080"},
		{"doca_comch_client_task_send_alloc_init", []any{p.client.object, p.client.connection, cell,
			0, cell}, status.InvalidValue, "maximum of 4080"},
		{"doca_comch_connection_get_counter", []any{p.client.connection, 5, cell},
			status.InvalidValue, "no counter"},
		{"doca_dev_rep_close", []any{p.server.rep}, status.InUse, "still use the representor"},
	} {
		if got := call(test.function, test.arguments...); got != test.want {
			t.Errorf("%s is %v, expected %v", test.function, got, test.want)
		}
		p.expectMisuse(test.function, test.rule)
	}
	p.close()
}

func TestIncompleteConfigurationOfComch(t *testing.T) {
	r := configure(t, libdoca.Config{})
	server := newServer(t, 1)
	bare := create(t, "doca_comch_server_create", server.dev, server.rep, "bare")
	ctx := docatest.Pointer("doca_comch_server_as_ctx", bare)
	ok(t, call("doca_pe_connect_ctx", server.pe, ctx))
	for _, step := range []struct {
		rule string
		then func() status.Code
	}{
		{"task_send_set_conf", func() status.Code {
			return call("doca_comch_server_task_send_set_conf", bare,
				docatest.Callback(docatest.Completed), docatest.Callback(docatest.Failed), 1)
		}},
		{"event_msg_recv_register", func() status.Code {
			return call("doca_comch_server_event_msg_recv_register", bare,
				docatest.Callback(docatest.Message))
		}},
		{"status_changed_register", func() status.Code {
			return call("doca_comch_server_event_connection_status_changed_register", bare,
				docatest.Callback(docatest.Connected), docatest.Callback(docatest.Disconnected))
		}},
	} {
		is(t, call("doca_ctx_start", ctx), status.BadState)
		r.expectMisuse("doca_ctx_start", step.rule)
		ok(t, step.then())
	}
	ok(t, call("doca_ctx_start", ctx))
	is(t, call("doca_ctx_stop", ctx), status.InProgress)
	until(t, "server is idle", func() bool { return stateOf(t, ctx) == idle }, server.pe)
	ok(t, call("doca_comch_server_destroy", bare))
	long := string(bytes.Repeat([]byte{'n'}, 121))
	_, code := docatest.Get("doca_comch_server_create", server.dev, server.rep, long)
	is(t, code, status.InvalidValue)
	r.expectMisuse("doca_comch_server_create", "between 1 and 120")
	server.destroy()
}
