// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"math"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/unixsocket"
	"github.com/zc-relay/zc-relay/internal/printable"
)

// caller is a process of this machine, as it was when it connected.
type caller struct {
	user    uint32
	process int32
	// login is the user who has logged in, and may have become another one by sudo.
	login    uint32
	hasLogin bool
	err      error // why the rest is not known
}

// Peer is the process at the other end of a connection to the admin listener.
func Peer(conn net.Conn) Requester {
	if conn.LocalAddr().Network() != "unix" {
		return Requester{via: viaTCP, peer: conn.RemoteAddr().String()}
	}
	var c caller
	c.user, c.process, c.err = unixsocket.Peer(conn)
	if c.err == nil {
		c.login, c.hasLogin = loginOf(c.process)
	}
	return Requester{via: viaUnix, caller: c}
}

// loginOf returns the login user of a process. A kernel without audit, a process that nobody has
// logged in for, such as a service, and one that has ended have none.
func loginOf(process int32) (uint32, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", process))
	if err != nil {
		return 0, false
	}
	id, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	return uint32(id), err == nil && id != math.MaxUint32
}

// users finds the names of users. A machine may ask another one for them, so each is looked up once
// and not for long.
type users struct {
	mu    sync.Mutex // guards names
	names map[uint32]*foundName
}

type foundName struct {
	found chan struct{} // closed when name is set
	name  string        // "" for none
}

const (
	// lookupPatience is how long an entry waits for a name.
	lookupPatience = time.Second
	// maxNames bounds the names that are kept, and the lookups that may be under way.
	maxNames = 256
)

// name returns the name of a user; "" if it is not known, or not in time.
func (u *users) name(id uint32) string {
	u.mu.Lock()
	f := u.names[id]
	if f == nil && len(u.names) < maxNames {
		f = &foundName{found: make(chan struct{})}
		if u.names == nil {
			u.names = make(map[uint32]*foundName)
		}
		u.names[id] = f
		go func() {
			defer close(f.found)
			if known, err := user.LookupId(strconv.FormatUint(uint64(id), 10)); err == nil {
				f.name = printable.Line(known.Username, printable.MaxName)
			}
		}()
	}
	u.mu.Unlock()
	if f == nil {
		return ""
	}
	select {
	case <-f.found:
		return f.name
	case <-time.After(lookupPatience):
		return ""
	}
}
