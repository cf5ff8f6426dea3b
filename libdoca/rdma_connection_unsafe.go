// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include <stdlib.h>
// #include "skin.h"
import "C"

import (
	"bytes"
	"context"
	"crypto/rand"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"github.com/zc-relay/zc-relay/libdoca/internal/link"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// helloTimeout bounds how long a peer that has connected may take to say what it wants.
	helloTimeout = 5 * time.Second
	// maxHellos bounds the peers of one listener that have not said it.
	maxHellos = 64
)

// rdmaConnection is the core of a connection.
type rdmaConnection struct {
	core      *rdmaCore
	c         *C.struct_doca_rdma_connection // used by the engine's thread alone
	token     link.Key
	byAddress bool

	mu          sync.Mutex
	peer        link.Key // of a connection by details; zero before doca_rdma_connect
	waiting     net.Conn // what the peer has opened, before this side has agreed
	from        link.Key // whom waiting is from
	watcher     net.Conn // of the peer; ends with this side
	stopDialing context.CancelFunc
	link        *link.Link
	queue       []*link.Request // before there is a link
	err         error           // why it has ended
}

var rdmaConnections table[rdmaConnection]

// newConnection makes a connection, on the engine's thread.
func (c *rdmaCore) newConnection(state C.enum_emu_rdma_state) (*rdmaConnection, error) {
	r := &rdmaConnection{core: c}
	_, _ = rand.Read(r.token[:]) // never fails
	number := rdmaConnections.add(r)
	if r.c = C.emu_rdma_connection_new(c.rdma, number, state); r.c == nil {
		rdmaConnections.remove(number)
		return nil, status.Errorf(status.Full, "the context has %d connections",
			c.rdma.max_connections)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections[r.token] = r
	return r, nil
}

//export emuRdmaEndConnection
func emuRdmaEndConnection(number C.uint32_t) {
	r := rdmaConnections.get(number)
	rdmaConnections.remove(number)
	r.core.mu.Lock()
	delete(r.core.connections, r.token)
	r.core.mu.Unlock()
	r.end(errStopped)
}

func coreOf(number C.uint32_t) *rdmaCore { return (*cores.get(number)).(*rdmaCore) }

// submit passes a request on, or queues it until there is a link.
func (r *rdmaConnection) submit(request *link.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.err != nil:
		request.Done(r.err)
	case r.link != nil:
		r.link.Submit(request)
	default:
		r.queue = append(r.queue, request)
	}
}

// end ends the connection. What is queued fails; what the link has fails before it ends.
func (r *rdmaConnection) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(err)
}

func (r *rdmaConnection) endLocked(err error) {
	if r.err == nil {
		r.err = err
	}
	if r.waiting != nil {
		_ = r.waiting.Close()
		r.waiting = nil
	}
	if r.watcher != nil {
		_ = r.watcher.Close()
		r.watcher = nil
	}
	if r.stopDialing != nil {
		r.stopDialing()
	}
	if r.link != nil {
		r.link.Close()
	}
	for _, request := range r.queue {
		request.Done(r.err)
	}
	r.queue = nil
}

// establish makes the link. It returns false if the connection has ended.
func (r *rdmaConnection) establish(stream net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.link != nil {
		_ = stream.Close()
		return false
	}
	if r.stopDialing != nil {
		r.stopDialing()
	}
	l := link.New(stream, r)
	r.link = l
	for _, request := range r.queue {
		l.Submit(request)
	}
	r.queue = nil
	r.core.running.Go(func() {
		l.Wait()
		r.end(status.Errorf(status.NotConnected, "the connection has ended"))
		if r.byAddress {
			r.post(C.EMU_ENTRY_RDMA_DISCONNECTED)
		}
	})
	return true
}

// post puts an event into the ring.
func (r *rdmaConnection) post(kind C.uint32_t) {
	r.core.engine.do(func() { r.push(kind) })
}

func (r *rdmaConnection) push(kind C.uint32_t) {
	r.core.engine.push(C.struct_emu_entry{kind: kind, ctx: r.core.ctx,
		object: unsafe.Pointer(r.c)})
}

