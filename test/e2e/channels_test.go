// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// keeper is a relay that keeps channels, with the channel "first" of its configuration.
type keeper struct {
	*chain
	t                 *testing.T
	admin, file, kept string
}

// startKeeper starts a target with the volume disk at all addresses, and a relay.
func startKeeper(t *testing.T, volume string) *keeper {
	t.Helper()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{volume},
		address: netip.MustParseAddrPort("0.0.0.0:0")}
	c.startTarget()
	k := &keeper{chain: c, t: t, admin: "unix:" + filepath.Join(c.dir, "relay.sock"),
		file: filepath.Join(c.dir, "relay.yaml"),
		kept: filepath.Join(c.dir, "state", "channels.yaml")}
	if err := os.Mkdir(filepath.Join(c.dir, "comch"), 0o700); err != nil {
		t.Fatal(err)
	}
	k.configure("first")
	k.start()
	return k
}

// at returns the address of the target on another loopback address.
func (k *keeper) at(host string) string {
	return netip.AddrPortFrom(netip.MustParseAddr(host), k.address.Port()).String()
}

// configure writes the configuration with channels of these names.
func (k *keeper) configure(names ...string) {
	text := fmt.Sprintf("comch: {directory: %q}\noperations: {admin: %q, listen: '127.0.0.1:0'}\n"+
		"state: {directory: %q}\nshutdown: {drain_timeout: %s}\n"+
		"control: {timeout: %s, keep_alive_dead_after: %s}\nchannels: [\n",
		filepath.Join(k.dir, "comch"), k.admin, filepath.Dir(k.kept), patience, patience, patience)
	for _, name := range names {
		text += fmt.Sprintf("  {name: %s, target: %q, volume: disk},\n", name, k.at("127.0.0.1"))
	}
	writeFile(k.t, k.file, []byte(text+"]\n"))
}

func (k *keeper) start() {
	k.t.Helper()
	k.relay = spawn(k.t, "zc-relay",
		append([]string{"run", "--config", k.file}, relayFlags()...)...)
	k.relay.AwaitLog("listening for clients")
}

// channel runs "zc-relay channel" and checks its exit code, and what its output contains.
func (k *keeper) channel(code int, contains string, args ...string) {
	k.t.Helper()
	got, stdout, stderr := call(k.t, "zc-relay", append(append([]string{"channel"}, args...),
		"--admin", k.admin, "--timeout", "2m")...)
	if got != code || !strings.Contains(stdout+stderr, contains) {
		k.t.Errorf("channel %q: exit code %d, want %d with %q: %s%s", args, got, code, contains,
			stdout, stderr)
	}
}

// add adds a channel.
func (k *keeper) add(code int, contains, name string, flags ...string) {
	k.t.Helper()
	k.channel(code, contains, append([]string{"add", name, "--volume", "disk", "--storage-server",
		k.at("127.0.0.1")}, flags...)...)
}

// list returns the channels by name, from a document that is valid.
func (k *keeper) list() map[string]admin.Channel {
	k.t.Helper()
	code, stdout, stderr := call(k.t, "zc-relay", "channel", "list", "--admin", k.admin, "-o",
		"json")
	var list admin.ChannelList
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || code != 0 {
		k.t.Fatalf("%v: %d %s%s", err, code, stdout, stderr)
	}
	schema := schematest.Read(k.t, "../../docs/schemas/channels.schema.json")
	if err := schema.Check(schematest.Document(k.t, list)); err != nil {
		k.t.Error(err)
	}
	channels := make(map[string]admin.Channel)
	for i := range list.Channels {
		channels[list.Channels[i].Name] = list.Channels[i]
	}
	return channels
}

// expect fails unless the relay has these channels, in the order of their names.
func (k *keeper) expect(names ...string) {
	k.t.Helper()
	var got []string
	for name := range k.list() {
		got = append(got, name)
	}
	slices.Sort(got)
	if !slices.Equal(got, names) {
		k.t.Errorf("the relay has %q, want %q", got, names)
	}
}

