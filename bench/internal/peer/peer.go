// SPDX-License-Identifier: Apache-2.0

// Package peer runs what Debian offers to compare zc-relay with, and the NBD gateway, which makes
// the two comparable.
package peer

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
)

// Peer is one or more programs that move data.
type Peer struct {
	Name string
	// Programs lists the programs that it needs, Packages their Debian packages.
	Programs []string
	Packages []string
	// Knows reports whether it can run something comparable to a workload.
	Knows func(w benchsuite.Workload) bool
	// Measure runs a workload.
	Measure func(ctx context.Context, j *Job) (benchsuite.Run, error)
}

// Job is a workload with the duration of a run.
type Job struct {
	Workload benchsuite.Workload
	Warmup   time.Duration
	Runtime  time.Duration
	// VolumeSize is the size of the disk, if there is one.
	VolumeSize size.Bytes
	// Directory is for the files of the run.
	Directory string
	// Gateway returns the command that serves the volume of the running chain to NBD clients on a
	// Unix socket. The volume has the size above.
	Gateway func(socket string) []string
}

// All returns all peers.
func All() []Peer {
	return []Peer{iperf3(), gateway(), nbdkit(), qemuStorageDaemon(), ucx("tcp"), ucx("sm"),
		fiPingpong()}
}

// Missing returns the reason why the peer cannot be run, "" if it can.
func (p *Peer) Missing() string {
	for _, program := range p.Programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Sprintf("%s is not installed: apt-get install %s", program,
				strings.Join(p.Packages, " "))
		}
	}
	return ""
}

// freePort returns a TCP port that is currently free.
func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), nil
}

// listens reports whether a process listens on a TCP port. It does not connect, because a server
// for one client would accept that as its client.
func listens(port string) bool {
	number, err := strconv.Atoi(port)
	if err != nil {
		return false
	}
	return listensTCP(number)
}