// Receive implements link.Handler.
func (r *rdmaConnection) Receive(ctx context.Context) (link.Receive, error) {
	return r.core.takeReceive(ctx, r)
}

// Access implements link.Handler.
func (r *rdmaConnection) Access(operation link.Operation, key link.Key, address uint64,
	data []byte) error {
	return accessWindow(operation, key, address, data, r.core.permissions)
}

// Atomic implements link.Handler.
func (r *rdmaConnection) Atomic(operation link.Operation, key link.Key, address uint64,
	operands [2]uint64) (uint64, error) {
	return changeWindow(operation, key, address, operands, r.core.permissions)
}

// listen accepts connections on a port; 0 picks one for connections by details.
func (c *rdmaCore) listen(port uint16, serve func(net.Conn, link.Hello)) error {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(c.address, port).String())
	if err != nil {
		return status.Errorf(status.OperatingSystem, "listen for RDMA: %w", err)
	}
	c.mu.Lock()
	c.listeners[port] = listener
	c.mu.Unlock()
	c.running.Go(func() {
		free := make(chan struct{}, maxHellos)
		for {
			select {
			case free <- struct{}{}:
			case <-c.context.Done():
				return
			}
			stream, err := listener.Accept()
			if err != nil {
				return // it is closed
			}
			c.running.Go(func() {
				defer func() { <-free }()
				stop := context.AfterFunc(c.context, func() { _ = stream.Close() })
				defer stop()
				_ = stream.SetDeadline(time.Now().Add(helloTimeout))
				hello, err := link.ReadHello(stream)
				if err != nil {
					_ = stream.Close()
					return
				}
				_ = stream.SetDeadline(time.Time{})
				serve(stream, hello)
			})
		}
	})
	return nil
}

// dial connects to a peer, and waits for its agreement: both until a deadline, unless it is zero.
func (c *rdmaCore) dial(
	ctx context.Context, address string, hello link.Hello, deadline time.Time,
) (net.Conn, error) {
	if err := c.checkGID(); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: startTimeout, Deadline: deadline}
	stream, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, status.Errorf(status.NotConnected, "connect to %s: %w", address, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()
	_ = stream.SetDeadline(deadline)
	err = link.WriteHello(stream, hello)
	if err == nil {
		_, err = link.ReadReply(stream)
	}
	if err != nil {
		_ = stream.Close()
		return nil, err
	}
	_ = stream.SetDeadline(time.Time{})
	return stream, nil
}

// The details of a connection: magic, version, token, and the address of the listener.
const (
	detailsMagic   = "zcrc"
	detailsVersion = 1
	detailsHeader  = 4 + 1 + 16
	maxDetails     = detailsHeader + 64
)

// decodeDetails returns what details say. They are not to be trusted.
func decodeDetails(b []byte) (token link.Key, address netip.AddrPort, err error) {
	if len(b) > detailsHeader && len(b) <= maxDetails && string(b[:4]) == detailsMagic &&
		b[4] == detailsVersion {
		if address, err = netip.ParseAddrPort(string(b[detailsHeader:])); err == nil {
			return link.Key(b[5:detailsHeader]), address, nil
		}
	}
	return link.Key{}, netip.AddrPort{}, status.Errorf(status.InvalidValue,
		"%d bytes are no details of a connection that this library has exported", len(b))
}

//export emuRdmaExport
func emuRdmaExport(ctx *C.struct_doca_ctx, connection **C.struct_doca_rdma_connection) C.int {
	c := coreOf(ctx.core)
	c.mu.Lock()
	listener := c.listeners[0]
	c.mu.Unlock()
	if listener == nil {
		if err := c.listen(0, c.offer); err != nil {
			return failed("export rdma", err)
		}
		c.mu.Lock()
		listener = c.listeners[0]
		c.mu.Unlock()
	}
	r, err := c.newConnection(C.EMU_RDMA_EXPORTED)
	if err != nil {
		return failed("export rdma", err)
	}
	b := append([]byte(detailsMagic), detailsVersion)
	b = append(append(b, r.token[:]...), listener.Addr().String()...)
	r.c.details, r.c.details_size = C.CBytes(b), C.size_t(len(b))
	*connection = r.c
	return C.DOCA_SUCCESS
}

