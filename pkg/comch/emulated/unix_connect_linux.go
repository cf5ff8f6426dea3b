// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (u unixSockets) Connect(ctx context.Context, hostDevice, name string) (Socket, error) {
	servers, ended, err := u.connectAll(ctx, hostDevice, name)
	switch {
	case errors.Is(err, fs.ErrPermission) && u.peer != "":
		err = fmt.Errorf("%w: only root and the user of %s may connect to it", err, u.peer)
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%w: the relay's channel admits only root, the relay's own user, and those "+
			"in access.users (--allow-any-user: everybody)", err)
	}
	if err == nil && len(servers) == 1 {
		return newUnixSocket(servers[0].conn), nil
	}
	for i := range servers {
		_ = servers[i].conn.Close()
	}
	if err != nil {
		return nil, err
	}
	if len(servers) > 1 {
		return nil, status.Errorf(status.InvalidValue,
			"two servers have this name, %s and %s: stop one or rename it",
			servers[0].path, servers[1].path)
	}
	if _, err := os.Stat(u.directory); errors.Is(err, os.ErrNotExist) {
		place := "the relay (its comch.directory, or --emulated-dir)"
		if u.peer != "" {
			place = u.peer + " (its --emulated-dir)"
		}
		return nil, status.Errorf(status.NotFound, "the directory %s does not exist: nobody has "+
			"listened there; name the directory of %s", u.directory, place)
	}
	if ended != "" {
		return nil, status.Errorf(status.NotFound,
			"%s that listened at %s has ended: start it%s", cmp.Or(u.peer, "the relay"), ended,
			u.alternatives(name))
	}
	return nil, status.Errorf(status.NotFound,
		"no server named %q in %s/%s: start it with this directory and representor%s",
		name, u.directory, hostDevice, u.alternatives(name))
}

// maxAlternatives bounds how many servers an error lists.
const maxAlternatives = 8

// alternatives names the servers that there are, for an error. A client that is no relay's has use
// only for those with the name that it wants.
func (u unixSockets) alternatives(name string) string {
	services, err := u.Services()
	if u.peer != "" {
		services = slices.DeleteFunc(services,
			func(s comch.Service) bool { return s.Name != name })
	}
	if err != nil || len(services) == 0 {
		return ""
	}
	slices.SortFunc(services, func(a, b comch.Service) int {
		return cmp.Or(cmp.Compare(a.Representor, b.Representor), cmp.Compare(a.Name, b.Name))
	})
	var text strings.Builder
	text.WriteString(", or connect to one that there is:")
	for i, s := range services {
		if i == maxAlternatives {
			fmt.Fprintf(&text, " and %d more", len(services)-i)
			break
		}
		fmt.Fprintf(&text, " %q of device %s,", s.Name, s.Representor)
	}
	return strings.TrimSuffix(text.String(), ",")
}

// candidate is a server that connectAll has connected to.
type candidate struct {
	conn *net.UnixConn // nil if the server has ended
	path string        // of its socket, for errors
}

// connectAll connects to all servers with this name. There may be none. ended is the path of a
// socket that a killed server has left, "" if there is none.
func (u unixSockets) connectAll(ctx context.Context, hostDevice, name string,
) (servers []candidate, ended string, err error) {
	host, err := openHost(u.directory, hostDevice)
	if errors.Is(err, os.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer host.close()
	devices, err := host.directories()
	if err != nil {
		return nil, "", err
	}
	for _, dpu := range devices {
		server, err := connectIn(ctx, host, dpu, name)
		switch {
		case err != nil:
			return servers, ended, err
		case server == nil:
		case server.conn == nil:
			ended = server.path
		default:
			servers = append(servers, *server)
		}
	}
	return servers, ended, nil
}

func openHost(root, device string) (*directory, error) {
	top, err := openRoot(root)
	if err != nil {
		return nil, err
	}
	defer top.close()
	return top.open(device)
}

// connectIn connects to the server with this name on one DPU device. It returns nil if there is
// none, and a candidate without a connection for the socket of a killed server.
func connectIn(ctx context.Context, host *directory, device, name string) (*candidate, error) {
	d, err := host.open(device)
	if err != nil {
		return nil, err
	}
	defer d.close()
	path := d.path + "/" + name
	descriptor, err := unix.Openat(d.descriptor, name,
		unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open socket %s: %w", path, err)
	}
	defer closeDescriptor(descriptor)
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unixpacket", descriptorPath(descriptor))
	switch {
	case err == nil:
		return &candidate{conn: conn.(*net.UnixConn), path: path}, nil
	case errors.Is(err, unix.ECONNREFUSED):
		return &candidate{path: path}, nil
	case errors.Is(err, unix.EAGAIN):
		return nil, status.Errorf(status.Full, "server %s has too many clients waiting: %w",
			path, err)
	}
	return nil, fmt.Errorf("connect to %s: %w", path, err)
}
