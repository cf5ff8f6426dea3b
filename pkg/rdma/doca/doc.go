// SPDX-License-Identifier: Apache-2.0

// Package doca is the RDMA provider over NVIDIA's libdoca (doca_rdma), with connections by details:
// each side describes its end of a connection, the descriptions are exchanged, and both connect.
//
// Between two providers of this package a TCP stream per connection carries the descriptions, and
// everything else that doca_rdma does not tell its peer: private data, read depths, and why a
// connection ends. It also carries the exports of memory. A peer names memory by a key, as
// everywhere in package rdma, and doca_rdma needs an export; so the first use of a key asks the
// peer for the export that belongs to it.
//
// Programs that were written for DOCA exchange descriptions and exports in their own protocols, so
// the device is also an rdma.DetailsDevice, whose connections have no such stream.
//
// libdoca has one protection domain per device. A key that is asked for on a connection is found
// only in that connection's domain, but a peer that guesses a key of the hardware is stopped only
// by the hardware.
//
// The files are those of the other providers of package rdma. completionqueue.go drives connections
// and delivers completions; transmit.go and receive.go lead from a post to libdoca, and outcome.go
// from libdoca to the completion. dial.go, listen.go, and handshake.go set connections up, with
// stream.go beside them, and details.go without.
package doca
