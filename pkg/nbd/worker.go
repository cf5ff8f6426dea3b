// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// worker is a thread that serves connections. Only that thread touches them; others send it
// commands through the engine.
type worker struct {
	index       int
	log         *zap.Logger
	thread      *progress.Thread
	poller      *poller
	connections atomic.Int64

	// The thread's.
	disks    []attachedDisk
	slots    []*connection        // by the slots of the poller; nil where there is none
	reserved map[*connection]bool // have a place, and negotiate
	ready    []*connection        // have something to do
	out      linux.Gather         // of the connection that sends
	draining bool                 // takes no more connections
	empty    chan struct{}        // closed when no connection is left; nil unless stop waits
}

// attachedDisk is the disk of an export on this worker.
type attachedDisk struct {
	export *export
	disk   blockio.Disk
}

func startWorker(index int, config *Config) (*worker, error) {
	poller, err := newPoller()
	if err != nil {
		return nil, err
	}
	thread, err := progress.StartThread(config.Policy)
	if err != nil {
		poller.close()
		return nil, err
	}
	w := &worker{index: index, log: config.Logger, thread: thread, poller: poller,
		reserved: make(map[*connection]bool)}
	if err := w.do(func() error { return thread.Engine().Add(w) }); err != nil {
		poller.close()
		return nil, errors.Join(err, thread.Stop())
	}
	return w, nil
}

// do runs a command on the thread and waits for it.
func (w *worker) do(command func() error) error { return w.thread.Run(command) }

// attach opens an export on the thread.
func (w *worker) attach(e *export) error {
	return w.do(func() error {
		engine := w.thread.Engine()
		disk, err := e.Attach(w.index, engine)
		if err != nil {
			return err
		}
		// Disks before sockets: a turn sends the replies to what has completed in it.
		engine.Remove(w)
		if err := errors.Join(engine.Add(disk), engine.Add(w)); err != nil {
			return errors.Join(err, disk.Close())
		}
		w.disks = append(w.disks, attachedDisk{e, disk})
		return nil
	})
}

// detach closes an export without connections.
func (w *worker) detach(e *export) {
	_ = w.do(func() error {
		w.disks = slices.DeleteFunc(w.disks, func(d attachedDisk) bool {
			if d.export != e {
				return false
			}
			w.thread.Engine().Remove(d.disk)
			w.logFailure("close the disk of export "+e.name, d.disk.Close())
			return true
		})
		return nil
	})
}

func (w *worker) logFailure(what string, err error) {
	if err != nil {
		w.log.Warn(what, zap.Error(err))
	}
}

// reserve opens a session for a connection that negotiates.
func (w *worker) reserve(c *connection) error {
	return w.do(func() error {
		i := slices.IndexFunc(w.disks, func(d attachedDisk) bool { return d.export == c.export })
		if i < 0 || w.isOver(c.export) {
			return errEnded(c.export)
		}
		var err error
		if c.session, err = w.disks[i].disk.Open(c); err == nil {
			w.reserved[c] = true
		}
		return err
	})
}

// isOver reports whether the worker takes no more connections to an export.
func (w *worker) isOver(e *export) bool { return w.draining || e.ended.Load() }

func errEnded(e *export) error { return fmt.Errorf("export %q has ended", e.name) }

// cancel undoes reserve, unless stop has done that.
func (w *worker) cancel(c *connection) {
	_ = w.do(func() error {
		w.closeReserved(c)
		return nil
	})
}

func (w *worker) closeReserved(c *connection) {
	if w.reserved[c] {
		delete(w.reserved, c)
		c.session.Close()
	}
}

// serve takes over a connection that has a place and has negotiated. It closes the socket if it
// fails.
func (w *worker) serve(c *connection, agreed *agreement, s socket, client string) error {
	err := w.do(func() error {
		if !w.reserved[c] || w.isOver(c.export) {
			w.closeReserved(c)
			return errEnded(c.export)
		}
		c.start(agreed, s, client)
		if err := w.place(c); err != nil {
			w.closeReserved(c)
			return err
		}
		delete(w.reserved, c)
		return nil
	})
	if err != nil {
		s.close()
	}
	return err
}

