// SPDX-License-Identifier: Apache-2.0

// Package shm is an RDMA provider for processes of one machine. Messages travel through shared
// memory, and each transfer is one copy by the CPU, without a system call.
//
// The two sides of a connection do not trust each other. Each has an outbox: memory that only it
// can write to, and that the peer has mapped for reading. The outbox holds a ring of records, how
// much of the peer's ring this side has consumed, and whether this side sleeps. The kernel enforces
// that with seals (F_SEAL_FUTURE_WRITE), and that the peer can neither shrink nor punch holes into
// its outbox, so reading it never faults. Everything in a peer's outbox is read once and then
// checked.
//
// Registered memory is private unless it is lent. Nobody maps the private memory of another
// process: whoever owns it carries out the peer's Write or Read, after it has checked key, bounds,
// rights, and state. So Deregister revokes access at once, whatever the peer does. The data passes
// through the ring, which costs a second copy. Memory that the connection lends
// (rdma.ConnectionConfig.Lent) saves that copy: the peer maps it, for reading only or for writing,
// too, as long as the connection exists.
//
//	operation | lent is        | who copies
//	Write     | the source     | the peer, from the source to its own memory
//	Write     | the sink (rw)  | this side, from its own memory to the sink
//	Read      | the sink (rw)  | the peer, from its own memory to the sink
//	any       | nothing        | the sender into its ring, the receiver out of it
//
// A connection is set up over a Unix socket in the abstract namespace, whose name contains the
// port of the address. It carries one packet in each direction, and the descriptors of the outboxes
// and of lent memory. Both sides check the user of the other: it must be root or the own user.
// Afterwards the socket is the doorbell: a packet wakes a peer that sleeps, and the kernel closes
// it when a process dies.
//
// The data path is in four files: completionqueue.go drives connections and delivers completions;
// transmit.go leads from a posted request to the ring; receive.go from the ring to the completion;
// outbox_unsafe.go defines the shared memory, and cursors.go who moves through it how far. Posting
// and completing is in package softrdma. listen.go, dial.go, and handshake.go set connections up.
package shm
