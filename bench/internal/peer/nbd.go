// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/bench/internal/fio"
	"github.com/zc-relay/zc-relay/bench/internal/process"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
)

// Gateway is the name of the peer that is zc-relay itself, accessed as the other NBD servers are.
const Gateway = "fio nbd, zc-relay"

// gateway is the volume of the chain, accessed by fio over NBD: five processes.
func gateway() Peer {
	return nbd(Gateway, "fio", func(j *Job, socket string) ([]string, error) {
		return j.Gateway(socket), nil
	})
}

// NBDKit is the name of the peer nbdkit.
const NBDKit = "fio nbd, nbdkit memory"

// nbdkit is a disk in the memory of nbdkit, accessed by fio over NBD on a Unix socket: two
// processes, no relay.
func nbdkit() Peer {
	return nbd(NBDKit, "nbdkit", func(j *Job, socket string) ([]string, error) {
		return []string{"nbdkit", "--foreground", "--unix", socket, "memory",
			strconv.FormatUint(uint64(j.VolumeSize), 10)}, nil
	}, "nbdkit")
}

// diskDirectory is a directory on a file system in memory.
const diskDirectory = "/dev/shm"

// qemuStorageDaemon is a file in memory, served by qemu-storage-daemon.
func qemuStorageDaemon() Peer {
	return nbd("fio nbd, qemu-storage-daemon", "qemu-storage-daemon",
		func(j *Job, socket string) ([]string, error) {
			disk := filepath.Join(diskDirectory, filepath.Base(j.Directory)+".disk")
			file, err := os.Create(disk)
			if err != nil {
				return nil, err
			}
			if err := errors.Join(file.Truncate(int64(j.VolumeSize)), file.Close()); err != nil {
				return nil, err
			}
			return []string{
				"qemu-storage-daemon", "--blockdev", "driver=file,node-name=disk,filename=" + disk,
				"--nbd-server", "addr.type=unix,addr.path=" + socket,
				"--export", "type=nbd,id=disk,node-name=disk,name=,writable=on",
			}, nil
		}, "qemu-system-common")
}

func nbd(name, program string,
	command func(j *Job, socket string) ([]string, error), packages ...string) Peer {
	return Peer{
		Name: name, Programs: []string{program, "fio"}, Packages: append(packages, "fio"),
		Knows: func(w benchsuite.Workload) bool { return w.Sessions == 1 },
		Measure: func(ctx context.Context, j *Job) (benchsuite.Run, error) {
			socket := filepath.Join(j.Directory, "nbd")
			defer os.Remove(filepath.Join(diskDirectory, filepath.Base(j.Directory)+".disk"))
			defer os.Remove(socket)
			line, err := command(j, socket)
			if err != nil {
				return benchsuite.Run{}, err
			}
			server, err := process.Start(j.Directory, program, line...)
			if err != nil {
				return benchsuite.Run{}, err
			}
			run, err := measureNBD(ctx, j, server, socket)
			return run, errors.Join(err, server.Stop())
		},
	}
}

func measureNBD(ctx context.Context, j *Job, server *process.Process,
	socket string) (benchsuite.Run, error) {
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := server.Await(starting, func() bool {
		sockets, err := os.ReadFile("/proc/net/unix")
		return err == nil && strings.Contains(string(sockets), socket)
	})
	if err != nil {
		return benchsuite.Run{}, err
	}
	job := fio.Job{
		Engine: "nbd", Arguments: []string{"--uri=nbd+unix:///?socket=" + socket},
		Size: j.VolumeSize, Warmup: j.Warmup, Runtime: j.Runtime,
	}
	if err := fillNBD(ctx, job); err != nil {
		return benchsuite.Run{}, err
	}
	return job.Measure(ctx, j.Workload)
}

// fillNBD writes the whole disk once, like a volume.
func fillNBD(ctx context.Context, job fio.Job) error {
	_, err := process.Output(ctx, append([]string{
		"fio", "--name=fill", "--ioengine=" + job.Engine, "--rw=" + string(benchsuite.Write),
		"--bs=" + strconv.Itoa(int(size.MiB)),
		"--iodepth=4", "--size=" + strconv.FormatUint(uint64(job.Size), 10),
	}, job.Arguments...)...)
	return err
}