// leaving returns the connections to an export whose clients will send nothing more. It ends those
// whose clients are gone.
func (w *worker) leaving(e *export) (all []*connection) {
	_ = w.do(func() error {
		for _, c := range w.slots {
			if c != nil && c.export == e && c.isLeaving() {
				all = append(all, c)
			}
		}
		return nil
	})
	return all
}

// end ends a connection.
func (w *worker) end(c *connection, reason string) {
	_ = w.do(func() error {
		c.close(reason)
		return nil
	})
}

// place gives a connection a slot, and starts to watch its socket.
func (w *worker) place(c *connection) error {
	slot := slices.Index(w.slots, nil)
	if slot < 0 {
		slot = len(w.slots)
		w.slots = append(w.slots, nil)
	}
	if err := w.poller.add(c.socket, int32(slot)); err != nil {
		return err
	}
	w.slots[slot], c.slot = c, int32(slot)
	for _, set := range c.counted {
		set.include(&c.counters)
	}
	w.connections.Add(1)
	w.log.Info("NBD client connected", zap.String("client", c.client),
		zap.String("export", c.export.name), zap.Bool("tls", c.encrypted))
	return nil
}

// drain ends the connections to an export, or all of them, after the requests that they have sent.
func (w *worker) drain(e *export) {
	_ = w.do(func() error {
		w.draining = w.draining || e == nil
		for _, c := range w.slots {
			if c != nil && (e == nil || c.export == e) {
				c.drain()
			}
		}
		return nil
	})
}

// awaitEmpty waits until all connections have ended. It fails when ctx ends before that.
func (w *worker) awaitEmpty(ctx context.Context) error {
	empty := make(chan struct{})
	_ = w.do(func() error {
		w.empty = empty
		w.checkEmpty()
		return nil
	})
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
	}
	if n := w.connections.Load(); n > 0 {
		return status.Errorf(status.TimeOut, "%d NBD connections were aborted: %w", n, ctx.Err())
	}
	return nil
}

// stop ends the thread, and the connections that there are.
func (w *worker) stop() error {
	var failure error
	_ = w.do(func() error {
		for _, c := range w.slots {
			if c != nil {
				c.close("the server shuts down")
			}
		}
		for c := range w.reserved {
			w.closeReserved(c)
		}
		for _, d := range w.disks {
			w.thread.Engine().Remove(d.disk)
			failure = errors.Join(failure, d.disk.Close())
		}
		w.disks = nil
		return nil
	})
	err := errors.Join(failure, w.thread.Stop())
	w.poller.close()
	return err
}

// checkEmpty reports to stop that the last connection has ended.
func (w *worker) checkEmpty() {
	if w.empty != nil && w.connections.Load() == 0 {
		close(w.empty)
		w.empty = nil
	}
}

// Poll serves what is ready (progress.Source).
func (w *worker) Poll() int {
	work := 0
	for _, event := range w.poller.ready() {
		if c := w.slots[event.Fd]; c != nil {
			c.serve(&event)
			work++
		}
	}
	for i := 0; i < len(w.ready); i++ {
		c := w.ready[i]
		c.isReady = false
		c.advance()
		work++
	}
	clear(w.ready)
	w.ready = w.ready[:0]
	if work > 0 {
		for i := range w.disks {
			w.disks[i].disk.Ring()
		}
	}
	return work
}

// Descriptor is readable while a socket is ready (progress.Waiter).
func (w *worker) Descriptor() int { return w.poller.descriptor }

// Arm has nothing to announce: epoll looks at the sockets' state.
func (w *worker) Arm() bool { return len(w.ready) == 0 }

// Disarm does nothing.
func (w *worker) Disarm() {}

// Drain does nothing: Poll consumes what made the descriptor readable.
func (w *worker) Clear() {}
