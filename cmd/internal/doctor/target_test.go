// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// serve serves a volume as "disk" until the test ends.
func serve(t *testing.T, v volume.Volume) netip.AddrPort {
	t.Helper()
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	served, err := target.New(t.Context(), target.Config{
		RDMA: iwarp.New(iwarp.Options{}), Listen: loopback, RDMAListen: loopback,
		Volumes: map[string]target.Offer{"disk": {Volume: v}}, CPUs: []int{datapath.NoCPU},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- served.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ran, served.Close()); err != nil {
			t.Error(err)
		}
	})
	return served.Address()
}

// openShared opens a file that several targets may be given.
func openShared(t *testing.T, path string) volume.Volume {
	t.Helper()
	v, err := volume.Open(volume.Spec{Name: "disk", BlockSize: 4096,
		Backend: volume.FileBackend{Path: path, Size: 1 << 20, FencedByOperator: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { volumetest.CloseVolume(t, v) })
	return v
}

func TestATargetIsAskedForTheVolume(t *testing.T) {
	address := serve(t, volumetest.OpenMemory(t, "1MiB"))
	m := machineWith(t, nil)
	for _, c := range []struct {
		target  Target
		verdict Verdict
		detail  string
	}{
		{Target{Volume: "disk"}, OK, `with volume "disk" of 1MiB`},
		{Target{Volume: "desk"}, Fail, `the target has no volume "desk": it has ["disk"]`},
		{Target{Volume: "desk", Foreign: true}, OK, "who answers there is unknown"},
	} {
		c.target.Address = address
		m.Targets = []Target{c.target}
		expect(t, m.targets(t.Context()), c.verdict, c.detail)
	}
}

func TestAStandByIsHealthyUnlessItsChannelHasNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	owner := Target{Address: serve(t, openShared(t, path)), Volume: "disk"}
	standBy := Target{Address: serve(t, openShared(t, path)), Volume: "disk"}
	m := machineWith(t, nil)
	m.FromFile, m.Channels = true, []string{"a", "b"}
	m.Targets = []Target{owner, standBy}
	findings := m.targets(t.Context())
	expect(t, findings, OK, "with volume")
	expect(t, findings, OK, `it is a stand-by for volume "disk"`)
	if len(findings) != 2 {
		t.Errorf("a healthy pair has the findings %+v", findings)
	}
	lonely := standBy
	lonely.Channel = 1
	m.Targets = append(m.Targets, lonely)
	findings = m.targets(t.Context())
	expect(t, findings, Warn, "channel b: every target of the channel is a stand-by")
	if last := findings[len(findings)-1]; !strings.Contains(last.Remedy, "channels[1].targets") ||
		!strings.Contains(last.Remedy, "volume list") {
		t.Errorf("the remedy is %q", last.Remedy)
	}
	expect(t, findings, OK, "channels a, b: "+standBy.Address.String())
}

func TestTheRemedyForTLSFitsTheCause(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	credentialsOf := func(a *mutualtlstest.Authority, names []string,
		options ...mutualtlstest.Option) *mutualtls.Credentials {
		c, err := mutualtls.Load(a.Write(t.TempDir(), names, options...), zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	good := []string{"127.0.0.1"}
	for name, c := range map[string]struct {
		target *mutualtls.Credentials
		detail string
		remedy string
	}{
		"another authority": {credentialsOf(mutualtlstest.NewAuthority(t), good),
			"none of this side's tls.ca has signed it", "give it the authority that has signed"},
		"another name": {credentialsOf(authority, []string{"storage"}),
			"tls_server_name is the name to expect",
			"set channels[0].tls_server_name to a name in the target's certificate"},
		"another address": {credentialsOf(authority, []string{"127.0.0.2"}), "127.0.0.2",
			"issue that certificate again for the address 127.0.0.1"},
		"expired": {credentialsOf(authority, good, mutualtlstest.Expired), "expired",
			"systemctl reload zc-relay-target"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := tls.Listen("tcp", "127.0.0.1:0", c.target.Server(nil))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			answered := make(chan error, 1)
			go func() {
				c, err := listener.Accept()
				if err == nil {
					err = errors.Join(c.(*tls.Conn).HandshakeContext(context.Background()),
						c.Close())
				}
				answered <- err
			}()
			m := machineWith(t, nil)
			own := credentialsOf(authority, good)
			m.FromFile = true
			m.Secure = func(name string) (*tls.Config, error) { return own.Client(name), nil }
			m.Targets = []Target{{Address: netip.MustParseAddrPort(listener.Addr().String())}}
			findings := m.targets(t.Context())
			expect(t, findings, Fail, c.detail)
			if !strings.Contains(findings[0].Remedy, c.remedy) {
				t.Errorf("%q has the remedy %q", findings[0].Detail, findings[0].Remedy)
			}
			if err := <-answered; err == nil {
				t.Error("the handshake has succeeded")
			}
		})
	}
}

func TestCredentialsThatCannotBeLoadedAreNoPlainText(t *testing.T) {
	m := machineWith(t, nil)
	m.Secure = func(string) (*tls.Config, error) { return nil, errors.New("no such key") }
	m.Targets = []Target{{Address: serve(t, volumetest.OpenMemory(t, "1MiB")), Volume: "disk"}}
	expect(t, m.targets(t.Context()), Warn, "this side's credentials for TLS cannot be used")
}
