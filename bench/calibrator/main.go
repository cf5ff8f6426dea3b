// Command calibrator is a bare chain, the baseline for the real one: three processes, a
// shared-memory ring from the client to the middle, one loopback TCP stream from there to the
// storage, messages of the same sizes, and nothing else: no checks, no slots, no sessions, no
// errors, one client.
//
//	calibrator DIRECTORY RW BLOCK_SIZE DEPTH DURATION
//
// starts the other two processes by itself and prints the client's result in the format of a run in
// zc-relay.bench-suite/1.
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
	if len(args) == 6 {
		role, args = args[5], args[:5]
	}
	p, err := parse(args)
	if err != nil {
		return err
	}
	switch role {
	case "storage":
		return runStorage(p)
	case "middle":
		return runMiddle(p)
	}
	for _, other := range []string{"storage", "middle"} {
		command := exec.Command(os.Args[0], append(os.Args[1:], other)...)
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
	if len(args) != 5 {
		return p, fmt.Errorf("usage: calibrator DIRECTORY read|write BLOCK_SIZE DEPTH DURATION")
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

func (p *parameters) sharedFile() string { return filepath.Join(p.directory, "shared") }
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
