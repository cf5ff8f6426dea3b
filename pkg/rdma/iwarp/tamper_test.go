// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// TestWhoeverChangesTLSOnItsWayHarmsNobody attacks one connection after another from between its
// ends. Both ends write, read, and send all the time. None ever has a byte in its memory that the
// other one has not put there, the attacked end says what has happened, and another connection of
// the same queues works on.
func TestWhoeverChangesTLSOnItsWayHarmsNobody(t *testing.T) {
	r := newTamperRig(t)
	r.run(t, tampering{kind: untouched})
	random := seedtest.Random(t, 0)
	count := 1000
	if testkit.IsComplete() {
		count = 10_000
	}
	for i := range count {
		if t.Failed() {
			return
		}
		r.run(t, drawTampering(random, i, r.proxy.handshakeBytes))
	}
}

// tamperKind is what is done to a stream of records.
type tamperKind int

const (
	untouched tamperKind = iota
	flipBit
	dropBytes
	insertBytes
	endByFIN
	endByReset
	repeatRecord
	replayFirst // the first record of the phase
	swapRecords
	insertPlain // a record that is not encrypted
	tamperKinds
)

var tamperNames = [tamperKinds]string{"nothing", "flip", "drop", "insert", "FIN", "reset", "repeat",
	"replay", "swap", "insert plain"}

// tampering is an attack on one connection.
type tampering struct {
	kind        tamperKind
	direction   direction
	inHandshake bool // of TLS; otherwise position counts from the end of that
	position    int  // of the first byte that is concerned, or a byte of the record
	bit         int
	bytes       []byte // to insert; as many to drop
}

func (a tampering) String() string {
	return fmt.Sprintf("%s (handshake %t, direction %d, byte %d, bit %d, %x)", tamperNames[a.kind],
		a.inHandshake, a.direction, a.position, a.bit, a.bytes)
}

const (
	// denseBytes is for how many bytes after the handshake each is changed.
	denseBytes = 200
	// sparseBytes is within how many bytes attacks begin.
	sparseBytes = 100 << 10
)

// plainRecords look as if they could end or continue a connection.
var plainRecords = [][]byte{
	{21, 3, 3, 0, 2, 1, 0},                                  // close_notify
	{21, 3, 3, 0, 2, 2, 20},                                 // bad_record_mac
	{22, 3, 3, 0, 5, 24, 0, 0, 1, 0},                        // KeyUpdate
	append([]byte{22, 3, 3, 0, 24}, make([]byte, 24)...),    // too short for a handshake message
	append([]byte{'M', 'P', 'A', ' '}, make([]byte, 20)...), // as without TLS
}

// drawTampering returns attack i. The first ones go through all positions.
func drawTampering(random *rand.Rand, i int, handshakeBytes [2]int) tampering {
	a := tampering{kind: flipBit, direction: direction(i % 2), bit: random.IntN(8)}
	if i < 2*denseBytes {
		a.position = i / 2
		return a
	}
	a.kind = 1 + tamperKind(random.IntN(int(tamperKinds)-1))
	a.inHandshake = random.IntN(3) == 0
	switch {
	case a.inHandshake:
		a.position = random.IntN(handshakeBytes[a.direction])
	case random.IntN(3) == 0:
		a.position = random.IntN(denseBytes)
	default:
		a.position = random.IntN(sparseBytes)
	}
	switch a.kind {
	case dropBytes, insertBytes:
		a.bytes = make([]byte, 1<<random.IntN(10))
		for i := range a.bytes {
			a.bytes[i] = byte(random.Uint32())
		}
	case insertPlain:
		a.bytes = plainRecords[random.IntN(len(plainRecords))]
	case swapRecords, replayFirst:
		// Behind the exchange in which each side waits for the other one.
		if !a.inHandshake {
			a.position += 2 * denseBytes
		}
	}
	return a
}

