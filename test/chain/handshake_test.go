// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

func TestAVolumeCanBeOpenedAgainAndATargetThatIsGoneIsReported(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	r := c.Raw(t)
	for range 2 {
		if err := r.Call(&controlmsg.OpenVolume{}); err != nil {
			t.Fatal(err)
		}
	}
	c.StopTarget()
	if err := r.Call(&controlmsg.OpenVolume{}); err == nil {
		t.Fatal("the volume of a target that is gone was opened")
	}
	c.Await("the session has ended", func() bool { return c.Relay.Sessions() == 0 })
}

func TestAConfigurationCanBeCorrectedAndTriedAgain(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	r := c.Raw(t)
	if err := r.Call(&controlmsg.OpenVolume{}); err != nil {
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
		m := r.Configuration(1)
		change(m)
		if err := r.Call(m); err == nil {
			t.Fatalf("configuration %+v was accepted", m)
		}
	}
	if err := r.Call(r.Configuration(1)); err != nil {
		t.Errorf("a good configuration after bad ones: %v", err)
	}
	if err := r.Call(&controlmsg.DestroyObjects{}); err != nil {
		t.Errorf("destroy: %v", err)
	}
	c.AwaitRelease()
}

func TestASupersededEpochIsRejected(t *testing.T) {
	chaintest.Parallel(t)
	c := chaintest.Start(t, options{})
	first, second := c.Raw(t), c.Raw(t)
	for _, r := range []*chaintest.RawClient{first, second} {
		if err := r.Call(&controlmsg.OpenVolume{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Call(first.Configuration(5)); err != nil {
		t.Fatal(err)
	}
	if err := second.Call(second.Configuration(4)); !errors.Is(err, status.NotPermitted) {
		t.Errorf("an older epoch: %v", err)
	}
	if err := second.Call(second.Configuration(6)); err != nil {
		t.Errorf("a newer epoch: %v", err)
	}
	c.AwaitEnd(first.Requester.Done())
	if err := first.Requester.Err(); err == nil {
		t.Error("the session of the older epoch was not ended")
	}
}
