// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	allRights  = memory.LocalWrite | memory.RemoteRead | memory.RemoteWrite
	guardBytes = 4096
	sideBytes  = 8192
)

// side is one end of a connection, with registered memory between guards that nothing may change.
type side struct {
	t      testing.TB
	domain rdma.ProtectionDomain
	queue  *completionQueue
	region *memory.Region
	mem    *registration.Region
	conn   *connection
	ended  bool
	polled []rdma.Completion
}

func newSide(t testing.TB, device rdma.Device) *side {
	t.Helper()
	s := &side{t: t}
	domain, err := device.NewProtectionDomain()
	must(t, err)
	queue, err := device.NewCompletionQueue(16)
	must(t, err)
	s.domain, s.queue = domain, queue.(*completionQueue)
	s.region, err = memory.Alloc("shm test", guardBytes+sideBytes+guardBytes)
	must(t, err)
	all := s.region.Bytes()
	copy(all, bytes.Repeat([]byte{0xee}, len(all)))
	inner := memory.Wrap(all[guardBytes : guardBytes+sideBytes])
	registered, err := domain.Register(inner, allRights)
	must(t, err)
	s.mem = registered.(*registration.Region)
	return s
}

func (s *side) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{Domain: s.domain, Queue: s.queue, SendRequests: 8,
		ReceiveRequests: 8, InboundReads: 2, OutboundReads: 2}
}

// poll polls once.
func (s *side) poll() {
	var completions [16]rdma.Completion
	for _, c := range completions[:s.queue.Poll(completions[:])] {
		if c.Opcode == rdma.OpDisconnected {
			s.ended = true
		}
		s.polled = append(s.polled, c)
	}
}