func TestChannelsComeAndGoByCommand(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "disk=memory:16MiB")
	k.add(0, "serving channel 03:00.0/b1:00.0/vm7, volume disk", "vm7", "--max-clients", "9")
	k.add(1, "was added already", "vm7")
	k.add(1, "is defined in "+k.file+":7", "first")
	k.add(2, "--isolation", "vm8", "--isolation", "none")
	k.add(2, "tls_server_name: \"t\": is given, but no TLS", "vm8", "--tls-server-name", "t")
	k.channel(2, "volume: is required", "add", "vm8", "--storage-server", "127.0.0.1:1")
	document := filepath.Join(k.dir, "vm8.yaml")
	writeFile(t, document, fmt.Appendf(nil, "name: vm8\ntarget: %q\nvolume: disk\n"+
		"qos: {channel: {iops: 20000}}\naccess: {any_user: true}\n", k.at("127.0.0.1")))
	k.channel(0, "serving channel", "add", "-f", document)
	vm8 := k.list()["vm8"]
	if vm8.Origin != admin.OriginAdministrator || vm8.Source != k.kept ||
		vm8.QoS.Channel.IOPS != "20000" || !vm8.Access.AnyUser || vm8.State != "listening" {
		t.Errorf("vm8 is %+v", vm8)
	}
	if first := k.list()["first"]; first.Origin != admin.OriginConfiguration ||
		first.Source != k.file+":7" {
		t.Errorf("first is %+v", first)
	}
	info := func(channel string) {
		t.Helper()
		k.mustRun("info", "--command-channel-name", channel)
	}
	info("vm7")
	info("vm8")

	for _, change := range [][]string{{"remove", "first"}, {"move", "first", "127.0.0.1:1"},
		{"limit", "first", "--channel-iops", "1"}} {
		k.channel(2, "is defined in "+k.file+":7", change...)
		change[1] = "none"
		k.channel(2, `"channel list" lists those that there are`, change...)
	}
	k.add(0, "serving", "vm7", "--device", "03:00.0", "--representor", "b1:00.1")
	k.channel(2, "2 channels are called", "remove", "vm7")
	k.channel(0, `"channel": "0000:03:00.0/b1:00.1/vm7"`, "remove", "0000:03:00.0/b1:00.1/vm7",
		"-o", "json")
	k.channel(2, "no limit is given", "limit", "vm7")
	k.channel(2, "iops", "limit", "vm7", "--channel-iops", "many")
	k.channel(0, "iops 5000, bandwidth infinite", "limit", "vm7", "--channel-iops", "5k")
	k.channel(2, "must be an address", "move", "vm7", "nowhere")

	// Neither a reload nor a restart forgets them.
	reload := func(code int, contains ...string) {
		t.Helper()
		got, stdout, stderr := call(t, "zc-relay", "reload", "--admin", k.admin)
		for _, want := range append(contains, "") {
			if got != code || !strings.Contains(stdout+stderr, want) {
				t.Errorf("reload: %d, want %d with %q: %s%s", got, code, want, stdout, stderr)
			}
		}
	}
	k.configure("first", "second")
	reload(0)
	k.expect("first", "second", "vm7", "vm8")
	k.configure("first", "vm8")
	reload(1, k.file+":8", k.kept, "channel remove 03:00.0/b1:00.0/vm8")
	k.expect("first", "second", "vm7", "vm8")
	k.relay.Terminate()
	k.relay = spawn(t, "zc-relay", "run", "--config", k.file)
	if code := k.relay.Wait(); code != 2 || !k.relay.HasLogged(k.file+":8: channel 03:00.0/") {
		t.Errorf("a relay with a channel that is defined twice ended with %d", code)
	}
	k.configure("first")
	k.start()
	k.expect("first", "vm7", "vm8")
	if vm7 := k.list()["vm7"]; vm7.QoS.Channel.IOPS != "5000" || vm7.Limits.Sessions != 9 {
		t.Errorf("vm7 is %+v", vm7)
	}
	info("vm7")
	k.channel(0, "channel vm8 is removed", "remove", "vm8", "--force")
	k.expect("first", "vm7")
	if p := k.initiator("info", "--command-channel-name", "vm8", "--control-timeout",
		"100ms"); p.Wait() != 3 {
		t.Error("a channel that was removed is still offered")
	}

	// Another relay does not use the same file, and this one rejects what it has not written.
	other := spawn(t, "zc-relay", "run", "--config", k.file, "--admin-listen", "")
	if code := other.Wait(); code != 1 || !other.HasLogged("another relay keeps its channels in") {
		t.Errorf("another relay ended with %d", code)
	}
	k.relay.Terminate()
	writeFile(t, k.kept, []byte("version: 1\nchannels: ["))
	k.relay = spawn(t, "zc-relay", "run", "--config", k.file)
	if code := k.relay.Wait(); code != 2 || !k.relay.HasLogged("mv "+k.kept) {
		t.Errorf("with a broken file, the relay ended with %d", code)
	}
}

