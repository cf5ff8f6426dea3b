// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/endpoint"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Host is a host with a port. It has a name or an address. The zero Host is none.
type Host struct {
	Name    string     // "" if it has an address
	Address netip.Addr // invalid if it has a name
	Port    uint16
}

// isValid reports whether h is a host.
func (h Host) isValid() bool { return h.Port > 0 }

// String returns HOST:PORT, "" for none.
func (h Host) String() string {
	switch {
	case !h.isValid():
		return ""
	case h.Name != "":
		return net.JoinHostPort(h.Name, strconv.Itoa(int(h.Port)))
	}
	return netip.AddrPortFrom(h.Address, h.Port).String()
}

var (
	errNoHost = errors.New(
		"must be an address of the form HOST:PORT, for instance 10.0.0.5:7470")
	// hostName is that of hosts in DNS, and with underscores, which some have.
	hostName = regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*` +
		`[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?$`)
	// numeric names are wrong addresses.
	numeric = regexp.MustCompile(`(^|\.)[0-9]+\.?$`)
)

// maxHostName is the limit of a name in DNS, in bytes.
const maxHostName = 253

// parseHost parses HOST:PORT, without looking the host up.
func parseHost(text string) (Host, error) {
	if a, err := netip.ParseAddrPort(text); err == nil && a.Port() > 0 {
		return Host{Address: a.Addr(), Port: a.Port()}, endpoint.CheckZone(a.Addr())
	}
	if strings.Contains(text, ",") {
		return Host{}, errors.New("is for one address: several belong into targets " +
			"(--storage-servers)")
	}
	name, portText, err := net.SplitHostPort(text)
	if err != nil {
		return Host{}, errNoHost
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	switch {
	case name == "" || portText == "":
		return Host{}, errNoHost
	case err != nil || port == 0:
		return Host{}, fmt.Errorf("the port %s is not a number from 1 to 65535", quote(portText))
	}
	if len(name) > maxHostName || !hostName.MatchString(name) || numeric.MatchString(name) {
		return Host{}, fmt.Errorf("%s is neither an IP address nor the name of a host", quote(name))
	}
	return Host{Name: name, Port: uint16(port)}, nil
}

// host is a host, whose name is looked up when it is needed.
func host(p *Host) Value {
	return variable{kind: "HOST:PORT", get: func() string { return p.String() },
		set: func(s string) error {
			h, err := parseHost(s)
			if err == nil {
				*p = h
			}
			return err
		}}
}

// hosts is a list of at most so many hosts.
func hosts(p *[]Host, most int) Value {
	return variable{kind: listType, get: func() string {
		texts := make([]string, len(*p))
		for i, h := range *p {
			texts[i] = h.String()
		}
		return strings.Join(texts, ",")
	}, set: func(s string) error {
		var all []Host
		for text := range strings.SplitSeq(s, ",") {
			if s == "" {
				break
			}
			h, err := parseHost(strings.TrimSpace(text))
			if err != nil {
				return fmt.Errorf("%q: %w", text, err)
			}
			if slices.Contains(all, h) {
				return fmt.Errorf("%v is named twice", h)
			}
			all = append(all, h)
		}
		if len(all) > most {
			return fmt.Errorf("must be at most %d hosts, not %d", most, len(all))
		}
		*p = all
		return nil
	}}
}

// lookUpTimeout bounds the look-up of a host's name.
const lookUpTimeout = 5 * time.Second

// LookUp returns the addresses of a host, IPv4 first: a name such as localhost has both, and
// targets listen on one.
func LookUp(ctx context.Context, h Host) ([]netip.AddrPort, error) {
	if h.Name == "" {
		return []netip.AddrPort{netip.AddrPortFrom(h.Address, h.Port)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h.Name)
	if err != nil {
		return nil, status.Errorf(status.NotFound, "host %q has no address at present: %w", h.Name,
			err)
	}
	addresses := make([]netip.AddrPort, len(found))
	for i, a := range found {
		addresses[i] = netip.AddrPortFrom(a.Unmap(), h.Port)
	}
	slices.SortStableFunc(addresses, func(a, b netip.AddrPort) int {
		return a.Addr().BitLen() - b.Addr().BitLen()
	})
	return slices.Compact(addresses), nil
}

// Hosts returns the hosts of the targets.
func (c *Channel) Hosts() []Host {
	if c.Target.isValid() {
		return []Host{c.Target}
	}
	return c.Targets
}

// LookUp returns the addresses of the targets, which lookUp finds: the first one of target, or all
// of targets.
func (c *Channel) LookUp(lookUp func(Host) ([]netip.AddrPort, error)) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, h := range c.Hosts() {
		found, err := lookUp(h)
		if err != nil {
			return nil, err
		}
		if c.Target.isValid() {
			return found[:1], nil
		}
		for _, address := range found {
			if !slices.Contains(all, address) {
				all = append(all, address)
			}
		}
	}
	if len(all) > relay.HighestMaxTargets {
		return nil, status.Errorf(status.NotFound,
			"the hosts in targets have %d addresses together, and a channel has %d at most", len(all),
			relay.HighestMaxTargets)
	}
	return all, nil
}
