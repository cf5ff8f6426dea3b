// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package comch_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/test/comch/stubborn"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// newStubborn returns a provider whose device behaves until the test says otherwise.
func newStubborn(t *testing.T) comch.Provider {
	emulate(t, libdoca.Config{})
	return comchdoca.New(comchdoca.Options{
		Loader: doca.Resolved(stubborn.Over(libdoca.Lookup))})
}

// testContext bounds a test that would hang.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

// connectedPair is a server and a connection.
type connectedPair struct {
	server           comch.Server
	client, accepted comch.Connection
}

func connectPair(ctx context.Context, t *testing.T, provider comch.Provider,
	config comch.ServerConfig) connectedPair {
	t.Helper()
	var p connectedPair
	p.server = must[comch.Server](t)(provider.Listen(ctx, config))
	p.client = must[comch.Connection](t)(provider.Connect(ctx,
		comch.ClientConfig{Name: config.Name}))
	p.accepted = must[comch.Connection](t)(p.server.Accept(ctx))
	return p
}

// path returns a consumer of the server's side and the client's producer for it.
func (p connectedPair) path(ctx context.Context, t *testing.T) (comch.Consumer,
	comch.LateProducer) {
	t.Helper()
	consumer := must[comch.Consumer](t)(p.accepted.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: 4, MemorySize: 4 * 64}))
	for i := range uint32(4) {
		if err := consumer.PostReceive(i*64, 64, 0); err != nil {
			t.Fatal(err)
		}
	}
	consumer.Flush()
	event := must[comch.ConsumerEvent](t)(p.client.NextConsumerEvent(ctx))
	producer := must[comch.Producer](t)(p.client.NewProducer(ctx, event.ID))
	return consumer, producer.(comch.LateProducer)
}