// tamperProxy forwards connections one after another, with an attack on each.
type tamperProxy struct {
	attacks chan tampering
	done    chan *tamperRun
	// handshakeBytes is the length of TLS's handshake in each direction, which all connections of a
	// test share.
	handshakeBytes [2]int
}

// tamperRun is the attack on one connection.
type tamperRun struct {
	tampering
	to, from *net.TCPConn
	record   []byte // what has arrived of the current one
	begin    int    // its position
	at       int    // the first byte of the record that is concerned
	hasBegun bool   // the handshake is over
	first    []byte // record of the phase
	held     []byte // to follow the next one
	skip     int    // bytes to drop
	over     bool   // nothing is left to do
	lenient  bool   // TLS does not protect what was changed
}

// mpaRecord is the length of the record with MPA's request or reply without private data, with
// which both directions continue after the handshake. No message of the handshake is as long.
const mpaRecord = 5 + 24 + 1 + 16

func startTamperProxy(t *testing.T, target netip.AddrPort) (*tamperProxy, netip.AddrPort) {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		t.Fatal(err)
	}
	p := &tamperProxy{attacks: make(chan tampering, 1), done: make(chan *tamperRun, 1)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := l.AcceptTCP()
			if err != nil {
				return
			}
			far, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(target))
			if err != nil {
				t.Error(err)
				_ = near.Close()
				return
			}
			p.serve(near, far)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return p, l.Addr().(*net.TCPAddr).AddrPort()
}

// serve forwards one connection until both of its ends are closed.
func (p *tamperProxy) serve(near, far *net.TCPConn) {
	defer near.Close()
	defer far.Close()
	attack := <-p.attacks
	ends := []*net.TCPConn{toListener: far, toDialer: near}
	run := &tamperRun{tampering: attack, to: ends[attack.direction],
		from: ends[1-attack.direction], hasBegun: attack.inHandshake}
	other := &tamperRun{tampering: tampering{kind: untouched}, to: run.from, from: run.to}
	var running sync.WaitGroup
	for _, r := range []*tamperRun{run, other} {
		running.Go(r.forward)
	}
	running.Wait()
	if attack.kind == untouched {
		p.handshakeBytes[run.direction] = run.begin
		p.handshakeBytes[1-run.direction] = other.begin
	}
	p.done <- run
}

// quiet is how long nothing arrives after an attack until the proxy ends the direction, in case it
// made both ends wait for each other. A slow machine ends it earlier than that, and so in another
// way.
const quiet = 20 * time.Millisecond

func (r *tamperRun) forward() {
	defer r.to.CloseWrite()
	buffer := make([]byte, 64<<10)
	for {
		if r.kind != untouched && (r.over || r.held != nil) {
			_ = r.from.SetReadDeadline(time.Now().Add(quiet))
		}
		n, err := r.from.Read(buffer)
		if n > 0 && r.pass(buffer[:n]) != nil {
			_ = r.from.SetReadDeadline(time.Time{})
			_, _ = io.Copy(io.Discard, r.from)
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if r.held != nil { // nothing follows it
				r.lenient = true
				_ = r.write(r.held, r.record)
			}
			_ = r.to.CloseWrite()
			_ = r.from.SetReadDeadline(time.Time{})
			_, _ = io.Copy(io.Discard, r.from)
			return
		}
		if err != nil {
			_ = r.write(r.held, r.record)
			return
		}
	}
}

// errCut means that the attack has ended the connection.
var errCut = errors.New("cut")

// pass forwards a piece. Until the attack is over, it forwards whole records.
func (r *tamperRun) pass(piece []byte) error {
	if !r.over {
		r.record = append(r.record, piece...)
		piece = nil
	}
	for !r.over && len(r.record) >= 5 {
		length := 5 + int(binary.BigEndian.Uint16(r.record[3:]))
		if len(r.record) < length {
			return nil
		}
		if !r.hasBegun && length == mpaRecord {
			r.hasBegun = true
			if r.kind == untouched {
				r.over = true // begin stays
				break
			}
			r.begin = 0
		}
		record := r.record[:length]
		r.record = r.record[length:]
		if err := r.passRecord(record); err != nil {
			return err
		}
		r.begin += length
	}
	if r.over && len(r.record) > 0 {
		piece, r.record = append(r.record, piece...), nil
	}
	return r.write(piece)
}

