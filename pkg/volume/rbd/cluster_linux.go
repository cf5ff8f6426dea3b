// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/ceph/go-ceph/rados"
	"golang.org/x/sys/unix"
)

// cluster is a connection to a Ceph cluster. It has about a dozen threads, however many images use
// it. Ceph's blocklist hits whole connections, so the volumes of a group share one.
type cluster struct {
	*rados.Conn // valid after connect
	key         clusterKey
	connect     func() error // connects once; everybody else waits, and gets the same result
	users       int          // guarded by clusters.mu
}

type clusterKey struct{ configFile, user, group string }

// clusters holds the open connections of the process. The mutex is never held while a cluster has
// to answer: one that does not must not delay the volumes of another.
var clusters = struct {
	mu   sync.Mutex
	open map[clusterKey]*cluster
}{open: make(map[clusterKey]*cluster)}

// settings are what the volume's promises depend on. What a user has put into the cluster's
// configuration gives way.
var settings = []struct{ key, value string }{
	// With a cache, librbd completes writes that are not durable.
	{"rbd_cache", "false"},
	// The sender of a write may change its data at any time. If librbd did not copy it, checksums
	// would not match, and the connection to the OSD would be reset again and again.
	{"rbd_disable_zero_copy_writes", "true"},
	// Starting a request must not block a worker.
	{"rbd_non_blocking_aio", "true"},
	// The lock of a dead client must not be taken without fencing it. With an expiry, breaking a
	// lock fails in Ceph 16.
	{"rbd_blocklist_on_break_lock", "true"},
	{"rbd_blocklist_expire_seconds", "0"},
}

// connectionSettings apply to the whole connection.
var connectionSettings = []struct{ key, value string }{
	// A write that librados gives up may take effect later.
	{"rados_osd_op_timeout", "0"},
	{"rados_mon_op_timeout", "0"},
	// Seconds until an attempt to connect fails.
	{"client_mount_timeout", "30"},
}

// acquireCluster returns the connection that b uses. Each call needs a release.
func acquireCluster(b Backend) (*cluster, error) {
	key := clusterKey{b.configFile(), b.user(), b.Group}
	clusters.mu.Lock()
	c := clusters.open[key]
	if c == nil {
		c = &cluster{key: key}
		c.connect = sync.OnceValue(func() (err error) {
			c.Conn, err = connect(key)
			return err
		})
		clusters.open[key] = c
	}
	c.users++
	clusters.mu.Unlock()
	if err := c.connect(); err != nil {
		c.unshare()
		c.release()
		return nil, err
	}
	return c, nil
}

// release closes the connection if nobody else uses it.
func (c *cluster) release() {
	clusters.mu.Lock()
	c.users--
	isUnused := c.users == 0
	if isUnused && clusters.open[c.key] == c {
		delete(clusters.open, c.key)
	}
	clusters.mu.Unlock()
	if isUnused && c.Conn != nil {
		c.Shutdown()
	}
}

// unshare makes the next user of the group connect anew, because the cluster has fenced c.
func (c *cluster) unshare() {
	clusters.mu.Lock()
	defer clusters.mu.Unlock()
	if clusters.open[c.key] == c {
		delete(clusters.open, c.key)
	}
}

// id returns what distinguishes the connection from every other to the cluster.
func (c *cluster) id() string { return strconv.FormatUint(c.GetInstanceID(), 10) }

// connect is replaced by tests.
var connect = func(key clusterKey) (*rados.Conn, error) {
	connection, err := rados.NewConnWithUser(key.user)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection of Ceph user client.%s: %w", key.user,
			withErrno(err))
	}
	if err := connection.ReadConfigFile(key.configFile); err != nil {
		connection.Shutdown()
		return nil, fmt.Errorf("read Ceph configuration %q: %w: give its path as conf=PATH, and "+
			"check that the target's user can read it", key.configFile, withErrno(err))
	}
	for _, setting := range append(connectionSettings, settings...) {
		if err := connection.SetConfigOption(setting.key, setting.value); err != nil {
			connection.Shutdown()
			return nil, fmt.Errorf("set %s=%s: %w", setting.key, setting.value, withErrno(err))
		}
	}
	if err := connection.Connect(); err != nil {
		connection.Shutdown()
		return nil, explainConnect(key.configFile, key.user, withErrno(err))
	}
	return connection, nil
}

// withErrno makes an error of go-ceph match its error number.
func withErrno(err error) error {
	var coded interface{ ErrorCode() int }
	if !errors.As(err, &coded) || coded.ErrorCode() >= 0 {
		return err
	}
	return unix.Errno(-coded.ErrorCode())
}