// A device may take a connection that nobody has accepted, and never let go of it.
func TestARejectedClientThatTheDeviceKeepsDoesNotKeepTheServer(t *testing.T) {
	provider := newStubborn(t)
	ctx := testContext(t)
	stubborn.HoldDisconnects(true)
	defer stubborn.HoldDisconnects(false)
	p := connectPair(ctx, t, provider, comch.ServerConfig{Name: "server",
		Admission: comch.Admission{MaxClients: 1}})
	second := must[comch.Connection](t)(provider.Connect(ctx, comch.ClientConfig{Name: "server"}))
	if err := errors.Join(p.client.Close(), p.accepted.Close()); err != nil {
		t.Error(err)
	}
	if err := p.server.Close(); err != nil {
		t.Error(err)
	}
	// The server ends when it gives the client up, and with it the client.
	select {
	case <-second.Done():
	case <-ctx.Done():
		t.Fatal("the server has not ended")
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// The loan of exported memory lasts until the peer's access has been revoked.
func TestExportedMemoryIsLentUntilTheConnectionHasEnded(t *testing.T) {
	ctx := testContext(t)
	p := connectPair(ctx, t, newStubborn(t), comch.ServerConfig{Name: "server"})
	region := must[*memory.Region](t)(memory.Alloc("host", 4096))
	defer region.Close()
	loan := must[*memory.Loan](t)(region.Lend())
	if _, err := p.client.ExportMemory(ctx, loan.Region(), memory.PCIRead); err != nil {
		t.Fatal(err)
	}
	if err := loan.Region().Close(); err != nil {
		t.Fatal(err)
	}
	if must[bool](t)(loan.Returned()) {
		t.Error("the loan has ended although the peer may still use the memory")
	}
	if err := errors.Join(p.client.Close(), p.accepted.Close(), p.server.Close()); err != nil {
		t.Error(err)
	}
	if !must[bool](t)(loan.Returned()) {
		t.Error("the loan goes on although the connection has ended")
	}
}

func TestASendThatFailsLateEndsItsProducerOnly(t *testing.T) {
	provider := newStubborn(t)
	ctx := testContext(t)
	p := connectPair(ctx, t, provider, comch.ServerConfig{Name: "server"})
	consumer, producer := p.path(ctx, t)
	stubborn.FailSends(1)
	if err := producer.Send([]byte("lost"), nil); err != nil {
		t.Fatal(err)
	}
	producer.Flush()
	for producer.State() == progress.Running && ctx.Err() == nil {
		if n := producer.Poll(); n != 0 {
			t.Errorf("%d sends have succeeded", n)
		}
	}
	if err := producer.Err(); !errors.Is(err, status.IOFailed) {
		t.Errorf("the producer has ended with %v", err)
	}
	if err := producer.Send([]byte("more"), nil); !errors.Is(err, status.NotConnected) {
		t.Errorf("sent on a producer that has failed: %v", err)
	}
	if err := p.client.Send(ctx, []byte("hello")); err != nil {
		t.Error(err)
	}
	if message, err := p.accepted.Receive(ctx); err != nil || string(message) != "hello" {
		t.Errorf("received %q, %v", message, err)
	}
	if err := errors.Join(producer.Close(), consumer.Close(), p.client.Close(),
		p.accepted.Close(), p.server.Close()); err != nil {
		t.Error(err)
	}
}

// A message whose length is not known must not arrive as one of no bytes.
func TestAMessageOfUnknownLengthEndsItsConsumer(t *testing.T) {
	emulate(t, libdoca.Config{})
	provider := comchdoca.New(comchdoca.Options{
		Loader: doca.Resolved(stubborn.Without(libdoca.Lookup, "doca_buf_get_data_len"))})
	ctx := testContext(t)
	p := connectPair(ctx, t, provider, comch.ServerConfig{Name: "server"})
	consumer, producer := p.path(ctx, t)
	if err := producer.Send([]byte("hello"), nil); err != nil {
		t.Fatal(err)
	}
	producer.Flush()
	var received [1]comch.Received
	for consumer.State() == progress.Running && ctx.Err() == nil {
		producer.Poll()
		if consumer.Poll(received[:]) != 0 {
			t.Errorf("received %+v", received[0])
		}
	}
	if err := consumer.(comch.LateConsumer).Err(); !errors.Is(err, status.Driver) {
		t.Errorf("the consumer has ended with %v", err)
	}
	if err := errors.Join(producer.Close(), consumer.Close(), p.client.Close(),
		p.accepted.Close(), p.server.Close()); err != nil {
		t.Error(err)
	}
}

// Each step of setting up Comch may fail. It then says which function has, and leaves nothing.
func TestEachFunctionMayFail(t *testing.T) {
	for function, step := range map[string]string{
		"devinfo_create_list": "list", "dev_open": "listen", "devinfo_rep_create_list": "listen",
		"devinfo_rep_get_pci_addr_str": "listen", "dev_rep_open": "listen", "pe_create": "listen",
		"pe_connect_ctx": "listen", "ctx_set_user_data": "listen",
		"ctx_set_state_changed_cb": "listen", "ctx_start": "listen",
		"comch_cap_get_max_clients": "listen", "comch_server_create": "listen",
		"comch_server_set_max_msg_size":    "listen",
		"comch_server_set_recv_queue_size": "listen", "comch_server_task_send_set_conf": "listen",
		"comch_server_event_msg_recv_register":                  "listen",
		"comch_server_event_consumer_register":                  "listen",
		"comch_server_event_connection_status_changed_register": "listen",
		"comch_client_create":                                   "connect", "comch_client_set_max_msg_size": "connect",
		"comch_client_set_recv_queue_size": "connect", "comch_client_task_send_set_conf": "connect",
		"comch_client_event_msg_recv_register": "connect",
		"comch_client_event_consumer_register": "connect",
		"comch_client_get_connection":          "connect", "mmap_create": "export",
		"mmap_add_dev": "export", "mmap_set_memrange": "export", "mmap_set_permissions": "export",
		"mmap_enable_thread_safety": "export", "mmap_start": "export", "mmap_export_pci": "export",
		"mmap_create_from_export": "import", "mmap_get_memrange": "import",
		"buf_inventory_create": "consumer", "buf_inventory_start": "consumer",
		"comch_consumer_create":                  "consumer",
		"comch_consumer_task_post_recv_set_conf": "consumer",
		"comch_consumer_set_imm_data_len":        "consumer", "comch_consumer_get_id": "consumer",
		"comch_producer_create": "producer", "comch_producer_task_send_set_conf": "producer",
		"comch_producer_get_id": "producer",
		// Those which a thread would sleep on are not needed.
		"pe_get_notification_handle": "", "pe_set_event_mode": "", "pe_request_notification": "",
		"pe_clear_notification": "", "ctx_get_state": "", "rdma_bridge_get_dev_pd": "",
	} {
		t.Run(function, func(t *testing.T) {
			emulate(t, libdoca.Config{})
			provider := comchdoca.New(comchdoca.Options{
				Loader: doca.Resolved(stubborn.Without(libdoca.Lookup, "doca_"+function))})
			failed, err := setUp(testContext(t), t, provider)
			if failed != step || (err == nil) != (step == "") ||
				err != nil && !errors.Is(err, status.Driver) {
				t.Errorf("%q has failed with %v, expected %q", failed, err, step)
			}
		})
	}
}

// setUp does everything that a session needs, and closes what it has made. It returns the step that
// has failed.
func setUp(ctx context.Context, t *testing.T, provider comch.Provider) (string, error) {
	t.Helper()
	var made []interface{ Close() error }
	defer func() {
		for _, object := range slices.Backward(made) {
			if err := object.Close(); err != nil {
				t.Errorf("close %T: %v", object, err)
			}
		}
	}()
	if _, err := provider.(comch.DeviceLister).Devices(); err != nil {
		return "list", err
	}
	server, err := provider.Listen(ctx, comch.ServerConfig{Name: "server"})
	if err != nil {
		return "listen", err
	}
	made = append(made, server)
	client, err := provider.Connect(ctx, comch.ClientConfig{Name: "server"})
	if err != nil {
		return "connect", err
	}
	made = append(made, client)
	accepted, err := server.Accept(ctx)
	if err != nil {
		return "accept", err
	}
	made = append(made, accepted)
	region := must[*memory.Region](t)(memory.Alloc("host", 4096))
	made = append(made, region)
	descriptor, err := client.ExportMemory(ctx, region, memory.PCIRead)
	if err != nil {
		return "export", err
	}
	imported, _, err := accepted.ImportMemory(descriptor)
	if err != nil {
		return "import", err
	}
	made = append(made, imported)
	consumer, err := accepted.NewConsumer(ctx, comch.ConsumerConfig{Receives: 4, MemorySize: 256})
	if err != nil {
		return "consumer", err
	}
	made = append(made, consumer)
	producer, err := client.NewProducer(ctx, consumer.ID())
	if err != nil {
		return "producer", err
	}
	made = append(made, producer)
	return "", nil
}

func TestRunningOutOfDescriptorsLeavesNothing(t *testing.T) {
	provider := newProvider(t, libdoca.Config{})
	ctx := testContext(t)
	if _, err := setUp(ctx, t, provider); err != nil { // so that the runtime has what it needs
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore := func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) }
	defer restore()
	before := openDescriptors(t)
	for more := uint64(0); ; more++ {
		low := syscall.Rlimit{Cur: uint64(before) + more, Max: limit.Max}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
			t.Fatal(err)
		}
		step, err := setUp(ctx, t, provider)
		restore()
		for openDescriptors(t) > before || len(libdoca.Objects()) > 0 {
			if ctx.Err() != nil {
				t.Fatalf("%q has failed with %v, and left %d descriptors and %v", step, err,
					openDescriptors(t)-before, libdoca.Objects())
			}
			runtime.Gosched()
		}
		if err == nil {
			break
		}
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	return len(must[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd")))
}
