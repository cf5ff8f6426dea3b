// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// extreme returns a channel whose every key differs from its default.
func extreme(t *testing.T) Channel {
	t.Helper()
	c := DefaultChannel()
	for path, text := range map[string]string{
		"name": "weird: \"name\" #", "device": "dpu", "representor": "vf", "target_order": "any",
		"targets": "10.0.0.5:1,storage.example:2", "volume": "- v", "tls_server_name": "t",
		"rdma_address": "10.0.0.9", "isolation": "staged", "import_device": "rdma",
		"protocol": "doca-3.2", "target_protocol": "doca-3.2", "cpus": "1-3",
		"io_timeout": "infinite", "limits.sessions": "7", "limits.queues": "6", "limits.depth": "5",
		"limits.outstanding": "4", "limits.buffer_size": "4KiB", "limits.export": "1MiB",
		"limits.bounce_memory": "2MiB", "limits.ring_memory": "3MiB", "qos.channel.iops": "1000",
		"qos.channel.bandwidth": "1GiB", "qos.channel.burst": "1s", "qos.session.iops": "10",
		"qos.session.bandwidth": "1MiB", "qos.session.burst": "2s", "access.users": "alice,1000",
		"reconnect.attempts": "0", "reconnect.give_up_after": "1m", "reconnect.first_pause": "1s",
		"reconnect.longest_pause": "2s", "reconnect.session_wait": "0s",
	} {
		n, known := describeSection("", "", c.describe).find(strings.Split(path, separator))
		if known == 0 || n.value == nil {
			t.Fatalf("there is no key %s", path)
		}
		if err := n.value.Set(text); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return c
}

func TestChannelsSurviveTheFileAndTheAdminListener(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "state")
	k, err := OpenKeptChannels(directory)
	if err != nil {
		t.Fatal(err)
	}
	plain := DefaultChannel()
	plain.Target, plain.Volume, plain.Access.AnyUser = Host{Name: "a", Port: 1}, "v", true
	want := []Channel{extreme(t), plain}
	if err := k.Store(want); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKeptChannels(directory); !errors.Is(err, status.InUse) {
		t.Errorf("another relay opens it, too: %v", err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenKeptChannels(directory)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if diff := cmp.Diff(want, again.Channels(), compare...); diff != "" {
		t.Errorf("the channels are different afterwards:\n%s", diff)
	}
	text, err := os.ReadFile(again.Path())
	if err != nil || strings.Contains(string(text), "longest_pause: 5s") {
		t.Errorf("the file has defaults, %v:\n%s", err, text)
	}
	for _, c := range want {
		document := c.Document()
		got, err := ChannelFrom(&document)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(c, got, compare...); diff != "" {
			t.Errorf("the channel of its document is different:\n%s", diff)
		}
	}
}

// jsonKeys returns the paths of the fields of a document.
func jsonKeys(of reflect.Type, path string) (keys []string) {
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if inner := of.Field(i).Type; inner.Kind() == reflect.Struct {
			keys = append(keys, jsonKeys(inner, join(path, name))...)
		} else {
			keys = append(keys, join(path, name))
		}
	}
	return keys
}

func TestTheAdminListenerKnowsEveryKeyOfAChannel(t *testing.T) {
	c, want := DefaultChannel(), []string(nil)
	describeSection("", "", c.describe).everyValue("", func(path string, _ *node) {
		want = append(want, path)
	})
	if diff := cmp.Diff(want, jsonKeys(reflect.TypeFor[admin.NewChannel](), "")); diff != "" {
		t.Errorf("admin.NewChannel has other fields:\n%s", diff)
	}
}

func TestAFileThatTheRelayHasNotWrittenIsExplained(t *testing.T) {
	for content, want := range map[string]string{
		"":                                    "version: is required",
		"version: 1\nchannels: [":             "not valid YAML",
		"version: 0\n":                        `channels.yaml:1: version: "0": is not a version of`,
		"version: 1\nchannels: [{volume: a}]": "channels.yaml:2: channels.0.target: is required",
		"version: 1\nchannel: []":             "did you mean \"channels\"?",
		"version: 1\nchannels: [{target: \"a:1\", volume: v}, " +
			"{target: \"a:1\", volume: v}]": "channel 0 has the same",
	} {
		directory := t.TempDir()
		path := filepath.Join(directory, KeptFile)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenKeptChannels(directory)
		if err == nil || !errors.Is(err, status.BadConfig) ||
			!strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "mv "+path+" "+path+".bad") {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
	directory := t.TempDir()
	path := filepath.Join(directory, KeptFile)
	newer := "version: 2\nkeys_of_tomorrow: [1]\nchannels: [{target: {host: a}}]\n"
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := OpenKeptChannels(directory)
	if want := path + " has version 2, which a newer release of zc-relay has written, and this " +
		"one reads version 1: install that release again; or move the file away (mv " + path +
		" " + path + ".newer)"; !errors.Is(err, status.BadConfig) ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("a newer file: %v", err)
	}
	for path, want := range map[string]string{
		"/nonexistent/state": "create /nonexistent first", "/dev/null": "not a directory",
	} {
		if _, err := OpenKeptChannels(path); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "--state-directory") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAStateDirectoryThatIsGoneIsNamed(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "state")
	k, err := OpenKeptChannels(directory)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	first, second := extreme(t), DefaultChannel()
	if err := k.Store([]Channel{first}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(directory, directory+".away"); err != nil {
		t.Fatal(err)
	}
	err = k.Store([]Channel{first, second})
	if err == nil || !strings.Contains(err.Error(), "the state directory "+directory+" has been moved or "+
		"removed since the relay has started") || strings.Contains(err.Error(), "may differ") ||
		!strings.Contains(err.Error(), " "+directory+"), and repeat the command") {
		t.Errorf("without the directory: %v", err)
	}
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := k.Store(k.Channels()); err != nil {
		t.Errorf("with another directory: %v", err)
	}
	if kept, _, err := ReadKeptChannels(directory); err != nil || len(kept) != 1 {
		t.Errorf("another directory has %d channels, %v", len(kept), err)
	}
}

func TestAFailedWriteChangesNothing(t *testing.T) {
	directory := t.TempDir()
	k, err := OpenKeptChannels(directory)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	first := extreme(t)
	if err := k.Store([]Channel{first}); err != nil {
		t.Fatal(err)
	}
	former, err := os.ReadFile(k.Path())
	if err != nil {
		t.Fatal(err)
	}
	// Nothing can be created in place of a directory that has content.
	if err := os.MkdirAll(filepath.Join(directory, KeptFile+".new", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := k.Store(nil); err == nil || !strings.Contains(err.Error(), "was not made") {
		t.Errorf("Store returned %v", err)
	}
	now, err := os.ReadFile(k.Path())
	if err != nil || string(now) != string(former) || len(k.Channels()) != 1 {
		t.Errorf("%d channels are left, and the file is %q, %v", len(k.Channels()), now, err)
	}
}

func TestAChannelIsDefinedInOnePlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "relay.yaml")
	const text = "channels:\n  - {name: a, target: \"10.0.0.5:1\", volume: v}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := LoadRelay(Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	kept := DefaultChannel()
	kept.Name, kept.Device, kept.Volume = "a", "0000:03:00.0", "v"
	kept.Target = Host{Name: "b", Port: 1}
	_, err = c.WithKept([]Channel{kept}, "/state/channels.yaml")
	for _, want := range []string{file + ":2", "/state/channels.yaml",
		"zc-relay channel remove 03:00.0/b1:00.0/a"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	kept.Name = "b"
	all, err := c.WithKept([]Channel{kept}, "")
	if err != nil || len(all.Channels) != 2 || len(c.Channels) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	kept.TLSServerName = "t"
	_, err = c.WithKept([]Channel{kept}, "/state/channels.yaml")
	if err == nil || !strings.HasPrefix(err.Error(),
		"/state/channels.yaml: channels.0.tls_server_name: \"t\": is given, but no TLS") {
		t.Errorf("a channel that does not fit the configuration: %v", err)
	}
}

func TestAChannelComesFromADocumentAndFlags(t *testing.T) {
	load := func(input string, flags ...string) (admin.NewChannel, error) {
		var s ChannelSource
		f := pflag.NewFlagSet("add", pflag.ContinueOnError)
		s.AddFlags(f)
		if err := f.Parse(flags); err != nil {
			return admin.NewChannel{}, err
		}
		file := ""
		if input != "" {
			file = StandardInput
		}
		return s.Load("c", file, strings.NewReader(input))
	}
	got, err := load("volume: v\ntargets: [\"a:1\", \"b:2\"]\n"+
		"limits: {sessions: 7, export: 1MiB}\n", "--storage-server", "c:3",
		"--limits-queues", "3", "--channel-burst", "1s", "-d", "04:00.0",
		"--access-users", "alice", "--access-users", "bob")
	want := admin.NewChannel{Name: "c", Device: "04:00.0", Target: "c:3", Volume: "v",
		Limits: admin.ChannelLimits{Sessions: 7, Queues: 3, Export: "1MiB"},
		QoS:    admin.ChannelQoS{Channel: admin.RateLimits{Burst: "1s"}},
		Access: admin.ChannelAccess{Users: []string{"alice", "bob"}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, c := range []struct{ input, flag, want string }{
		{"volum: v", "--volume=v", `standard input:1: volum: unknown key: did you mean "volume"?`},
		{"volume: v", "--volume=w", "target: is required"},
		{"", "--storage-server=a:1", "volume: is required"},
		{"volume: v\ntarget: a:1\nio_timeout: 1", "--volume=v", "standard input:3: io_timeout"},
	} {
		if _, err := load(c.input, c.flag); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q with %s: %v, want %q", c.input, c.flag, err, c.want)
		}
	}
}

func TestTargetsAndLimitsAreSetAsAWhole(t *testing.T) {
	c := extreme(t)
	if err := c.SetTargets(&admin.ChannelTargets{Target: "a:1"}); err != nil ||
		c.Target != (Host{Name: "a", Port: 1}) || c.Targets != nil {
		t.Errorf("%+v, %v", c, err)
	}
	if err := c.SetTargets(&admin.ChannelTargets{Targets: []string{"b:1", "c:2"}}); err != nil ||
		c.Target.isValid() || len(c.Targets) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	former := c
	limits := &admin.ChannelQoS{Channel: admin.RateLimits{IOPS: "infinite", Bandwidth: "2GiB"}}
	if err := c.SetQoS(limits); err != nil || c.QoS.Channel.IOPS != 0 ||
		c.QoS.Channel.Bandwidth != 2<<30 || c.QoS.Channel.Burst != former.QoS.Channel.Burst ||
		c.QoS.Session != former.QoS.Session {
		t.Errorf("%+v, %v", c.QoS, err)
	}
	former = c
	limits.Session.IOPS = "many"
	for _, err := range []error{c.SetQoS(limits), c.SetTargets(&admin.ChannelTargets{}),
		c.SetTargets(&admin.ChannelTargets{Target: "a"})} {
		if !errors.Is(err, status.InvalidValue) {
			t.Errorf("a wrong change: %v", err)
		}
	}
	if diff := cmp.Diff(former, c, compare...); diff != "" {
		t.Errorf("wrong changes have changed something:\n%s", diff)
	}
}

func TestNothingIsKeptThatCannotBeReadAgain(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "state")
	k, err := OpenKeptChannels(directory)
	if err != nil {
		t.Fatal(err)
	}
	const stored = 100
	channels := slices.Repeat([]Channel{extreme(t)}, 1500)
	for i := range channels {
		channels[i].Name = fmt.Sprint("vm", i)
	}
	if err := k.Store(channels[:stored]); err != nil {
		t.Fatal(err)
	}
	if err := k.Store(channels); !errors.Is(err, status.TooBig) || len(k.Channels()) != stored {
		t.Errorf("kept %d channels: %v", len(k.Channels()), err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenKeptChannels(directory)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Channels()) != stored {
		t.Errorf("%d channels are there again, want %d", len(again.Channels()), stored)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