// passRecord forwards a record, and attacks it if it is its turn.
func (r *tamperRun) passRecord(record []byte) error {
	at := r.position - r.begin
	if r.held == nil && (!r.hasBegun || at >= len(record) || r.kind == untouched) {
		if r.hasBegun && r.first == nil {
			r.first = bytes.Clone(record)
		}
		return r.write(record)
	}
	r.at, r.over = max(at, 0), true
	isPlain, isCCS := record[0] != 23, record[0] == 20
	before, behind := record[:r.at], record[r.at:]
	switch r.kind {
	case flipBit:
		record[r.at] ^= 1 << r.bit
		r.lenient = isCCS || isPlain && r.at < 5
		return r.write(record)
	case dropBytes:
		r.lenient = isCCS
		err := r.write(before)
		r.skip = len(r.bytes)
		return errors.Join(err, r.write(behind))
	case insertBytes:
		return r.write(before, r.bytes, behind)
	case endByFIN:
		_ = r.write(before)
		_ = r.to.CloseWrite()
		return errCut
	case endByReset:
		_ = r.write(before)
		for _, c := range []*net.TCPConn{r.to, r.from} {
			_ = c.SetLinger(0)
			_ = c.Close()
		}
		return errCut
	case repeatRecord:
		r.lenient = isCCS
		return r.write(record, record)
	case replayFirst:
		if r.first == nil {
			r.first = record
		}
		return r.write(r.first, record)
	case swapRecords:
		if r.held == nil {
			r.over, r.held = false, bytes.Clone(record)
			return nil
		}
		r.lenient = isCCS || r.held[0] == 20
		held := r.held
		r.held = nil
		return r.write(record, held)
	}
	return r.write(r.bytes, record) // insertPlain
}

// write writes what is not to be dropped.
func (r *tamperRun) write(parts ...[]byte) error {
	b := bytes.Join(parts, nil)
	n := min(r.skip, len(b))
	r.skip -= n
	_, err := r.to.Write(b[n:])
	return err
}

// The parts of the memory of an attacked end. What one end puts into a part of the other one's
// comes from the same place of its source, so that it is known for each byte.
const (
	tamperPart   = 32 << 10
	tamperSource = 1<<20 + iota*tamperPart // what this end sends, and the peer reads
	tamperTarget                           // where the peer writes
	tamperSink                             // what this end reads
	tamperInbox                            // what the peer sends
	tamperRest

	tamperMessage = 1 << 10
	tamperInboxes = tamperPart / tamperMessage

	// tamperBudget is how many bytes each end requests unless the connection ends before.
	tamperBudget = 512 << 10
	tamperDepth  = 8 // requests in flight

	tamperContext = 7 // of the attacked connection
)

// tamperRig is a link whose queues serve another connection, too, which is attacked.
type tamperRig struct {
	*link
	listener rdma.Listener
	proxy    *tamperProxy
	through  netip.AddrPort
	accepted chan tamperOutcome // by y
	// inverse holds, for the sources of x and y, what is in the peer's memory before anything has
	// arrived: each byte differs.
	inverse [][]byte
	chains  int
}

// tamperOutcome is the result of an attempt to connect.
type tamperOutcome struct {
	conn rdma.Connection
	err  error
}

