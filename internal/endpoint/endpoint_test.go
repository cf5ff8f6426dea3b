// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/endpoint"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestTheLongestSocketPathIsAccepted(t *testing.T) {
	longest := strings.Repeat("p", endpoint.MaxSocketPath)
	if err := endpoint.CheckSocketPath(longest); err != nil {
		t.Error(err)
	}
	t.Chdir(t.TempDir())
	listener, err := net.Listen("unix", filepath.Join(".", longest))
	if err != nil {
		t.Fatalf("the kernel rejects it: %v", err)
	}
	defer listener.Close()
	err = endpoint.CheckSocketPath(longest + "p")
	if !errors.Is(err, status.InvalidValue) || !strings.Contains(err.Error(),
		"can have 107 bytes at most, and this one has 108: choose a shorter one") {
		t.Error(err)
	}
}

func TestLinkLocalAddressesNeedAZone(t *testing.T) {
	for text, want := range map[string]bool{"fe80::1": true, "ff02::1": true, "fe80::1%eth0": false,
		"2001:db8::1": false, "169.254.0.1": false, "::ffff:169.254.0.1": false, "::1": false} {
		err := endpoint.CheckZone(netip.MustParseAddr(text))
		if (err != nil) != want || err != nil && !strings.Contains(err.Error(), text+"%eth0") {
			t.Errorf("%s: %v", text, err)
		}
		if other := endpoint.CheckHost(net.JoinHostPort(text, "80")); (other != nil) != want {
			t.Errorf("%s with a port: %v", text, other)
		}
	}
	for _, text := range []string{"", "storage:7470", "fe80::1", ":80"} {
		if err := endpoint.CheckHost(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
