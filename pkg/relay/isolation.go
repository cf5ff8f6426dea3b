// SPDX-License-Identifier: Apache-2.0

package relay

// Isolation is what keeps a target from memory that is not meant for it.
type Isolation string

const (
	// Direct moves data straight between the target and the client's memory, if a device can import
	// that (ImportDevice), and otherwise through bounce buffers as Staged does. If the memory can
	// be registered only in a protection domain that all sessions share, as on a DOCA device, then
	// a target that knows the key of another session's memory can reach it.
	Direct Isolation = "direct"
	// Staged moves data through bounce buffers of the relay, which a DMA engine copies to and from
	// the client's memory. Targets can reach the bounce buffers of their own sessions only.
	Staged Isolation = "staged"
)

// ImportDevice says which device imports the memory of a channel's clients, if the CPU cannot
// address it.
type ImportDevice string

const (
	// ImportAuto takes the Comch device if it is the RDMA device as well, then the RDMA device, and
	// falls back to bounce buffers.
	ImportAuto ImportDevice = "auto"
	// ImportComch takes the Comch device alone.
	ImportComch ImportDevice = "comch"
	// ImportRDMA takes the RDMA device alone.
	ImportRDMA ImportDevice = "rdma"
)