func TestAChannelThatCannotBeOpenedYetIsKept(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "disk=memory:1MiB")
	const cannot = "sessions cannot be opened yet, and the relay tries again: "
	k.channel(0, cannot, "add", "lost", "--volume", "none", "--storage-server", k.at("127.0.0.1"))
	k.channel(0, cannot, "move", "lost", "127.0.0.1:1")
	k.channel(0, "", "remove", "lost")
	devices := filepath.Join(k.dir, "comch", "devices")
	writeFile(t, devices, []byte("dpu 03:00.0 representors=b1:00.0\nhost b1:00.0\n"))
	k.relay.Terminate()
	k.start()
	k.add(0, "clients cannot connect yet, and the relay tries again: ", "late", "-r", "b1:00.1")
	if late := k.list()["late"]; late.State != "waiting" || late.Reason == "" {
		t.Errorf("late is %+v", late)
	}
	writeFile(t, devices, []byte("dpu 03:00.0 representors=b1:00.0,b1:00.1\nhost b1:00.0\n"))
	testkit.Eventually(t, "clients can connect",
		func() bool { return k.list()["late"].State == "listening" })
}

// TestARelayMayBeginWithoutChannels adds the first channel by command, and sends data over it.
func TestARelayMayBeginWithoutChannels(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "disk=memory:16MiB")
	k.relay.Terminate()
	k.configure()
	k.relay = spawn(t, "zc-relay", append([]string{"run", "--config", k.file}, relayFlags()...)...)
	k.relay.AwaitLog("serving administration")
	testkit.Eventually(t, "the relay can be administered", func() bool {
		code, _, _ := call(t, "zc-relay", "channel", "list", "--admin", k.admin)
		return code == 0
	})
	if _, stdout, _ := call(t, "zc-relay", "status", "--admin", k.admin); !strings.Contains(stdout,
		"the relay has no channels") {
		t.Error(stdout)
	}
	k.expect()
	k.add(0, "serving", "vm7")
	k.expect("vm7")
	k.mustRun("verify", "--command-channel-name", "vm7", "--passes", "1")
	k.relay.Terminate()
	k.start()
	k.expect("vm7")
}

func TestARelayWithoutADirectoryKeepsNoChannels(t *testing.T) {
	t.Parallel()
	c, address := startAdministeredChain(t)
	code, stdout, stderr := call(t, "zc-relay", "channel", "add", "vm7", "--volume", "disk",
		"--storage-server", c.address.String(), "--admin", address, "-o", "json")
	if code != 2 || !strings.Contains(stderr, "start it with --state-directory DIRECTORY") ||
		!strings.Contains(stdout, `"operation": "add_channel"`) {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
}

func TestLimitsAndTheEndOfAChannelReachOpenSessions(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "disk=memory:16MiB")
	k.add(0, "serving", "vm7")
	reads := append(bench(8), "--command-channel-name", "vm7")
	reads[slices.Index(reads, "randrw")] = "randread"
	client := k.initiator(reads...)
	rate := func() float64 {
		_, text, _ := call(t, "zc-relay", "sessions", "list", "--admin", k.admin, "-o", "json",
			"--interval", "200ms")
		var list admin.SessionList
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Sessions) == 0 || list.Sessions[0].Rates == nil {
			return 0
		}
		return list.Sessions[0].Rates.IOPS
	}
	testkit.Eventually(t, "the client reads", func() bool { return rate() > 0 })
	k.channel(0, "iops 20, ", "limit", "vm7", "--channel-iops", "20", "--channel-burst", "0s")
	testkit.Eventually(t, "the client is slow", func() bool {
		r := rate()
		return r > 0 && r < 100
	})
	k.channel(0, "iops infinite", "limit", "vm7", "--channel-iops", "infinite")
	testkit.Eventually(t, "the client is fast", func() bool { return rate() > 200 })
	k.channel(0, "is removed", "remove", "vm7")
	if code := client.Wait(); code != 1 || !client.HasLogged("removed the channel") {
		t.Errorf("the client ended with %d", code)
	}
	k.expect("first")
}

func TestSessionsReopenWhereTheirChannelMoves(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "disk=memory:16MiB")
	k.add(0, "serving", "vm7")
	p := k.initiator(reconnectingVerify("--command-channel-name", "vm7")...)
	verified := func() bool { return k.ioTotal() > 1000 }
	testkit.Eventually(t, "the client works", verified)
	to := k.at("127.0.0.2")
	k.channel(0, "channel 03:00.0/b1:00.0/vm7 has moved to "+to, "move", "vm7", to)
	testkit.Eventually(t, "the client has reopened the volume", func() bool {
		c := k.list()["vm7"]
		return c.Serving == to && c.Target == to && c.Sessions > 0
	})
	before := k.ioTotal()
	testkit.Eventually(t, "it works there", func() bool { return k.ioTotal() > before+1000 })
	interruptVerify(t, p)
	if r := verifyReport(t, p); r.Result.Reconnections == nil || r.Result.Reconnections.Count != 1 {
		t.Errorf("the client reports %+v", r.Result)
	}
	// A relay that starts again has the new target.
	k.relay.Kill()
	k.start()
	if c := k.list()["vm7"]; c.Target != to {
		t.Errorf("after a restart, vm7 is %+v", c)
	}
}