// offer takes a stream that a peer has opened for a connection by details: to make the link of it,
// or to watch this side; see emuRdmaConnect.
func (c *rdmaCore) offer(stream net.Conn, hello link.Hello) {
	c.mu.Lock()
	r := c.connections[hello.To]
	c.mu.Unlock()
	if r == nil || r.byAddress {
		_ = stream.Close()
		return
	}
	watches := bytes.Compare(hello.From[:], r.token[:]) > 0
	r.mu.Lock()
	isNew := r.err == nil && r.link == nil && r.waiting == nil
	if watches {
		isNew = r.err == nil && r.watcher == nil
	}
	switch {
	case !isNew:
		_ = stream.Close()
	case watches:
		r.watcher = stream
	default:
		r.waiting, r.from = stream, hello.From
	}
	r.mu.Unlock()
	if isNew && !watches {
		r.agree()
	}
}

// agree makes the link once both sides have agreed, if the peer is the one to dial.
func (r *rdmaConnection) agree() {
	r.mu.Lock()
	stream := r.waiting
	if stream == nil || r.peer == (link.Key{}) {
		r.mu.Unlock()
		return
	}
	r.waiting = nil
	isPeer := r.from == r.peer
	r.mu.Unlock()
	if !isPeer || link.WriteReply(stream, true, nil) != nil {
		_ = stream.Close()
		return
	}
	r.establish(stream)
}