func (s *side) close() {
	s.t.Helper()
	s.conn.Close()
	for range 100 {
		s.poll()
	}
	if !s.ended {
		s.t.Fatal("the connection did not end")
	}
	guard := bytes.Repeat([]byte{0xee}, guardBytes)
	all := s.region.Bytes()
	if !bytes.Equal(all[:guardBytes], guard) || !bytes.Equal(all[guardBytes+sideBytes:], guard) {
		s.t.Fatal("bytes outside of registered memory were changed")
	}
	must(s.t, s.mem.Deregister())
	must(s.t, s.queue.Close())
	must(s.t, s.domain.Close())
	must(s.t, s.region.Close())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connected returns the two ends of a connection: the second is attacked by the first.
func connected(t testing.TB) (attacker, victim *side) {
	t.Helper()
	device, err := New(Options{}).Open(netip.MustParseAddr("127.0.0.1"))
	must(t, err)
	t.Cleanup(func() { must(t, device.Close()) })
	attacker, victim = newSide(t, device), newSide(t, device)
	t.Cleanup(attacker.close)
	t.Cleanup(victim.close)
	listener, err := device.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	must(t, err)
	defer func() { must(t, listener.Close()) }()
	result := make(chan error, 1)
	go func() {
		c, err := device.Connect(context.Background(), listener.Address(), attacker.config())
		if err == nil {
			attacker.conn = c.(*connection)
		}
		result <- err
	}()
	request, err := listener.Accept(t.Context())
	must(t, err)
	c, err := request.Accept(t.Context(), victim.config())
	must(t, err)
	victim.conn = c.(*connection)
	must(t, <-result)
	attacker.poll()
	victim.poll()
	return attacker, victim
}

// borrow gives the side memory that the peer lends for reading.
func (s *side) borrow() {
	s.t.Helper()
	region, err := memory.Alloc("lent", sideBytes)
	must(s.t, err)
	s.conn.borrowed = []borrowedMemory{{memory: region}}
}

// attack writes raw records to the attacker's ring.
func (s *side) attack(records ...record) {
	c := s.conn
	for i := range records {
		c.own.write(c.tail%ringBytes, &records[i])
		c.tail += records[i].span()
	}
	c.own.header.tail.Store(c.tail)
}

// register registers more memory, in one of the domains of the device, and returns its key.
func (s *side) register(domain *registration.Domain, access memory.Access) uint32 {
	s.t.Helper()
	region, err := domain.Register(memory.Wrap(make([]byte, sideBytes)), access)
	must(s.t, err)
	s.t.Cleanup(func() { must(s.t, region.Deregister()) })
	return region.RemoteKey()
}

// otherDomain returns a domain of another session on the same device.
func (s *side) otherDomain() *registration.Domain {
	table := s.domain.(*registration.Domain).Table()
	return registration.NewDomain("test", table, func() {})
}

func TestForgedRecordsEndTheConnection(t *testing.T) {
	key := func(s *side) uint32 { return s.mem.RemoteKey() }
	for name, test := range map[string]struct {
		records func(victim *side) []record
		code    status.Code
	}{
		"unknown kind": {func(*side) []record { return []record{{kind: 99}} }, status.Unexpected},
		"no kind":      {func(*side) []record { return []record{{}} }, status.Unexpected},
		"message without a receive": {func(*side) []record {
			return []record{{kind: recordSend, last: true}}
		}, status.IOFailed},
		"Write to an unknown key": {func(v *side) []record {
			return []record{{kind: recordWrite, key: key(v) + 1, length: 8}}
		}, status.NotPermitted},
		"Write across the end": {func(v *side) []record {
			return []record{{kind: recordWrite, key: key(v), length: 8, address: sideBytes - 7}}
		}, status.NotPermitted},
		"Write that wraps around": {func(v *side) []record {
			return []record{{kind: recordWrite, key: key(v), length: 8, address: ^uint64(0) - 3}}
		}, status.NotPermitted},
		"Write without the right": {func(v *side) []record {
			other := v.register(v.domain.(*registration.Domain), allRights&^memory.RemoteWrite)
			return []record{{kind: recordWrite, key: other, length: 8}}
		}, status.NotPermitted},
		"Write to another domain": {func(v *side) []record {
			other := v.register(v.otherDomain(), allRights)
			return []record{{kind: recordWrite, key: other, length: 8}}
		}, status.NotPermitted},
		"Write from memory that is not lent": {func(v *side) []record {
			return []record{{kind: recordWrite, key: key(v), length: 8, lent: 2}}
		}, status.Unexpected},
		"Write without data": {func(v *side) []record {
			return []record{{kind: recordWrite, key: key(v)}}
		}, status.Unexpected},
		"Write beyond the piece limit": {func(v *side) []record {
			return []record{{kind: recordWrite, key: key(v), lent: 1, length: maxLentPiece + 1}}
		}, status.Unexpected},
		"Write across the end of lent memory, after another": {func(v *side) []record {
			r := record{kind: recordWrite, key: key(v), lent: 1, length: 8}
			beyond := r
			beyond.source = sideBytes - 7
			return []record{r, beyond}
		}, status.Unexpected},
		"Write from far beyond lent memory, after another": {func(v *side) []record {
			r := record{kind: recordWrite, key: key(v), lent: 1, length: 8}
			beyond := r
			beyond.source = ^uint64(0) - 3
			return []record{r, beyond}
		}, status.Unexpected},
		"Write from memory lent under another number, after another": {func(v *side) []record {
			r := record{kind: recordWrite, key: key(v), lent: 1, length: 8}
			other := r
			other.lent = 255
			return []record{r, other}
		}, status.Unexpected},
		"Read without the right": {func(v *side) []record {
			other := v.register(v.domain.(*registration.Domain), allRights&^memory.RemoteRead)
			return []record{{kind: recordRead, key: other, length: 8}}
		}, status.NotPermitted},
		"Read of another domain": {func(v *side) []record {
			other := v.register(v.otherDomain(), allRights)
			return []record{{kind: recordRead, key: other, length: 8}}
		}, status.NotPermitted},
		"Read across the end": {func(v *side) []record {
			return []record{{kind: recordRead, key: key(v), length: 8, address: sideBytes - 7}}
		}, status.NotPermitted},
		"Read beyond the depth": {func(v *side) []record {
			r := record{kind: recordRead, key: key(v), length: 8}
			return []record{r, r, r}
		}, status.Unexpected},
		"Read into memory that is not lent": {func(v *side) []record {
			return []record{{kind: recordRead, key: key(v), length: 8, lent: 4}}
		}, status.Unexpected},
		"Read into memory that is lent for reading": {func(v *side) []record {
			return []record{{kind: recordRead, key: key(v), length: 8, lent: 1}}
		}, status.Unexpected},
		"Response without a Read": {func(*side) []record {
			return []record{{kind: recordResponse, length: 8, last: true}}
		}, status.Unexpected},
	} {
		t.Run(name, func(t *testing.T) {
			attacker, victim := connected(t)
			victim.borrow()
			attacker.attack(test.records(victim)...)
			victim.poll()
			if err := victim.conn.Err(); status.CodeOf(err) != test.code {
				t.Errorf("the victim's connection ended with %v, want code %v", err, test.code)
			}
			// A Write from lent memory completes once it counts as consumed.
			if attacker.conn.peer.header.consumed.Load() >= attacker.conn.tail {
				t.Error("a record counts as consumed although it was not carried out")
			}
		})
	}
}

// attackedBytes is the size of the Read or receive that the victim has posted for an attack.
const attackedBytes = 8

// checkAttack lets the victim handle records, which must end its connection, change no memory but
// that of the request at this offset, and complete nothing.
func checkAttack(t *testing.T, attacker, victim *side, offset uint64, code status.Code,
	records []record) {
	t.Helper()
	attacker.attack(records...)
	victim.poll()
	if err := victim.conn.Err(); status.CodeOf(err) != code {
		t.Errorf("the victim's connection ended with %v, want code %v", err, code)
	}
	all := bytes.Clone(victim.mem.Bytes())
	for i := range uint64(attackedBytes) {
		all[offset+i] = 0xee
	}
	if !bytes.Equal(all, bytes.Repeat([]byte{0xee}, len(all))) {
		t.Error("other memory was changed than that of the request")
	}
	for _, c := range victim.polled {
		if c.Status == rdma.StatusSuccess && c.Opcode != rdma.OpDisconnected {
			t.Errorf("%v completes with success", c.Opcode)
		}
	}
}

func TestForgedResponsesEndTheConnection(t *testing.T) {
	piece := func(offset uint64, length uint32, last bool) record {
		return record{kind: recordResponse, address: offset, length: length, last: last}
	}
	for name, records := range map[string][]record{
		"longer than the Read":          {piece(0, attackedBytes+1, true)},
		"longer than what is left":      {piece(0, 4, false), piece(4, attackedBytes, false)},
		"longer than the Read, as last": {piece(0, 4, false), piece(4, attackedBytes, true)},
		"the last too early":            {piece(0, 4, true)},
		"without an end":                {piece(0, attackedBytes, false)},
		"without data":                  {piece(0, 0, false)},
		"behind a gap":                  {piece(4, 4, true)},
		"the same piece twice":          {piece(0, 4, false), piece(0, 4, true)},
		"copied to memory that is not lent": {
			{kind: recordResponse, lent: 1, length: attackedBytes, last: true}},
	} {
		t.Run(name, func(t *testing.T) {
			attacker, victim := connected(t)
			const offset = 64
			must(t, victim.conn.PostSend([]rdma.SendRequest{{Opcode: rdma.OpRead,
				RemoteKey: attacker.mem.RemoteKey(), Local: rdma.Segment{
					Key: victim.mem.LocalKey(), Address: offset, Length: attackedBytes}}}))
			victim.conn.Flush()
			checkAttack(t, attacker, victim, offset, status.Unexpected, records)
		})
	}
}

func TestForgedMessagesEndTheConnection(t *testing.T) {
	piece := func(offset uint64, length uint32, last bool) record {
		return record{kind: recordSend, address: offset, length: length, last: last}
	}
	for name, test := range map[string]struct {
		records []record
		code    status.Code
	}{
		"longer than the receive": {[]record{piece(0, attackedBytes+1, true)}, status.IOFailed},
		"longer than what is left": {
			[]record{piece(0, 4, false), piece(4, attackedBytes, true)}, status.IOFailed},
		"behind a gap":         {[]record{piece(4, 4, true)}, status.Unexpected},
		"the same piece twice": {[]record{piece(0, 4, false), piece(0, 4, true)}, status.Unexpected},
		"without data":         {[]record{piece(0, 0, false)}, status.Unexpected},
		"in lent memory": {[]record{{kind: recordSend, lent: 1, length: 4, last: true}},
			status.Unexpected},
	} {
		t.Run(name, func(t *testing.T) {
			attacker, victim := connected(t)
			const offset = 64
			must(t, victim.conn.PostReceive([]rdma.ReceiveRequest{{Local: rdma.Segment{
				Key: victim.mem.LocalKey(), Address: offset, Length: attackedBytes}}}))
			checkAttack(t, attacker, victim, offset, test.code, test.records)
		})
	}
}

// A record is not carried out unless all of it, and nothing impossible, has been written.
func TestAForgedTailCarriesNothingOut(t *testing.T) {
	for _, tail := range []uint64{recordBytes, 2*recordBytes - 1, ringBytes + 2*recordBytes,
		^uint64(0)} {
		attacker, victim := connected(t)
		attacker.conn.own.write(0, &record{kind: recordWrite, key: victim.mem.RemoteKey(),
			length: recordBytes})
		attacker.conn.own.header.tail.Store(tail)
		victim.poll()
		if err := victim.conn.Err(); status.CodeOf(err) != status.Unexpected {
			t.Errorf("tail %d: the victim's connection ended with %v", tail, err)
		}
		if !bytes.Equal(victim.mem.Bytes(), bytes.Repeat([]byte{0xee}, sideBytes)) {
			t.Errorf("tail %d: the victim's memory was changed", tail)
		}
	}
}

func TestConsumptionCannotBeTakenBack(t *testing.T) {
	attacker, victim := connected(t)
	victim.conn.tail = 4 * recordBytes
	consumed := &attacker.conn.own.header.consumed
	consumed.Store(2 * recordBytes)
	if !victim.conn.refreshConsumed() {
		t.Fatal(victim.conn.Err())
	}
	consumed.Store(recordBytes)
	if victim.conn.refreshConsumed() ||
		status.CodeOf(victim.conn.Err()) != status.Unexpected {
		t.Errorf("the victim's connection ended with %v", victim.conn.Err())
	}
}

func TestForgedCountsEndTheConnection(t *testing.T) {
	for name, forge := range map[string]func(c *connection){
		"tail beyond the ring":     func(c *connection) { c.own.header.tail.Store(ringBytes + 64) },
		"tail that goes back":      func(c *connection) { c.own.header.tail.Store(^uint64(0)) },
		"record across the tail":   func(c *connection) { c.own.header.tail.Store(recordBytes - 1) },
		"consumed before written":  func(c *connection) { c.own.header.consumed.Store(1 << 40) },
		"payload longer than ring": forgeLength,
	} {
		t.Run(name, func(t *testing.T) {
			attacker, victim := connected(t)
			forge(attacker.conn)
			read := rdma.SendRequest{Opcode: rdma.OpRead, Local: rdma.Segment{
				Key: victim.mem.LocalKey(), Length: 8}, RemoteKey: attacker.mem.RemoteKey()}
			must(t, victim.conn.PostSend([]rdma.SendRequest{read}))
			for range 3 {
				if victim.poll(); victim.conn.Phase == softrdma.PhaseOpen {
					// Makes the victim look at what was consumed.
					for victim.conn.Phase == softrdma.PhaseOpen && victim.conn.hasRoom(ringBytes) {
						victim.conn.tail += recordBytes
					}
				}
			}
			if err := victim.conn.Err(); status.CodeOf(err) != status.Unexpected {
				t.Errorf("the victim's connection ended with %v", err)
			}
		})
	}
}

func forgeLength(c *connection) {
	c.own.write(0, &record{kind: recordSend, length: 1<<32 - 1, last: true})
	c.own.header.tail.Store(ringBytes)
}

// FuzzRing lets the victim read any bytes as records.
func FuzzRing(f *testing.F) {
	f.Add([]byte{byte(recordSend), 1, 0, 0, 0, 0, 0, 0}, uint64(recordBytes), uint64(0), uint64(0))
	f.Add(bytes.Repeat([]byte{byte(recordRead), 0, 0, 0, 8, 0, 0, 0}, 8), uint64(64), uint64(0),
		uint64(endingOrderly))
	f.Add([]byte{byte(recordSkip)}, uint64(ringBytes), uint64(1), uint64(endingAccess))
	f.Add(bytes.Repeat([]byte{byte(recordWrite), 0, 1, 0, 8, 0, 0, 0, // of lent memory, at its end
		0, 0x33, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf8, 0x1f, 0, 0, 0, 0, 0, 0}, 4),
		uint64(128), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, records []byte, tail, consumed, ended uint64) {
		attacker, victim := connected(t)
		victim.borrow()
		victim.domain.(*registration.Domain).Table().Rekey(victim.mem, 0x11223300)
		local := rdma.Segment{Key: victim.mem.LocalKey(), Length: 512}
		must(t, victim.conn.PostReceive([]rdma.ReceiveRequest{{Local: local}, {Local: local}}))
		must(t, victim.conn.PostSend([]rdma.SendRequest{{Opcode: rdma.OpRead, Local: local},
			{Opcode: rdma.OpWrite, Local: local}}))
		copy(attacker.conn.own.ring, records)
		h := attacker.conn.own.header
		h.consumed.Store(consumed)
		h.tail.Store(tail)
		h.ended.Store(ended)
		for range 4 {
			victim.poll()
		}
	})
}

