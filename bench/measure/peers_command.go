// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/bench/internal/peer"
	"github.com/zc-relay/zc-relay/bench/internal/process"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
)

// peersCommand is "measure peers".
type peersCommand struct {
	options runOptions
	install bool
}

func newPeersCommand() *cobra.Command {
	c := &peersCommand{}
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "Measure the chain and comparable programs in Debian",
		Long: `peers runs the same sizes and depths on zc-relay and on iperf3, fio over NBD with
the gateway of zc-relay, with nbdkit and with qemu-storage-daemon, ucx_perftest and fi_pingpong,
one after another.
It installs missing programs with apt-get as root, and skips them otherwise. It writes
result.json, result.md and result.svg to a directory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.options.run(cmd.Context(), cmd.ErrOrStderr(), c.measure)
		},
	}
	f := cmd.Flags()
	c.options.add(f)
	f.BoolVar(&c.install, "install", os.Geteuid() == 0, "install missing programs with apt-get")
	return cmd
}

func (c *peersCommand) measure(r *runner) error {
	peers := peer.All()
	if c.install {
		if err := install(r, peers); err != nil {
			r.skip("installing", err.Error())
		}
	}
	peers = slices.DeleteFunc(peers, func(p peer.Peer) bool {
		reason := p.Missing()
		if reason != "" {
			r.skip(p.Name, reason)
		}
		return reason != ""
	})
	workloads, err := workloadsOf([]string{"small", "large"})
	if err != nil {
		return err
	}
	workloads = append(workloads, severalConnections.workloads()...)
	for repetition := range r.options.repetitions {
		for i, w := range workloads {
			fmt.Fprintf(r.log, "%d/%d %3d/%d %s", repetition+1, r.options.repetitions, i+1,
				len(workloads), w)
			if err := r.measureOne(w); err != nil {
				return fmt.Errorf("%s: %w", w, err)
			}
			if err := r.measurePeers(peers, w); err != nil {
				return err
			}
		}
		if err := r.stop(); err != nil {
			return err
		}
	}
	r.judgePeers()
	return nil
}

// severalConnections are the workloads of an NBD client with four connections.
var severalConnections = baseAxes().with(bothRandom, depths(32, 128),
	func(a *axes) { a.queues = []int{4} })

// install installs the programs that the peers need.
func install(r *runner, peers []peer.Peer) error {
	var packages []string
	for _, p := range peers {
		if p.Missing() != "" {
			packages = append(packages, p.Packages...)
		}
	}
	if len(packages) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("apt-get is not available")
	}
	fmt.Fprintf(r.log, "installing %s\n", strings.Join(packages, " "))
	_, err := process.Output(r.ctx, append([]string{
		"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq",
		"--no-install-recommends",
	}, packages...)...)
	return err
}

// measurePeers runs a workload on every peer that knows it. It skips a peer that fails, which is no
// reason to stop.
func (r *runner) measurePeers(peers []peer.Peer, w benchsuite.Workload) error {
	for _, p := range peers {
		if !p.Knows(w) {
			continue
		}
		directory, err := os.MkdirTemp("", "zc-relay-peer")
		if err != nil {
			return err
		}
		run, err := p.Measure(r.ctx, &peer.Job{
			Workload: w, Warmup: r.options.warmup, Runtime: r.options.runtime,
			VolumeSize: r.options.volumeSize, Directory: directory,
			Gateway: r.chain.Gateway,
		})
		if removeErr := os.RemoveAll(directory); removeErr != nil {
			return removeErr
		}
		if r.ctx.Err() != nil {
			return r.ctx.Err()
		}
		if err != nil {
			r.skip(p.Name+", "+w.String(), err.Error())
			continue
		}
		r.document.Add(p.Name, w, run)
		fmt.Fprintf(r.log, "      %s: %.0f IOPS\n", p.Name, run.IOPS)
	}
	return nil
}

// Goals for the throughput of long requests relative to one TCP stream, and for the NBD gateway
// relative to nbdkit: the IOPS of single requests, the throughput of long ones, and the IOPS of
// several connections.
const (
	atLeastStream            = 0.9
	atLeastNBDKit            = 1.0
	atLeastNBDKitConnections = 1.5
)

// longRequest is the size from which on throughput matters, in bytes.
const longRequest = 128 * size.KiB

func (r *runner) judgePeers() {
	for i := range r.document.Cases {
		c := &r.document.Cases[i]
		nbdkit := r.document.Find(peer.NBDKit, c.Workload)
		switch {
		case c.System == system:
			r.compare(c, r.document.Find(peer.IPerf3, c.Workload), benchsuite.BytesPerSecond,
				atLeastStream, false)
		case c.System != peer.Gateway:
		case size.Bytes(c.Workload.BlockSize) >= longRequest:
			r.compare(c, nbdkit, benchsuite.BytesPerSecond, atLeastNBDKit, false)
		case c.Workload.QueueDepth == 1:
			r.compare(c, nbdkit, benchsuite.IOPS, atLeastNBDKit, false)
		case c.Workload.Queues > 1:
			r.compare(c, nbdkit, benchsuite.IOPS, atLeastNBDKitConnections, false)
		}
	}
}
