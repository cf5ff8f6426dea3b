// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// startLive runs a relay with the channel "first", which keeps others in a directory.
func startLive(t *testing.T, directory string) *liveConfig {
	t.Helper()
	c := named("info", "first", "disk")
	c.Channels[0].Target = config.Host{Address: netip.MustParseAddr("127.0.0.1"), Port: 9}
	c.State.Directory = directory
	kept, err := openKept(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &liveConfig{kept: kept, ctx: ctx, running: c, applied: c, turn: make(chan struct{}, 1),
		names: newLookups(zap.NewNop(), func(netip.Addr) {})}
	all, err := l.withKept(c)
	if err != nil {
		t.Fatal(err)
	}
	l.relay, err = relay.New(ctx, relay.Config{
		Comch: emulated.New(emulated.Options{Directory: filepath.Join(t.TempDir(), "comch")}),
		RDMA:  iwarp.New(iwarp.Options{}), CPUs: []int{datapath.NoCPU},
		Settings: relaySettings(all, l.names)})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = l.relay.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := errors.Join(l.close(), l.relay.Close()); err != nil {
			t.Error(err)
		}
	})
	return l
}

func newChannel(name string) admin.NewChannel {
	return admin.NewChannel{Name: name, Target: "127.0.0.1:9", Volume: "disk"}
}

// namesOf returns the names of the channels that the relay serves, and of those that are kept.
func namesOf(l *liveConfig) (served, kept string) {
	for _, c := range l.AdminChannels() {
		served += c.Name + " "
	}
	for _, c := range l.keptChannels() {
		kept += c.Name + " "
	}
	return served, kept
}

func TestAChannelOfTheConfigurationIsNotChangedByCommand(t *testing.T) {
	l := startLive(t, t.TempDir())
	if _, err := l.AddChannel(t.Context(), newChannel("other")); err != nil {
		t.Fatal(err)
	}
	to := admin.ChannelTargets{Target: "127.0.0.1:8"}
	_, moved := l.MoveChannel(t.Context(), "first", to, false)
	_, limited := l.LimitChannel(t.Context(), "03:00.0/b1:00.0/first",
		admin.ChannelQoS{Channel: admin.RateLimits{IOPS: "7"}})
	for what, err := range map[string]error{"moved": moved, "limited": limited,
		"removed": l.RemoveChannel(t.Context(), "first", true)} {
		if !errors.Is(err, status.BadState) || !strings.Contains(err.Error(),
			"is defined by the flags of the relay: start the relay with others") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, wrong := l.LimitChannel(t.Context(), "first",
		admin.ChannelQoS{Channel: admin.RateLimits{IOPS: "fast"}})
	if !errors.Is(wrong, status.InvalidValue) || !strings.Contains(wrong.Error(), `"fast"`) {
		t.Errorf("a wrong limit: %v", wrong)
	}
	if served, kept := namesOf(l); served != "first other " || kept != "other " {
		t.Errorf("the relay serves %q and keeps %q", served, kept)
	}
	if _, err := l.AddChannel(t.Context(), newChannel("first")); !errors.Is(err,
		status.AlreadyExist) {
		t.Errorf("adding a channel of the configuration: %v", err)
	}
}

func TestAChangeSucceedsOnlyWhenItIsKept(t *testing.T) {
	directory := t.TempDir()
	l := startLive(t, directory)
	if _, err := l.AddChannel(t.Context(), newChannel("a")); err != nil {
		t.Fatal(err)
	}
	// Nothing can be created in place of a directory that has content.
	obstacle := filepath.Join(directory, config.KeptFile+".new")
	if err := os.MkdirAll(filepath.Join(obstacle, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, added := l.AddChannel(t.Context(), newChannel("b"))
	_, moved := l.MoveChannel(t.Context(), "a", admin.ChannelTargets{Target: "127.0.0.1:8"}, false)
	_, limited := l.LimitChannel(t.Context(), "a",
		admin.ChannelQoS{Channel: admin.RateLimits{IOPS: "7"}})
	for what, err := range map[string]error{"added": added, "moved": moved, "limited": limited,
		"removed": l.RemoveChannel(t.Context(), "a", true)} {
		if err == nil || !strings.Contains(err.Error(), "was not made") {
			t.Errorf("%s: %v", what, err)
		}
	}
	served, kept := namesOf(l)
	if a := l.AdminChannels()[1]; served != "first a " || kept != "a " ||
		a.Target != "127.0.0.1:9" || a.QoS.Channel.IOPS != "infinite" {
		t.Errorf("the relay serves %q and keeps %q: %+v", served, kept, a)
	}
	if err := os.RemoveAll(obstacle); err != nil {
		t.Fatal(err)
	}
	if err := l.RemoveChannel(t.Context(), "a", false); err != nil {
		t.Error(err)
	}
	if served, kept := namesOf(l); served != "first " || kept != "" {
		t.Errorf("the relay serves %q and keeps %q", served, kept)
	}
}

// A channel that the relay cannot serve is not kept, and neither is a change that cannot work.
func TestAChangeThatDoesNotTakeEffectIsNotKept(t *testing.T) {
	l := startLive(t, t.TempDir())
	wrong := newChannel("wrong")
	wrong.Isolation = "staged" // without a DMA engine
	if _, err := l.AddChannel(t.Context(), wrong); err == nil {
		t.Error("a channel that cannot work was added")
	}
	if served, kept := namesOf(l); served != "first " || kept != "" {
		t.Errorf("the relay serves %q and keeps %q", served, kept)
	}
	text, err := os.ReadFile(l.kept.Path())
	if err != nil || strings.Contains(string(text), "wrong") {
		t.Errorf("the file is %q, %v", text, err)
	}
	l.kept = nil
	if _, err := l.AddChannel(t.Context(), newChannel("a")); !errors.Is(err, status.NotSupported) {
		t.Errorf("without a directory: %v", err)
	}
	if err := l.RemoveChannel(t.Context(), "a", false); !errors.Is(err, status.NotFound) {
		t.Errorf("without a directory: %v", err)
	}
}
