// SPDX-License-Identifier: Apache-2.0

// Package iwarp is a user-space iWARP endpoint: RDMA over kernel TCP, framed by MPA (RFC 5044, RFC
// 6581), DDP (RFC 5041), and RDMAP (RFC 5040). The peer can be another process that uses this
// package, Linux siw, or an iWARP NIC.
//
// Connection setup runs in goroutines and blocks, bounded by deadlines. An established connection
// is a non-blocking socket with some state: all its work happens in CompletionQueue.Poll and
// Connection.Flush, on the one thread that owns the queue. That path takes no lock, starts no
// goroutine, and allocates nothing.
//
// A message travels as FPDUs. Each consists of a 2-byte length, one DDP segment, padding, and a
// CRC32C. The sender writes headers in front of payloads that the kernel gathers from registered
// memory. The receiver either copies payloads out of the queue's staging buffer, where one system
// call can deliver many small ones, or has the kernel read them straight into registered memory. On
// a connection with CRCs, an FPDU has no effect before its CRC has been verified, so every payload
// is copied.
//
// The data path is in three files. completionqueue.go drives connections and delivers completions;
// transmit.go leads from a posted request to the socket; receive.go, with verify.go for CRCs, leads
// from the socket to the completion. Posting and completing is in package softrdma. They share
// batch.go (FPDUs being sent), queues.go (Reads), package registration (registered memory),
// fpdu.go (headers), and violation.go (why a stream ends). provider.go, dial.go, and listen.go come
// before them: handshake.go hands an established stream to connection.go.
//
// Options.Network replaces TCP, for instance by a simulation. A stream that is not the kernel's
// socket is used without system calls, and asked for its readiness whenever its queue is polled.
//
// Not supported: markers, immediate data and atomics (opcodes 8 and above, RFC 7306), and
// invalidation of registered memory by the peer.
package iwarp