func newTamperRig(t *testing.T) *tamperRig {
	t.Helper()
	r := &tamperRig{accepted: make(chan tamperOutcome, 1)}
	provider := rdmatest.OverTLS(t, iwarp.New(iwarp.Options{HandshakeTimeout: testkit.Patience,
		UserTimeout: testkit.Patience,
		Logger:      zap.New(&dropLog{zapcore.InfoLevel, r.accepted})}))
	r.link = &link{x: openSideOf(t, provider, loopback), y: openSideOf(t, provider, loopback)}
	r.connect(t, directly)
	var err error
	r.listener, err = r.y.device.Listen(t.Context(), netip.AddrPortFrom(loopback, 0))
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() { r.acceptAll(t.Context()) })
	t.Cleanup(func() {
		if err := r.listener.Close(); err != nil {
			t.Error(err)
		}
		accepting.Wait()
	})
	r.proxy, r.through = startTamperProxy(t, r.listener.Address())
	random := seedtest.Random(t, 1)
	for _, s := range []*side{r.x, r.y} {
		source := s.bytes[tamperSource:][:tamperPart]
		for i := range source {
			source[i] = byte(random.Uint32())
		}
		inverse := bytes.Clone(source)
		for i := range inverse {
			inverse[i] ^= 0xff
		}
		r.inverse = append(r.inverse, inverse)
	}
	return r
}

// dropLog reports why a listener drops a client.
type dropLog struct {
	zapcore.LevelEnabler
	dropped chan<- tamperOutcome
}

func (l *dropLog) With([]zapcore.Field) zapcore.Core { return l }

func (l *dropLog) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return c.AddCore(e, l)
}

func (l *dropLog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if strings.HasSuffix(e.Message, "client dropped") {
		l.dropped <- tamperOutcome{err: fields[0].Interface.(error)}
	}
	return nil
}

func (l *dropLog) Sync() error { return nil }

func (r *tamperRig) acceptAll(ctx context.Context) {
	for {
		request, err := r.listener.Accept(ctx)
		if err != nil {
			return
		}
		conn, err := request.Accept(ctx, r.y.tamperConfig())
		r.accepted <- tamperOutcome{conn, err}
	}
}

func (s *side) tamperConfig() rdma.ConnectionConfig {
	config := s.config()
	config.Context = tamperContext
	for i := range tamperInboxes {
		config.Receives = append(config.Receives, s.tamperReceive(i))
	}
	return config
}

// tamperReceive returns the receive for message i.
func (s *side) tamperReceive(i int) rdma.ReceiveRequest {
	slot := uint64(i % tamperInboxes)
	return rdma.ReceiveRequest{Local: s.segment(tamperInbox+slot*tamperMessage, tamperMessage)}
}

// run attacks one connection.
func (r *tamperRig) run(t *testing.T, a tampering) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the attack: %v", a)
		}
	}()
	for _, part := range []int{tamperTarget, tamperSink, tamperInbox} {
		copy(r.x.bytes[part:], r.inverse[1])
		copy(r.y.bytes[part:], r.inverse[0])
	}
	r.proxy.attacks <- a
	connected := make(chan tamperOutcome, 1)
	go func() {
		conn, err := r.x.device.Connect(testkit.Context(t), r.through, r.x.tamperConfig())
		connected <- tamperOutcome{conn, err}
	}()
	atX := testkit.Receive(t, "x has connected", connected)
	atY := testkit.Receive(t, "y has accepted or dropped", r.accepted)
	x := newTamperEnd(t, r.x, atX, uint64(a.position))
	y := newTamperEnd(t, r.y, atY, uint64(a.position))
	for deadline := time.Now().Add(testkit.Patience); !x.ended || !y.ended; {
		if x.poll(y)+y.poll(x) > 0 {
			continue
		}
		if !x.post(y) && !y.post(x) {
			runtime.Gosched()
		}
		if x.isDone(y) && y.isDone(x) {
			x.conn.Close()
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v: the connection goes on", a)
		}
	}
	run := testkit.Receive(t, "the proxy is idle", r.proxy.done)
	r.check(t, run, x, y)
	r.checkNeighbour(t)
	if t.Failed() {
		t.Logf("x ended with %v, y with %v", x.err(), y.err())
	}
}

