// SPDX-License-Identifier: Apache-2.0

// Package tlsrecord puts TLS 1.3 (RFC 8446) under MPA. crypto/tls does the handshake. Afterwards
// the records are sealed and opened here, on the thread of the data path, without allocation and
// without a system call of their own: a tls.Conn needs goroutines that block, and copies.
//
// # The hand-over
//
// Client and Server run a handshake of crypto/tls to its end, and then drop the tls.Conn. The
// connection continues with what the handshake has agreed on:
//
//   - The suite, the peer's certificates, and the channel binding are in the tls.ConnectionState.
//     The binding is derived before the hand-over.
//   - The two traffic secrets come through the configuration's KeyLogWriter, which crypto/tls calls
//     in the goroutine of the handshake. There is no other way to get them, except an interface for
//     QUIC, whose ClientHello ordinary peers reject. Each connection has a writer of its own. A
//     server learns the secrets before it has verified the client's certificate, so they are used
//     only if the whole handshake has succeeded.
//   - Both sequence numbers are zero, because crypto/tls has neither sent nor received a record
//     with these keys. It would send session tickets, which are therefore turned off. It would read
//     ahead, for the peer's first record often arrives with its last message of the handshake: the
//     connection that crypto/tls gets never reads beyond the end of the current record.
//
// After the hand-over that connection rejects everything, above all Close: tls.Conn would send an
// alert with sequence number 0, and sealing two records with the same nonce reveals the key that
// authenticates them.
//
// # Afterwards
//
// A Stream reads and writes the plaintext with blocking calls, for the exchange that comes before
// the data path. Detach ends it, and leaves a Session, which does no IO. The owner of the Session
// finds the records in what it receives (RecordLength), opens each where it lies (Open), and sends
// what it has sealed (Seal), in order and without gaps.
//
// A Session accepts what RFC 8446 permits after the handshake: application data, key updates,
// tickets, which it ignores, and alerts. After any violation, and after a fatal alert in either
// direction, it neither seals nor opens anything.
package tlsrecord