// FuzzHandshake parses any bytes as a packet. What is accepted must survive another round.
func FuzzHandshake(f *testing.F) {
	p := packet{kind: packetAccept, inboundReads: 3, address: netip.MustParseAddrPort("10.0.0.1:7"),
		privateData: []byte("token"), lent: []lentOffer{{key: 7, length: 1 << 30, writable: true}}}
	f.Add(p.encode())
	reject := packet{kind: packetReject, privateData: []byte("no")}
	f.Add(reject.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePacket(b)
		testkit.CheckBounded(t, err)
		if err != nil {
			return
		}
		again, err := parsePacket(p.encode())
		if err != nil || again.kind != p.kind || again.address != p.address ||
			!bytes.Equal(again.privateData, p.privateData) || len(again.lent) != len(p.lent) {
			t.Fatalf("%+v became %+v, error %v", p, again, err)
		}
	})
}

func TestOutboxesThatThePeerCouldTakeAwayAreRejected(t *testing.T) {
	for name, seals := range map[string]int{
		"no seals":       0,
		"can shrink":     unix.F_SEAL_SEAL | unix.F_SEAL_FUTURE_WRITE,
		"can lose pages": unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK,
		"can be changed": unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SHRINK,
	} {
		t.Run(name, func(t *testing.T) {
			fd, err := unix.MemfdCreate("outbox", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			must(t, err)
			defer unix.Close(fd)
			must(t, unix.Ftruncate(fd, outboxBytes))
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			must(t, err)
			if o, err := importOutbox(fd); !errors.Is(err, status.InvalidValue) {
				t.Errorf("imported %v, error %v", o, err)
			}
		})
	}
}

func TestLentMemoryCannotBeWrittenUnlessItIsLentForWriting(t *testing.T) {
	region, err := memory.AllocReadOnly("lent", 4096)
	must(t, err)
	defer region.Close()
	duplicate, err := unix.Dup(region.Descriptor())
	must(t, err)
	defer unix.Close(duplicate)
	if _, err := importLent(duplicate, lentOffer{length: 4096, writable: true}); err == nil {
		t.Error("the borrower maps memory for writing that is lent for reading")
	}
	if err := unix.Fallocate(duplicate, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0,
		4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("the borrower can punch holes: %v", err)
	}
	if _, err := unix.Pwrite(duplicate, []byte{1}, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("the borrower can write: %v", err)
	}
	plain, err := memory.Alloc("plain", 4096)
	must(t, err)
	defer plain.Close()
	if canLend(plain, false) {
		t.Error("memory that every holder of its descriptor can write to can be lent for reading")
	}
}

// TestDescriptorsOnTheBellEndTheConnection sends what a data path must not receive.
func TestDescriptorsOnTheBellEndTheConnection(t *testing.T) {
	attacker, victim := connected(t)
	must(t, unix.Sendmsg(attacker.conn.bell.descriptor, []byte{1},
		unix.UnixRights(attacker.conn.bell.descriptor), nil, 0))
	deadline := time.Now().Add(2 * time.Minute)
	for victim.conn.Err() == nil {
		victim.poll()
		if time.Now().After(deadline) {
			t.Fatal("the connection goes on")
		}
	}
}