// tamperEnd is an end of an attacked connection.
type tamperEnd struct {
	*testing.T
	*side
	conn      rdma.Connection // nil if there is none, because of failure
	failure   error
	random    *rand.Rand
	budget    int
	posted    int // requests that have not completed
	sent, got int // messages
	ended     bool
}

func newTamperEnd(t *testing.T, s *side, o tamperOutcome, seed uint64) *tamperEnd {
	return &tamperEnd{T: t, side: s, conn: o.conn, failure: o.err, budget: tamperBudget,
		random: rand.New(rand.NewPCG(seed, 0)), ended: o.conn == nil}
}

// err returns why the connection has failed.
func (e *tamperEnd) err() error {
	if e.conn == nil {
		return e.failure
	}
	return e.conn.Err()
}

// isDone reports whether e has requested all that it wants, and the peer has it.
func (e *tamperEnd) isDone(peer *tamperEnd) bool {
	return !e.ended && e.budget <= 0 && e.posted == 0 && e.sent == peer.got
}

// post posts the next request, if there is one.
func (e *tamperEnd) post(peer *tamperEnd) bool {
	if e.ended || e.budget <= 0 || e.posted == tamperDepth {
		return false
	}
	size := 1 + e.random.IntN(300)
	if e.random.IntN(2) == 0 {
		size = 1 + e.random.IntN(tamperPart)
	}
	offset := uint64(e.random.IntN(tamperPart - size + 1))
	request := rdma.SendRequest{ID: offset<<32 | uint64(size), Opcode: rdma.OpWrite,
		Local: e.segment(tamperSource+offset, size), RemoteKey: peer.memory.RemoteKey(),
		RemoteAddress: peer.memory.Base() + tamperTarget + offset}
	switch e.random.IntN(3) {
	case 0:
		request.Opcode = rdma.OpRead
		request.Local = e.segment(tamperSink+offset, size)
		request.RemoteAddress = peer.memory.Base() + tamperSource + offset
	case 1:
		if e.sent-peer.got == tamperInboxes {
			return false
		}
		request.Opcode = rdma.OpSend
		slot := uint64(e.sent % tamperInboxes)
		request.Local = e.segment(tamperSource+slot*tamperMessage, min(size, tamperMessage))
		e.sent++
	}
	e.budget -= size
	e.posted++
	e.expectPosted(e.conn.PostSend([]rdma.SendRequest{request}))
	e.conn.Flush()
	return true
}

// expectPosted checks the result of posting, on a connection that may have ended.
func (e *tamperEnd) expectPosted(err error) {
	if err != nil && !errors.Is(err, status.NotConnected) {
		e.Error(err)
	}
}

// poll polls once.
func (e *tamperEnd) poll(peer *tamperEnd) int {
	n := e.queue.Poll(e.side.poll[:])
	for _, c := range e.side.poll[:n] {
		switch {
		case c.Context != tamperContext:
			e.Fatalf("the other connection completes %+v", c)
		case c.Opcode == rdma.OpDisconnected:
			e.ended = true
		case c.Status != rdma.StatusSuccess:
		case c.Opcode == rdma.OpReceive:
			receive := e.tamperReceive(e.got)
			e.got++
			e.expectPosted(e.conn.PostReceive([]rdma.ReceiveRequest{receive}))
		default:
			e.posted--
			offset, size := int(c.ID>>32), int(uint32(c.ID))
			if c.Opcode == rdma.OpRead && !bytes.Equal(e.bytes[tamperSink+offset:][:size],
				peer.bytes[tamperSource+offset:][:size]) {
				e.Errorf("a read of %d bytes at %d has succeeded with others", size, offset)
			}
		}
	}
	return n
}

