package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// DefaultAdminAddress is the admin address of the packaged relay.
const DefaultAdminAddress = unixPrefix + "/run/zc-relay/admin.sock"

// maxReplyBytes is the largest reply that is read.
const maxReplyBytes = 64 << 20

// AdminClient talks to the admin listener of a daemon. Its methods may be
// called concurrently.
type AdminClient struct {
	address string
	http    http.Client
}

// NewAdminClient returns a client for an address in the form of AdminConfig.Address. It does not
// connect yet.
func NewAdminClient(address string) (*AdminClient, error) {
	network, destination := "unix", strings.TrimPrefix(address, unixPrefix)
	if destination == address {
		network = "tcp"
		if _, err := netip.ParseAddrPort(address); err != nil {
			return nil, status.Errorf(status.InvalidValue,
				"admin address %q is neither unix:PATH nor IP:PORT", address)
		}
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, destination)
	}
	return &AdminClient{address: address,
			http: http.Client{Transport: &http.Transport{DialContext: dial,
				DisableKeepAlives: true}}},
		nil
}

// Do sends a request and returns the body of the reply. A reply that does not mean success is an
// error with its text.
func (c *AdminClient) Do(ctx context.Context, method, path, body string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path,
		strings.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("request %s from the daemon: %w", path, err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.explain(err)
	}
	defer response.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(response.Body, maxReplyBytes))
	if err != nil {
		return nil, fmt.Errorf("read the reply of the daemon at %s: %w", c.address, err)
	}
	if response.StatusCode == http.StatusNotFound {
		return nil, status.Errorf(status.NotSupported,
			"the daemon at %s has no %s: it is of another kind or version (zc-relay status says which)",
			c.address, strings.TrimPrefix(path, "/"))
	}
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s at %s: %s: %s", method, path, c.address, response.Status,
			strings.TrimSpace(string(reply)))
	}
	return reply, nil
}

func (c *AdminClient) explain(err error) error {
	cause := "does it run with --admin-listen " + c.address + "?"
	if errors.Is(err, fs.ErrPermission) {
		cause = "only root and the daemon's user may"
	}
	code := status.NotConnected
	if errors.Is(err, context.DeadlineExceeded) {
		code = status.TimeOut
	}
	var reason syscall.Errno
	if errors.As(err, &reason) {
		err = reason
	}
	return status.Errorf(code, "cannot talk to the daemon at %s (%s): %w", c.address, cause, err)
}