// client returns a client of the relay.
func (k *keeper) client() *admin.Client {
	client, err := admin.New(k.admin)
	if err != nil {
		k.t.Fatal(err)
	}
	return client
}

func (k *keeper) described(name string) admin.NewChannel {
	return admin.NewChannel{Name: name, Target: k.at("127.0.0.1"), Volume: "disk"}
}

// A relay that is killed while channels are added has, when it starts again, all for which it has
// reported success, and no others but the one that it was adding.
func TestAKilledRelayHasEveryChannelThatItHasConfirmed(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "disk=memory:1MiB")
	random := seedtest.Random(t, 0)
	confirmed := map[string]bool{"first": true}
	for round := range 4 {
		limit := random.IntN(6)
		var killing sync.WaitGroup
		client := k.client()
		for i := 0; ; i++ {
			name := fmt.Sprintf("c%d-%d", round, i)
			if i == limit { // kill it during this one
				killing.Go(k.relay.Kill)
			}
			if _, err := client.AddChannel(testkit.Context(t), k.described(name)); err != nil {
				if i < limit {
					t.Fatal(err)
				}
				break
			}
			confirmed[name] = true
		}
		killing.Wait()
		k.start()
		unconfirmed := 0
		listed := k.list()
		for name := range listed {
			if !confirmed[name] {
				unconfirmed++
				confirmed[name] = true
			}
		}
		if unconfirmed > 1 || len(listed) != len(confirmed) {
			t.Errorf("round %d: the relay has %d channels, %d of them unconfirmed, want %d", round,
				len(listed), unconfirmed, len(confirmed))
		}
	}
}

func TestChangesOfChannelsWaitForOneAnother(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "disk=memory:1MiB")
	client, ctx := k.client(), testkit.Context(t)
	const each = 3 // the listener has a few places for changes
	added := make(chan error, 2*each)
	try := func(name string) {
		for {
			_, err := client.AddChannel(ctx, k.described(name))
			if !errors.Is(err, status.Again) {
				added <- err
				return
			}
		}
	}
	for i := range each {
		go try(fmt.Sprint("c", i))
		go try("same")
	}
	succeeded, twice := 0, 0
	for range 2 * each {
		switch err := testkit.Receive(t, "the outcome of an addition", added); {
		case err == nil:
			succeeded++
		case errors.Is(err, status.AlreadyExist):
			twice++
		default:
			t.Error(err)
		}
	}
	if succeeded != each+1 || twice != each-1 {
		t.Errorf("%d additions succeeded, and %d found the channel", succeeded, twice)
	}
	k.relay.Kill()
	k.start()
	k.expect("c0", "c1", "c2", "first", "same")
}

func TestAChangeThatCannotBeKeptIsNotMade(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, "disk=memory:1MiB")
	client, ctx := k.client(), testkit.Context(t)
	k.add(0, "serving", "vm7")
	// Nothing can be created in place of a directory that has content.
	obstacle := k.kept + ".new"
	if err := os.MkdirAll(filepath.Join(obstacle, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	k.add(1, "cannot be kept, and was not made", "vm8")
	k.channel(1, "cannot be kept, and was not made", "remove", "vm7")
	k.channel(1, "cannot be kept, and was not made", "move", "vm7", k.at("127.0.0.2"))
	k.channel(1, "cannot be kept, and was not made", "limit", "vm7", "--channel-iops", "7")
	if vm7 := k.list()["vm7"]; vm7.State != "listening" || vm7.QoS.Channel.IOPS != "infinite" ||
		vm7.Serving != k.at("127.0.0.1") {
		t.Errorf("vm7 is %+v", vm7)
	}
	k.expect("first", "vm7")
	if err := os.RemoveAll(obstacle); err != nil {
		t.Fatal(err)
	}
	k.add(0, "serving", "vm8")
	for code, err := range map[status.Code]error{
		status.NotFound:     client.RemoveChannel(ctx, "none", false),
		status.BadState:     client.RemoveChannel(ctx, "first", false),
		status.AlreadyExist: addError(ctx, client, k.described("vm7")),
		status.InvalidValue: addError(ctx, client, admin.NewChannel{Name: "x"}),
	} {
		if !errors.Is(err, code) {
			t.Errorf("%v instead of %v", err, code)
		}
	}
	k.relay.Signal(syscall.SIGTERM)
}

func addError(ctx context.Context, client *admin.Client, n admin.NewChannel) error {
	_, err := client.AddChannel(ctx, n)
	return err
}
