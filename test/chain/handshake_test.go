package chain

import (
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// rawClient performs the handshake of a client step by step.
type rawClient struct {
	t          *testing.T
	chain      *chain
	connection comch.Connection
	requester  *controlmsg.Requester
}

func (c *chain) raw(t *testing.T) *rawClient {
	t.Helper()
	connection, err := c.provider.Connect(c.context(),
		comch.ClientConfig{Device: emulated.DefaultHostDevice, Name: client.DefaultChannelName})
	if err != nil {
		t.Fatal(err)
	}
	r := &rawClient{t: t, chain: c, connection: connection}
	r.requester = controlmsg.NewRequester(controlmsg.NewComchTransport(connection),
		controlmsg.EndpointConfig{Role: controlmsg.RoleInitiator})
	t.Cleanup(func() { r.requester.Close(nil) })
	if _, err := r.requester.Greet(c.context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rawClient) call(m controlmsg.Message) error {
	_, err := r.requester.Call(r.chain.context(), m)
	return err
}

// configuration returns a configuration that the chain accepts, with new memory.
func (r *rawClient) configuration(epoch uint64) *controlmsg.ConfigureDataPath {
	r.t.Helper()
	region, err := memory.Alloc("raw client", 1<<20)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = region.Close() })
	access := memory.PCIRead | memory.PCIWrite | memory.RemoteRead | memory.RemoteWrite
	descriptor, err := r.connection.ExportMemory(r.chain.context(), region, access)
	if err != nil {
		r.t.Fatal(err)
	}
	return &controlmsg.ConfigureDataPath{
		QueueCount: 1, Depth: 4, BufferSize: blockSize, ClientInstance: [16]byte{7}, Epoch: epoch,
		Export: controlmsg.Export{Access: access, Length: region.Len(), Descriptor: descriptor},
	}
}

func TestAVolumeCanBeOpenedAgainAndATargetThatIsGoneIsReported(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	r := c.raw(t)
	for range 2 {
		if err := r.call(&controlmsg.OpenVolume{}); err != nil {
			t.Fatal(err)
		}
	}
	c.stopTarget()
	if err := r.call(&controlmsg.OpenVolume{}); err == nil {
		t.Fatal("the volume of a target that is gone was opened")
	}
	c.await("the session has ended", func() bool { return c.relay.Sessions() == 0 })
}

func TestAConfigurationCanBeCorrectedAndTriedAgain(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	r := c.raw(t)
	if err := r.call(&controlmsg.OpenVolume{}); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*controlmsg.ConfigureDataPath){
		func(m *controlmsg.ConfigureDataPath) { m.QueueCount = 1000 },
		func(m *controlmsg.ConfigureDataPath) { m.Depth = 1 << 15 },
		func(m *controlmsg.ConfigureDataPath) { m.QueueCount, m.Depth = 64, 4096 },
		func(m *controlmsg.ConfigureDataPath) { m.BufferSize = 1 << 29 },
		func(m *controlmsg.ConfigureDataPath) { m.BufferSize = blockSize + 512 },
		func(m *controlmsg.ConfigureDataPath) { m.Export.Length *= 2 },
		func(m *controlmsg.ConfigureDataPath) { m.Export.Length = 1 << 62 },
		func(m *controlmsg.ConfigureDataPath) { m.Export.Descriptor = []byte("made up") },
	} {
		m := r.configuration(1)
		change(m)
		if err := r.call(m); err == nil {
			t.Fatalf("configuration %+v was accepted", m)
		}
	}
	if err := r.call(r.configuration(1)); err != nil {
		t.Errorf("a good configuration after bad ones: %v", err)
	}
	if err := r.call(&controlmsg.DestroyObjects{}); err != nil {
		t.Errorf("destroy: %v", err)
	}
	c.awaitRelease()
}

func TestASessionCanBeDestroyedAtEveryStep(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	epoch := uint64(0)
	steps := []func(*rawClient) error{
		func(r *rawClient) error { return r.call(&controlmsg.OpenVolume{}) },
		func(r *rawClient) error { epoch++; return r.call(r.configuration(epoch)) },
		func(r *rawClient) error {
			consumer, err := r.connection.NewConsumer(c.context(),
				comch.ConsumerConfig{Receives: 8, MemorySize: 512})
			if err != nil {
				return err
			}
			r.t.Cleanup(func() { _ = consumer.Close() })
			return r.call(&controlmsg.StartDataPathConnections{
				ConsumerIDs: []uint32{uint32(consumer.ID())},
			})
		},
		func(r *rawClient) error { return r.call(&controlmsg.StartStorage{}) },
	}
	for count := range len(steps) + 1 {
		for _, vanish := range []bool{false, true} {
			r := c.raw(t)
			for _, step := range steps[:count] {
				if err := step(r); err != nil {
					t.Fatalf("step %d: %v", count, err)
				}
			}
			if vanish {
				r.connection.Abort()
			} else if err := r.call(&controlmsg.DestroyObjects{}); err != nil {
				t.Errorf("destroy after %d steps: %v", count, err)
			}
			c.awaitRelease()
		}
	}
}

func TestASupersededEpochIsRejected(t *testing.T) {
	parallel(t)
	c := start(t, options{})
	first, second := c.raw(t), c.raw(t)
	for _, r := range []*rawClient{first, second} {
		if err := r.call(&controlmsg.OpenVolume{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.call(first.configuration(5)); err != nil {
		t.Fatal(err)
	}
	if err := second.call(second.configuration(4)); !errors.Is(err, status.NotPermitted) {
		t.Errorf("an older epoch: %v", err)
	}
	if err := second.call(second.configuration(6)); err != nil {
		t.Errorf("a newer epoch: %v", err)
	}
	c.awaitEnd(first.requester.Done())
	if err := first.requester.Err(); err == nil {
		t.Error("the session of the older epoch was not ended")
	}
}
