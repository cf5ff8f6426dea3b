// SPDX-License-Identifier: Apache-2.0

// Package sample is the common part of the Comch samples: the flags, the loop around the progress
// engine, and helpers for the steps that several samples share.
//
// A sample runs on one thread. It starts one server or client, and then makes progress until that
// context is idle. Callbacks do all the work; the first error that one of them passes to Check ends
// the sample.
package sample

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// The values that the original samples use.
const (
	SendTasks    = 1024                      // in the pool of a context
	ReceiveQueue = 10                        // control messages
	defaultText  = "Message from the client" // of both sides
	maxText      = 4080                      // bytes
)

// Sample is one program.
type Sample struct {
	Provider    comch.Provider
	Engine      *progress.Engine
	Device      string // -p
	Representor string // -r
	Text        string // -t

	err error
}

// Context is the server or client of a sample.
type Context interface {
	State() progress.State
	Err() error
	Stop() error
}

// Main reads the flags, calls start, makes progress until the context that start returns is idle,
// and exits. device is the default of the flag --pci-addr.
func Main(device string, start func(*Sample) (Context, error)) {
	if err := run(device, start); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func run(device string, start func(*Sample) (Context, error)) error {
	s := &Sample{}
	provider, directory := "", ""
	flags := pflag.NewFlagSet(filepath.Base(os.Args[0]), pflag.ContinueOnError)
	flags.StringVarP(&s.Device, "pci-addr", "p", device, "DOCA Comch device PCIe address")
	flags.StringVarP(&s.Representor, "rep-pci", "r", emulated.DefaultRepresentor,
		"DOCA Comch device representor PCIe address (needed only on the DPU)")
	flags.StringVarP(&s.Text, "text", "t", defaultText,
		"text to be sent to the other side of the channel")
	flags.StringVar(&provider, "comch-provider", "emulated", "Comch provider: emulated or doca")
	flags.StringVar(&directory, "emulated-dir", "",
		`directory of the emulated Comch (default "`+emulated.DefaultDirectory()+`")`)
	if err := flags.Parse(os.Args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	if len(s.Text) > maxText {
		return fmt.Errorf("--text has %d bytes, the limit is %d", len(s.Text), maxText)
	}
	switch provider {
	case "emulated":
		s.Provider = emulated.New(emulated.Options{Directory: directory})
	case "doca":
		s.Provider = doca.New(doca.Options{})
	default:
		return fmt.Errorf("--comch-provider %q is neither emulated nor doca", provider)
	}
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	s.Engine = engine
	main, err := start(s)
	if err != nil {
		return err
	}
	s.drive(main)
	return errors.Join(s.err, main.Err())
}

// drive makes progress until the context is idle or an error occurs. SIGINT and SIGTERM stop the
// context. A context belongs to the thread of its engine, so the goroutine that waits for the
// signal makes the engine call Stop.
func (s *Sample) drive(main Context) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() {
		s.Engine.Do(func() { s.Check(main.Stop()) })
	})
	for main.State() != progress.Idle && s.err == nil {
		s.Engine.Idle(s.Engine.Progress())
	}
}

// Check keeps the first error, which ends the sample.
func (s *Sample) Check(err error) {
	if err != nil && s.err == nil {
		s.err = err
	}
}

// Sender is a server or a client.
type Sender interface {
	AllocateSend(connection *contexts.Connection, message []byte) (*contexts.SendTask, error)
}

// Send sends a control message: it allocates a task from the sender's pool and submits it.
// SendCompleted or SendFailed of the sender must free the task.
func (s *Sample) Send(from Sender, connection *contexts.Connection, text string) {
	task, err := from.AllocateSend(connection, []byte(text))
	if err == nil {
		err = task.Submit()
	}
	s.Check(err)
}

// SendFailed is a callback for failed control messages: the failure ends the sample.
func (s *Sample) SendFailed(task *contexts.SendTask, err error) {
	s.Check(err)
	s.Check(task.Free())
}

// Log prints a received message.
func Log(text []byte) { fmt.Printf("Message received: '%s'\n", text) }