// checkMemory checks that each byte in e's memory is that which the peer has put there, or the one
// that was there before.
func (e *tamperEnd) checkMemory(peer *tamperEnd, before []byte) {
	e.Helper()
	source := peer.bytes[tamperSource:][:tamperPart]
	for name, part := range map[string]int{
		"target of writes": tamperTarget, "sink of reads": tamperSink, "inbox": tamperInbox,
	} {
		memory := e.bytes[part:][:tamperPart]
		const piece = 64
		for at := 0; at < tamperPart; at += piece {
			m := memory[at:][:piece]
			if bytes.Equal(m, source[at:][:piece]) || bytes.Equal(m, before[at:][:piece]) {
				continue
			}
			for i, b := range m {
				if b != source[at+i] && b != before[at+i] {
					e.Fatalf("byte %d of the %s is %#x, the peer has sent %#x", at+i, name, b,
						source[at+i])
				}
			}
		}
	}
	if !bytes.Equal(e.bytes[tamperRest:], zeros[tamperRest:]) {
		e.Error("memory has changed that the peer has not mentioned")
	}
}

var zeros [sideBytes]byte

// check checks how an attack has ended.
func (r *tamperRig) check(t *testing.T, run *tamperRun, x, y *tamperEnd) {
	t.Helper()
	x.checkMemory(y, r.inverse[1])
	y.checkMemory(x, r.inverse[0])
	victim, other := y, x
	if run.direction == toDialer {
		victim, other = x, y
	}
	err := victim.err()
	if err == nil && other.err() == nil {
		if !run.lenient && run.kind != untouched {
			t.Error("nobody has noticed")
		}
		return
	}
	if run.kind == untouched {
		t.Errorf("it failed by itself: %v, %v", err, other.err())
	}
	if run.inHandshake {
		if code := status.CodeOf(cmp.Or(err, other.err())); code != status.Authentication &&
			code != status.ConnectionReset && code != status.Unexpected {
			t.Errorf("the handshake failed with %v, %v", code, err)
		}
		return
	}
	if reasons := run.reasons(); err == nil || !slices.ContainsFunc(reasons,
		func(reason string) bool { return strings.Contains(err.Error(), reason) }) {
		t.Errorf("the victim's reason is %v, want one of %q", err, reasons)
	}
}

const (
	notAuthentic = "a record is not authentic"
	notEncrypted = "that is not encrypted"
	badVersion   = "a record of version"
	badLength    = "a record of "
	truncated    = "TCP ended before TLS did"
	truncatedMPA = "without the end of TLS"
)

// reasons returns what the attacked end may say, after the handshake.
func (r *tamperRun) reasons() []string {
	switch r.kind {
	case repeatRecord, replayFirst:
		return []string{notAuthentic}
	case swapRecords:
		if !r.lenient {
			return []string{notAuthentic}
		}
	case insertPlain:
		return []string{notEncrypted}
	case endByFIN:
		return []string{truncated, truncatedMPA}
	case endByReset:
		return []string{truncated, truncatedMPA, "reset by peer", "broken pipe"}
	case flipBit:
		switch {
		case r.at == 0:
			return []string{notEncrypted}
		case r.at < 3:
			return []string{badVersion}
		case r.at >= 5:
			return []string{notAuthentic}
		}
	}
	return []string{notAuthentic, notEncrypted, badVersion, badLength, truncated, truncatedMPA}
}

// checkNeighbour checks that the other connection works.
func (r *tamperRig) checkNeighbour(t *testing.T) {
	t.Helper()
	const size = 20_000
	r.chains++
	for i := range size {
		r.x.bytes[4096+i] = byte(r.chains + i)
	}
	r.y.receive(t, 1, 64)
	r.chain(t, size)
	r.await(t, r.y, 1)
	r.await(t, r.x, 2)
	if !bytes.Equal(r.x.bytes[4096:][:size], r.y.bytes[4096:][:size]) {
		t.Error("the other connection has delivered something else")
	}
}

// chain posts a Write and a Send of the other connection.
func (r *tamperRig) chain(t *testing.T, size int) { r.x.chain(t, r.y, size) }
