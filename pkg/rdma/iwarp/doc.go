// Package iwarp is an iWARP endpoint in user space: RDMA over kernel TCP,
// with MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040) as
// framing. Its peer can be another process with this package, Linux siw, or
// an iWARP NIC.
//
// Set-up runs in goroutines and blocks under deadlines. An established
// connection is only a non-blocking socket and state: everything it does
// happens in CompletionQueue.Poll and Connection.Flush, on the one thread
// that owns the queue. That path takes no lock, starts no goroutine and
// allocates nothing.
//
// A message travels as FPDUs, each a 2-byte length, one DDP segment, padding
// and a CRC32C. Headers are written in front of payloads that the kernel
// gathers from registered memory; received payloads are either copied out of
// the queue's staging buffer, many small ones for one system call, or read
// by the kernel straight into registered memory.
//
// What it does not do: markers, immediate data and atomics (opcodes 8 and
// above, RFC 7306), and invalidation of registered memory by the peer.
package iwarp
