// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/epoll"
)

// poller reports which streams of a completion queue are ready. Streams that are not sockets of the
// kernel are asked in turn, and the descriptor does not report them.
type poller struct {
	*epoll.Poller
	streams []watchedStream
	asked   int // index of the stream that was asked last
}

// watchedStream is a stream, and what the poller reports about it.
type watchedStream struct {
	stream   network.Pollable
	slot     int32
	writable bool // also report when the stream is writable
}

// add starts reporting on the socket of the connection in slot.
func (p *poller) add(s *socket, slot int32) error {
	if s.stream != nil {
		p.streams = append(p.streams, watchedStream{stream: s.stream, slot: slot})
		return nil
	}
	return p.Add(s.descriptor, slot)
}

// watchWritable sets whether the poller also reports when the socket is writable.
func (p *poller) watchWritable(s *socket, slot int32, on bool) error {
	if s.stream != nil {
		p.streams[p.stream(slot)].writable = on
		return nil
	}
	return p.WatchWritable(s.descriptor, slot, on)
}

// stream returns the index of the stream in slot.
func (p *poller) stream(slot int32) int {
	return slices.IndexFunc(p.streams, func(w watchedStream) bool { return w.slot == slot })
}

func (p *poller) remove(s *socket, slot int32) {
	if s.stream != nil {
		i := p.stream(slot)
		p.streams = slices.Delete(p.streams, i, i+1)
		return
	}
	p.Remove(s.descriptor)
}

// ready returns events for at most limit sockets, and for streams, without waiting.
func (p *poller) ready(limit int) []epoll.Event {
	events := p.Ready(limit)
	if len(p.streams) > 0 {
		events = p.askStreams(events)
	}
	return events
}

// askStreams appends the events of the streams as far as there is room. Those for which there is
// none come first in the next call.
func (p *poller) askStreams(events []epoll.Event) []epoll.Event {
	for range p.streams {
		if len(events) == epoll.MaxEvents {
			break
		}
		p.asked = (p.asked + 1) % len(p.streams)
		w := &p.streams[p.asked]
		var ready uint32
		if w.stream.Readable() {
			ready |= unix.EPOLLIN
		}
		if w.writable && w.stream.Writable() {
			ready |= unix.EPOLLOUT
		}
		if ready != 0 {
			events = append(events, epoll.Event{Events: ready, Fd: w.slot})
		}
	}
	return events
}
