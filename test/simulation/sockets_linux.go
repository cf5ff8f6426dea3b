// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated/socketstest"
)

// bus connects the Comch clients and servers of one machine by sockets that pass descriptors. What
// is sent is in flight until the scheduler delivers it.
type bus struct {
	network   *socketstest.Network
	processes map[int]*process // by their PID

	mu       sync.Mutex
	inFlight []*socketstest.Delivery
	loans    []loan
	lent     int64
}

func newBus() *bus {
	b := &bus{processes: make(map[int]*process)}
	b.network = socketstest.NewNetwork(socketstest.Options{InFlight: b.send, Pass: b.pass})
	return b
}

// socketsOf returns a process's access to the bus.
func (b *bus) socketsOf(p *process) *socketstest.Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.processes[p.id] = p
	return b.network.NewProcess(comch.Peer{PID: p.id, UID: uint32(os.Geteuid())})
}

func (b *bus) process(peer comch.Peer) *process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.processes[peer.PID]
}

func (b *bus) send(d *socketstest.Delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight = append(b.inFlight, d)
}

// deliverable reports whether a delivery can arrive now.
func (b *bus) deliverable(d *socketstest.Delivery) bool {
	to := b.process(d.To)
	return !b.process(d.From).frozen && !to.frozen && !time.Now().Before(to.deafUntil)
}

// hasSent reports whether something of a process is in flight to one that could receive it.
func (b *bus) hasSent(p *process) bool {
	return slices.ContainsFunc(b.inFlight, func(d *socketstest.Delivery) bool {
		to := b.process(d.To)
		return b.process(d.From) == p && !to.frozen && !to.dead
	})
}

func (b *bus) deliver(d *socketstest.Delivery) {
	b.mu.Lock()
	b.inFlight = slices.DeleteFunc(b.inFlight,
		func(other *socketstest.Delivery) bool { return other == d })
	b.mu.Unlock()
	d.Deliver()
}

// loan is an open file description that one process has passed to another, with a lock that shows
// whether anybody still has it (memory.Loan). When a process dies, the kernel closes its
// descriptors and mappings; here they live on. So the receiver gets another description of the
// file, with a lock of its own, and this one stays open for as long as a living receiver uses that.
type loan struct {
	kept     int
	receiver *process
	number   int64 // of the byte that the receiver's description locks
}

// firstLoan is beyond the bytes that loans lock.
const firstLoan = 1 << 40

// pass returns the descriptor that a process gets for one that is passed to it.
func (b *bus) pass(descriptor int, from, to comch.Peer) (int, error) {
	duplicate, err := socketstest.Duplicate(descriptor)
	if err != nil {
		return -1, err
	}
	received := b.lend(duplicate, b.process(to))
	for _, peer := range []comch.Peer{from, to} {
		if p := b.process(peer); p.passed != nil {
			p.passed(received)
		}
	}
	return received, nil
}

// lend returns another description of the file if it is lent, and otherwise the descriptor.
func (b *bus) lend(descriptor int, receiver *process) int {
	var stat unix.Stat_t
	if unix.Fstat(descriptor, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return descriptor
	}
	other, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", descriptor),
		unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return descriptor // a file that cannot be written to is not lent
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: firstLoan}
	err = unix.FcntlFlock(uintptr(other), unix.F_OFD_GETLK, &lock)
	if err != nil || lock.Type == unix.F_UNLCK {
		_ = unix.Close(other)
		return descriptor
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lent++
	own := unix.Flock_t{Type: unix.F_RDLCK, Start: firstLoan + b.lent, Len: 1}
	if err := unix.FcntlFlock(uintptr(other), unix.F_OFD_SETLK, &own); err != nil {
		panic("simulation: lock a file in memory: " + err.Error())
	}
	b.loans = append(b.loans, loan{descriptor, receiver, own.Start})
	return other
}

// endLoans drops the descriptions that no living process uses any more, or all of them.
func (b *bus) endLoans(all bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.loans = slices.DeleteFunc(b.loans, func(l loan) bool {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: l.number, Len: 1}
		used := unix.FcntlFlock(uintptr(l.kept), unix.F_OFD_GETLK, &lock) == nil &&
			lock.Type != unix.F_UNLCK
		if used && !l.receiver.dead && !all {
			return false
		}
		_ = unix.Close(l.kept)
		return true
	})
}

// openDescriptors returns the descriptors that this process has open, and what they refer to.
func openDescriptors() map[string]string {
	open := make(map[string]string)
	for _, name := range descriptorNames() {
		open[name], _ = os.Readlink("/proc/self/fd/" + name)
	}
	return open
}

// descriptorNames returns the numbers of the descriptors that this process has open, with that of
// the directory that lists them.
func descriptorNames() []string {
	directory, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil
	}
	defer directory.Close()
	names, _ := directory.Readdirnames(-1)
	return names
}

func closeDescriptors(open map[string]string) {
	for name := range open {
		if descriptor, err := strconv.Atoi(name); err == nil {
			_ = unix.Close(descriptor)
		}
	}
}
