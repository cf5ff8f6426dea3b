// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// fakeChannels remembers what it is asked for, and fails with err.
type fakeChannels struct {
	added  admin.NewChannel
	name   string
	to     admin.ChannelTargets
	limits admin.ChannelQoS
	forced bool
	waited time.Duration
	err    error
}

func (f *fakeChannels) note(ctx context.Context, name string) {
	deadline, _ := ctx.Deadline()
	f.name, f.waited = name, time.Until(deadline)
}

func (f *fakeChannels) AdminChannels() []admin.Channel {
	return []admin.Channel{{FullName: "d/r/n", NewChannel: f.added}}
}

func (f *fakeChannels) AddChannel(ctx context.Context, n admin.NewChannel) (admin.Channel, error) {
	f.note(ctx, n.Name)
	f.added = n
	return admin.Channel{FullName: "d/r/" + n.Name, NewChannel: n}, f.err
}

func (f *fakeChannels) RemoveChannel(ctx context.Context, name string, force bool) error {
	f.note(ctx, name)
	f.forced = force
	return f.err
}

func (f *fakeChannels) MoveChannel(ctx context.Context, name string, to admin.ChannelTargets,
	force bool) (admin.Channel, error) {
	f.note(ctx, name)
	f.to, f.forced = to, force
	return admin.Channel{FullName: name}, f.err
}

func (f *fakeChannels) LimitChannel(ctx context.Context, name string, limits admin.ChannelQoS) (
	admin.Channel, error) {
	f.note(ctx, name)
	f.limits = limits
	return admin.Channel{FullName: name}, f.err
}

func TestChannelsAreChangedByClients(t *testing.T) {
	address := "unix:" + filepath.Join(t.TempDir(), "admin.sock")
	a, raw, _, logs := startAdmin(t, address)
	f := &fakeChannels{}
	a.HandleChannels(f)
	client, err := admin.New(address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	want := admin.NewChannel{Name: "ä b?", Target: "a:1", Volume: "v", CPUs: []int{1, 2},
		Limits:    admin.ChannelLimits{Sessions: 7},
		Reconnect: admin.ChannelReconnect{Attempts: "0"}}
	if c, err := client.AddChannel(ctx, want); err != nil || !reflect.DeepEqual(f.added, want) ||
		c.FullName != "d/r/"+want.Name {
		t.Errorf("added %+v, returned %+v, %v", f.added, c, err)
	}
	if all, err := client.Channels(ctx); err != nil || len(all) != 1 || all[0].Name != want.Name {
		t.Errorf("list: %+v, %v", all, err)
	}
	// The daemon stops waiting before its client does.
	const name = "0000:03:00.0/b1:00.0/ä b?"
	waits := func(what string, err error) {
		t.Helper()
		if err != nil || f.name != name || f.waited > 90*time.Second || f.waited < time.Second {
			t.Errorf("%s %q, waited %v: %v", what, f.name, f.waited, err)
		}
	}
	waits("removed", client.RemoveChannel(ctx, name, true))
	if !f.forced {
		t.Error("the channel was not removed by force")
	}
	to := admin.ChannelTargets{Targets: []string{"a:1", "b:2"}}
	_, err = client.MoveChannel(ctx, name, to, false)
	if waits("moved", err); !reflect.DeepEqual(f.to, to) || f.forced {
		t.Errorf("moved to %+v, forced %v", f.to, f.forced)
	}
	limits := admin.ChannelQoS{Channel: admin.RateLimits{IOPS: "7"},
		Session: admin.RateLimits{Burst: "1s"}}
	_, err = client.LimitChannel(ctx, name, limits)
	if waits("limited", err); f.limits != limits {
		t.Errorf("limited to %+v", f.limits)
	}
	for _, code := range []status.Code{status.InUse, status.AlreadyExist, status.InProgress,
		status.NotFound, status.InvalidValue, status.BadState, status.NotSupported,
		status.OperatingSystem} {
		f.err = status.Errorf(code, "no")
		_, added := client.AddChannel(ctx, want)
		_, moved := client.MoveChannel(ctx, "x", to, true)
		_, limited := client.LimitChannel(ctx, "x", limits)
		for _, err := range []error{added, moved, limited, client.RemoveChannel(ctx, "x", false)} {
			if !errors.Is(err, code) {
				t.Errorf("an error with %v arrives as %v", code, err)
			}
		}
	}
	f.err = nil
	for _, request := range [][2]string{{"?wait_ms=forever", "{}"}, {"", `{"nam":"a"}`},
		{"", `{"limits":{"sessions":"many"}}`}, {"/x/target?force=perhaps", `{}`},
		{"/x/qos", `{"channel":7}`}} {
		if code, body := do(t, raw, http.MethodPost, "http://localhost/channels"+request[0],
			request[1]); code != http.StatusBadRequest {
			t.Errorf("%q is answered with %d %s", request, code, body)
		}
	}
	expectAudit := map[string]string{
		"add_channel": "volume v at a:1", "remove_channel": "by force",
		"move_channel": "to a:1,b:2", "limit_channel": "channel.iops=7 session.burst=1s",
	}
	for _, entry := range logs.FilterMessage("administration").All() {
		fields := entry.ContextMap()
		operation, _ := fields["operation"].(string)
		if fields["outcome"] == "done" && fields["detail"] == expectAudit[operation] {
			delete(expectAudit, operation)
		}
	}
	if len(expectAudit) > 0 {
		t.Errorf("the audit log lacks %v", expectAudit)
	}
}
