package controlmsg

import "github.com/zc-relay/zc-relay/pkg/status"

// OpenVolume selects the volume of a connection. It may be sent again to
// learn whether anything has changed.
type OpenVolume struct {
	// Volume is the volume's name. It may be empty from an initiator: the
	// relay's channel decides.
	Volume string
}

// OpenVolumeReply describes the volume and the limits of a session.
type OpenVolumeReply struct {
	Volume string
	// UUID identifies the volume for as long as its content lives.
	UUID [16]byte
	// WriteVerifier changes whenever writes that were not flushed may have
	// been lost.
	WriteVerifier uint64
	// Size is in bytes, a multiple of BlockSize.
	Size uint64
	// BlockSize is in bytes, a power of two: offsets and lengths of IO are
	// multiples.
	BlockSize uint32
	ReadOnly  bool
	// Capabilities are the bits of volume.Capability; unknown ones are to be
	// ignored.
	Capabilities uint32
	// MaxQueues, MaxDepth (IOs in flight of one queue) and MaxBufferSize
	// (bytes of one IO) are what ConfigureDataPath may ask for.
	MaxQueues     uint32
	MaxDepth      uint32
	MaxBufferSize uint32
	// Transport is the RDMA transport of a target, for instance "iwarp";
	// empty from a relay.
	Transport string
}

// Kind returns KindOpenVolume.
func (*OpenVolume) Kind() Kind { return KindOpenVolume }

// Kind returns KindOpenVolumeReply.
func (*OpenVolumeReply) Kind() Kind { return KindOpenVolumeReply }

func (m *OpenVolume) validate() error {
	return checkName("volume", m.Volume, MaxVolumeNameLength)
}

func (m *OpenVolumeReply) validate() error {
	if err := checkName("volume", m.Volume, MaxVolumeNameLength); err != nil {
		return err
	}
	if err := checkName("transport", m.Transport, MaxTransportLength); err != nil {
		return err
	}
	if err := checkPowerOfTwo("block_size", m.BlockSize, MaxBlockSize); err != nil {
		return err
	}
	if m.Size%uint64(m.BlockSize) != 0 {
		return status.Errorf(status.InvalidValue,
			"size is %d bytes, it must be a multiple of the block size %d", m.Size, m.BlockSize)
	}
	if err := checkCount("max_queues", m.MaxQueues, MaxQueues); err != nil {
		return err
	}
	if err := checkCount("max_depth", m.MaxDepth, MaxDepth); err != nil {
		return err
	}
	return checkCount("max_buffer_size", m.MaxBufferSize, MaxBufferSize)
}