//export emuRdmaConnect
func emuRdmaConnect(connection *C.struct_doca_rdma_connection, details unsafe.Pointer,
	length C.size_t) C.int {
	r := rdmaConnections.get(connection.core)
	peer, address, err := decodeDetails(C.GoBytes(details, C.int(min(length, maxDetails+1))))
	if err == nil && peer == r.token {
		err = status.Errorf(status.InvalidValue, "the details are those of the same connection")
	}
	if err != nil {
		return failed("connect rdma", err)
	}
	// Both sides dial, and wait for an answer until the peer's application connects. The side with
	// the lesser token gets one, and its stream becomes the link. The other side only watches the
	// peer, which may die before it dials.
	ctx, cancel := context.WithCancel(r.core.context)
	r.mu.Lock()
	r.peer, r.stopDialing = peer, cancel
	r.mu.Unlock()
	r.core.running.Go(func() {
		defer cancel()
		hello := link.Hello{To: peer, From: r.token}
		stream, err := r.core.dial(ctx, address.String(), hello, time.Time{})
		if err == nil {
			r.establish(stream)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.link == nil {
			r.endLocked(err)
		}
	})
	r.agree()
	return C.DOCA_SUCCESS
}

// Connections by address.

//export emuIsAddress
func emuIsAddress(text *C.char, isIPv4 C.bool) C.bool {
	address, err := netip.ParseAddr(C.GoString(text))
	return C.bool(err == nil && address.Is4() == bool(isIPv4))
}

//export emuRdmaListen
func emuRdmaListen(number C.uint32_t, port C.uint16_t) C.int {
	c := coreOf(number)
	c.mu.Lock()
	_, exists := c.listeners[uint16(port)]
	c.mu.Unlock()
	if exists {
		return C.DOCA_ERROR_ALREADY_EXIST
	}
	if err := c.listen(uint16(port), c.requested); err != nil {
		return failed("listen", err)
	}
	return C.DOCA_SUCCESS
}

//export emuRdmaStopListening
func emuRdmaStopListening(number C.uint32_t, port C.uint16_t) C.int {
	c := coreOf(number)
	c.mu.Lock()
	defer c.mu.Unlock()
	listener, exists := c.listeners[uint16(port)]
	if !exists || port == 0 {
		return C.DOCA_ERROR_NOT_FOUND
	}
	delete(c.listeners, uint16(port))
	_ = listener.Close()
	return C.DOCA_SUCCESS
}

// requested passes a request of a peer to the application.
func (c *rdmaCore) requested(stream net.Conn, _ link.Hello) {
	posted := c.engine.do(func() {
		if c.context.Err() != nil {
			_ = stream.Close()
			return
		}
		r, err := c.newConnection(C.EMU_RDMA_REQUESTED)
		if err != nil {
			failed("accept connection of rdma", err)
			c.running.Go(func() {
				_ = stream.SetDeadline(time.Now().Add(helloTimeout))
				_ = link.WriteReply(stream, false, nil)
				_ = stream.Close()
			})
			return
		}
		r.byAddress, r.waiting = true, stream
		r.setAddress(stream.RemoteAddr())
		r.push(C.EMU_ENTRY_RDMA_REQUEST)
	})
	if !posted {
		_ = stream.Close()
	}
}

//export emuRdmaAccept
func emuRdmaAccept(number C.uint32_t, data unsafe.Pointer, length C.uint8_t) {
	r := rdmaConnections.get(number)
	privateData := C.GoBytes(data, C.int(length))
	r.core.running.Go(func() {
		r.mu.Lock()
		stream := r.waiting
		r.waiting = nil
		r.mu.Unlock()
		if stream == nil {
			return // it has ended
		}
		_ = stream.SetDeadline(time.Now().Add(helloTimeout))
		err := link.WriteReply(stream, true, privateData)
		_ = stream.SetDeadline(time.Time{})
		if err != nil {
			_ = stream.Close()
		}
		r.finish(stream, err)
	})
}

// finish tells the application how setting up a connection by address went.
func (r *rdmaConnection) finish(stream net.Conn, err error) {
	r.core.engine.do(func() {
		if r.core.context.Err() != nil {
			if stream != nil {
				_ = stream.Close()
			}
			return
		}
		if err == nil && r.establish(stream) {
			r.push(C.EMU_ENTRY_RDMA_ESTABLISHED) // what the peer does is told after that
			return
		}
		if err != nil {
			failed("connect rdma", err)
			r.end(err)
		}
		r.post(C.EMU_ENTRY_RDMA_FAILURE) // behind the tasks that have failed with the connection
	})
}

//export emuRdmaReject
func emuRdmaReject(number C.uint32_t) {
	r := rdmaConnections.get(number)
	r.mu.Lock()
	stream := r.waiting
	r.waiting = nil
	r.mu.Unlock()
	r.core.running.Go(func() {
		_ = stream.SetDeadline(time.Now().Add(helloTimeout))
		_ = link.WriteReply(stream, false, nil)
		_ = stream.Close()
	})
}

// setAddress notes the address of a peer that has connected.
func (r *rdmaConnection) setAddress(address net.Addr) {
	peer, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return
	}
	kind := C.enum_doca_rdma_addr_type(C.DOCA_RDMA_ADDR_TYPE_IPv4)
	if !peer.Addr().Unmap().Is4() {
		kind = C.DOCA_RDMA_ADDR_TYPE_IPv6
	}
	text := C.CString(peer.Addr().Unmap().WithZone("").String())
	defer C.free(unsafe.Pointer(text))
	C.emu_rdma_set_addr(r.c, kind, text, C.uint16_t(peer.Port()))
}

//export emuRdmaConnectTo
func emuRdmaConnectTo(number C.uint32_t, addr *C.struct_doca_rdma_addr, userData C.uint64_t) C.int {
	c := coreOf(number)
	r, err := c.newConnection(C.EMU_RDMA_CONNECTING)
	if err != nil {
		return failed("connect rdma", err)
	}
	r.byAddress = true
	*(*C.uint64_t)(unsafe.Pointer(&r.c.user_data)) = userData
	C.emu_rdma_set_addr(r.c, addr._type, &addr.text[0], addr.port)
	parsed, _ := netip.ParseAddr(C.GoString(&addr.text[0])) // doca_rdma_addr_create has checked it
	to := net.JoinHostPort(parsed.Unmap().String(), strconv.Itoa(int(addr.port)))
	deadline := time.Now().Add(time.Duration(c.rdma.request_timeout_ms) * time.Millisecond)
	c.running.Go(func() { r.finish(c.dial(c.context, to, link.Hello{}, deadline)) })
	return C.DOCA_SUCCESS
}

//export emuRdmaDisconnect
func emuRdmaDisconnect(number C.uint32_t) {
	r := rdmaConnections.get(number)
	r.end(status.Errorf(status.NotConnected, "the connection has been disconnected"))
}
