// SPDX-License-Identifier: Apache-2.0

package shm

// cursors say how far both sides of a connection have come in the two rings. Each counts bytes
// since the connection was established, only grows, and belongs to the thread of the completion
// queue. The peer sees two of them, in the header of this side's outbox: published as tail, told as
// consumed. What holds of the own ring and of told holds whatever the peer publishes.
//
//	cursor       | ring | written by      | read by            | what holds
//	tail         | own  | put             | put, hasRoom,      | tail ≤ peerConsumed + ringBytes
//	             |      |                 | publish, transmit, |
//	             |      |                 | transmitWrite,     |
//	             |      |                 | refreshConsumed    |
//	published    | own  | publish         | publish, transmit  | published ≤ tail
//	peerConsumed | own  | refreshConsumed | refreshConsumed,   | peerConsumed ≤ tail
//	             |      |                 | hasRoom, transmit, |
//	             |      |                 | completeSends      |
//	blockedAt    | own  | transmit        | turn, hasWork      | blockedAt ≤ peerConsumed
//	position     | peer | receive         | receive, turn,     | position ≤ the peer's published
//	             |      |                 | publish, update    |
//	told         | peer | publish         | publish            | told ≤ position
type cursors struct {
	tail         uint64 // written, or skipped at the end of the ring
	published    uint64 // of tail: what the peer has been told
	peerConsumed uint64 // what the peer is known to have consumed
	blockedAt    uint64 // peerConsumed when the last turn to transmit stopped
	position     uint64 // consumed
	told         uint64 // of position: what the peer has been told
}
