// SPDX-License-Identifier: Apache-2.0

// Command calibrator is a bare chain, the baseline for the real one: three processes, a
// shared-memory ring from the client to the middle, one loopback TCP stream from there to the
// storage, messages of the same sizes, and nothing else: no checks, no slots, no errors, one
// client.
//
//	calibrator DIRECTORY RW BLOCK_SIZE DEPTH DURATION tcp|shm SESSIONS
//
// With shm, the storage is behind a ring in shared memory, too, and the middle copies the data
// between its memory and the client's: the baseline for the RDMA provider shm. With several
// sessions, which need tcp, the client has as many rings of that depth, and the middle a stream for
// each. The program starts the other two processes by itself and prints the client's result in the
// format of a run in zc-relay.bench-suite/1.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// parameters of a run, the same for all three processes.
type parameters struct {
	directory string
	write     bool
	blockSize int
	depth     int
	duration  time.Duration
	shm       bool // the storage is behind shared memory, not TCP
	sessions  int
}

func main() {
	runtime.LockOSThread()
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "calibrator:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	role := "client"
	if len(args) == 8 {
		role, args = args[7], args[:7]
	}
	p, err := parse(args)
	if err != nil {
		return err
	}
	switch {
	case role == "storage" && p.shm:
		return runSharedStorage(p)
	case role == "storage":
		return runStorage(p)
	case role == "middle" && p.shm:
		return runSharedMiddle(p)
	case role == "middle":
		return runMiddle(p)
	}
	for _, other := range []string{"storage", "middle"} {
		command := exec.Command(os.Args[0], append(args, other)...)
		command.Stderr = os.Stderr
		// when the parent's thread ends, here the main thread
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := command.Start(); err != nil {
			return err
		}
		defer func() {
			_ = command.Process.Kill()
			_ = command.Wait()
		}()
	}
	return runClient(p)
}

func parse(args []string) (p parameters, err error) {
	if len(args) != 7 || args[5] != "tcp" && args[5] != "shm" {
		return p, fmt.Errorf("usage: calibrator DIRECTORY read|write BLOCK_SIZE DEPTH DURATION " +
			"tcp|shm SESSIONS")
	}
	p.shm = args[5] == "shm"
	if p.sessions, err = strconv.Atoi(args[6]); err != nil {
		return p, err
	}
	if p.sessions < 1 || p.shm && p.sessions > 1 {
		return p, fmt.Errorf("cannot run %d sessions over %s", p.sessions, args[5])
	}
	p.directory, p.write = args[0], args[1] == "write"
	if p.blockSize, err = strconv.Atoi(args[2]); err != nil {
		return p, err
	}
	if p.depth, err = strconv.Atoi(args[3]); err != nil {
		return p, err
	}
	p.duration, err = time.ParseDuration(args[4])
	return p, err
}

func (p *parameters) sharedFile(session int) string {
	return filepath.Join(p.directory, "shared"+strconv.Itoa(session))
}
func (p *parameters) socketFile() string { return filepath.Join(p.directory, "address") }

// await waits until a file of another process exists.
func await(path string) error {
	for range 1000 {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("%s did not appear", path)
}
