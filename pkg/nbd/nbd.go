// SPDX-License-Identifier: Apache-2.0

// Package nbd serves disks to clients of the Network Block Device protocol: Linux, qemu, libnbd,
// and the many tools that are built on them.
//
// The protocol is that of the document "The NBD protocol" (doc/proto.md of the repository
// NetworkBlockDevice/nbd). Comments name its sections. A Server negotiates in the fixed newstyle
// with each client on a separate goroutine, and then hands the connection to one of its workers:
// a thread that serves many connections without blocking. It receives data straight into the memory
// of the disk, except that of small writes, and sends it straight from there.
//
// What a disk is, the server does not know: it uses the interfaces of pkg/blockio.
package nbd

// MaxPayload is the most bytes that one read or write may move. It is announced to clients as the
// maximum block size.
const MaxPayload = 32 << 20
