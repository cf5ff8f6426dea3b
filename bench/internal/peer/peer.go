// Package peer runs what Debian offers to compare zc-relay with.
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

// Peer is a program, or several, that moves data.
type Peer struct {
	Name string
	// Programs are what it needs, Packages the Debian packages that have them.
	Programs []string
	Packages []string
	// Knows reports whether it can do something like a workload.
	Knows func(w benchsuite.Workload) bool
	// Measure runs a workload.
	Measure func(ctx context.Context, j *Job) (benchsuite.Run, error)
}

// Job is a workload and how long to run it.
type Job struct {
	Workload benchsuite.Workload
	Warmup   time.Duration
	Runtime  time.Duration
	// VolumeSize is that of the disk, where there is one.
	VolumeSize size.Bytes
	// Directory is for files of the run.
	Directory string
}

// All are the peers.
func All() []Peer {
	return []Peer{iperf3(), nbdkit(), qemuStorageDaemon(), ucx("tcp"), ucx("sm"), fiPingpong()}
}

// Missing returns why the peer cannot be run, "" if it can.
func (p *Peer) Missing() string {
	for _, program := range p.Programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Sprintf("%s is not installed: apt-get install %s", program, strings.Join(p.Packages, " "))
		}
	}
	return ""
}

// freePort is a TCP port that nobody listens on at the moment.
func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), nil
}

// listens reports whether somebody listens on a TCP port, without connecting:
// servers for one client would take that for it.
func listens(port string) bool {
	number, err := strconv.Atoi(port)
	if err != nil {
		return false
	}
	return listensTCP(number)
}
