// Package emulated is a Comch provider for one Linux machine: the channel
// between host and DPU is a Unix socket and shared memory.
//
// Servers are found in the file system, under
// DIRECTORY/REPRESENTOR/DPU-DEVICE/NAME; a client of host device X looks
// under DIRECTORY/X/*/. Control messages, and the descriptors of shared
// memory and doorbells, travel over a SOCK_SEQPACKET socket that only
// goroutines of the provider touch. The data path is a ring in shared memory
// per consumer: a producer copies its message into the next posted buffer and
// publishes the completion; while the peer polls there is no system call.
//
// Neither side trusts the other. The server creates the memory of all rings,
// sealed against resizing, so that no access to them can fault; every value
// in them is loaded once and checked, and a peer that breaks the rules loses
// its connection. A doorbell is a pair of datagram sockets of which each side
// holds one end alone, so that nothing a peer does to its end can block the
// other side or keep it from sleeping. What a peer has handed over is closed by
// goroutines of the connection only, since that can block. The memory of a ring
// is freed when its consumer is gone, even if the client keeps the file.
package emulated
