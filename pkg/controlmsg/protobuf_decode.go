package controlmsg

import (
	"math"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/controlmsg/internal/controlpb"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// decodeMessage translates a message. It refuses only what the message's own,
// narrower types cannot hold; the rest is up to validate.
func decodeMessage(wire *controlpb.Envelope) (Message, error) {
	switch m := wire.Message.(type) {
	case *controlpb.Envelope_Error:
		return decodeError(m.Error), nil
	case *controlpb.Envelope_KeepAlive:
		return &KeepAlive{}, nil
	case *controlpb.Envelope_Hello:
		return decodeHello(m.Hello)
	case *controlpb.Envelope_HelloReply:
		return &HelloReply{
			Version: m.HelloReply.GetVersion(), MaxMessageSize: m.HelloReply.GetMaxMessageSize(),
			Software: m.HelloReply.GetSoftware(), SilenceLimitMs: m.HelloReply.GetSilenceLimitMs(),
		}, nil
	case *controlpb.Envelope_OpenVolume:
		return &OpenVolume{Volume: m.OpenVolume.GetVolume()}, nil
	case *controlpb.Envelope_OpenVolumeReply:
		return decodeOpenVolumeReply(m.OpenVolumeReply)
	case *controlpb.Envelope_ConfigureDataPath:
		return decodeConfigureDataPath(m.ConfigureDataPath)
	case *controlpb.Envelope_ConfigureDataPathReply:
		return &ConfigureDataPathReply{InboundReads: m.ConfigureDataPathReply.GetInboundReads()}, nil
	case *controlpb.Envelope_CreateRdmaConnection:
		return decodeCreateRDMAConnection(m.CreateRdmaConnection)
	case *controlpb.Envelope_CreateRdmaConnectionReply:
		return decodeCreateRDMAConnectionReply(m.CreateRdmaConnectionReply)
	}
	return decodeStartStop(wire)
}

func decodeStartStop(wire *controlpb.Envelope) (Message, error) {
	switch m := wire.Message.(type) {
	case *controlpb.Envelope_StartDataPathConnections:
		return &StartDataPathConnections{ConsumerIDs: m.StartDataPathConnections.GetConsumerIds()}, nil
	case *controlpb.Envelope_StartDataPathConnectionsReply:
		return &StartDataPathConnectionsReply{ConsumerIDs: m.StartDataPathConnectionsReply.GetConsumerIds()}, nil
	case *controlpb.Envelope_StartStorage:
		return &StartStorage{}, nil
	case *controlpb.Envelope_StartStorageReply:
		return &StartStorageReply{}, nil
	case *controlpb.Envelope_Stop:
		return &Stop{}, nil
	case *controlpb.Envelope_StopReply:
		return &StopReply{}, nil
	case *controlpb.Envelope_DestroyObjects:
		return &DestroyObjects{}, nil
	case *controlpb.Envelope_DestroyObjectsReply:
		return &DestroyObjectsReply{}, nil
	}
	return nil, status.Errorf(status.Unexpected, "the message is of no known kind")
}

// decodeError is lenient: why a peer gives up must get through, even from one
// that knows more phases.
func decodeError(wire *controlpb.Error) *Error {
	e := &Error{Code: status.Code(wire.GetCode()), Text: printableLine(wire.GetText(), MaxTextLength)}
	if phase := wire.GetPhase(); phase > 0 && phase < controlpb.Phase(phaseCount) {
		e.Phase = Phase(phase)
	}
	return e
}

func decodeHello(wire *controlpb.Hello) (*Hello, error) {
	role, err := decodeEnum[Role]("role", int32(wire.GetRole()))
	if err != nil {
		return nil, err
	}
	return &Hello{
		Role: role, MinVersion: wire.GetMinVersion(), MaxVersion: wire.GetMaxVersion(),
		MaxMessageSize: wire.GetMaxMessageSize(), Software: wire.GetSoftware(), SilenceLimitMs: wire.GetSilenceLimitMs(),
	}, nil
}

func decodeOpenVolumeReply(wire *controlpb.OpenVolumeReply) (*OpenVolumeReply, error) {
	uuid, err := decodeSixteen("uuid", wire.GetUuid())
	if err != nil {
		return nil, err
	}
	return &OpenVolumeReply{
		Volume: wire.GetVolume(), UUID: uuid, WriteVerifier: wire.GetWriteVerifier(), Size: wire.GetSize(),
		BlockSize: wire.GetBlockSize(), ReadOnly: wire.GetReadOnly(), Capabilities: wire.GetCapabilities(),
		MaxQueues: wire.GetMaxQueues(), MaxDepth: wire.GetMaxDepth(), MaxBufferSize: wire.GetMaxBufferSize(),
		Transport: wire.GetTransport(),
	}, nil
}

func decodeConfigureDataPath(wire *controlpb.ConfigureDataPath) (*ConfigureDataPath, error) {
	instance, err := decodeSixteen("client_instance", wire.GetClientInstance())
	if err != nil {
		return nil, err
	}
	m := &ConfigureDataPath{
		QueueCount: wire.GetQueueCount(), Depth: wire.GetDepth(), BufferSize: wire.GetBufferSize(),
		ClientInstance: instance, Epoch: wire.GetEpoch(),
	}
	export := wire.GetExport()
	m.Export = Export{
		Access: memory.Access(export.GetAccess()), Length: export.GetLength(), Descriptor: export.GetDescriptor_(),
	}
	if remote := export.GetRdma(); remote != nil {
		m.Export.RDMA = &RDMAExport{Transport: remote.GetTransport(), Key: remote.GetRemoteKey(), Base: remote.GetBase()}
	}
	return m, nil
}

func decodeCreateRDMAConnection(wire *controlpb.CreateRdmaConnection) (*CreateRDMAConnection, error) {
	role, err := decodeConnectionRole(wire.GetRole())
	if err != nil {
		return nil, err
	}
	source, err := decodeAddress("source", wire.GetSource())
	if err != nil {
		return nil, err
	}
	return &CreateRDMAConnection{Queue: wire.GetQueue(), Role: role, Source: source}, nil
}

func decodeCreateRDMAConnectionReply(wire *controlpb.CreateRdmaConnectionReply) (*CreateRDMAConnectionReply, error) {
	address, err := decodeAddress("address", wire.GetAddress())
	if err != nil {
		return nil, err
	}
	if wire.GetPort() > math.MaxUint16 {
		return nil, status.Errorf(status.InvalidValue, "port %d does not exist", wire.GetPort())
	}
	token, err := decodeSixteen("token", wire.GetToken())
	if err != nil {
		return nil, err
	}
	return &CreateRDMAConnectionReply{
		Address: netip.AddrPortFrom(address, uint16(wire.GetPort())), Token: token, Staging: decodeStaging(wire.GetStaging()),
	}, nil
}

// decodeConnectionRole maps the wire's numbers, of which 0 is invalid, to the
// roles, which count from 0.
func decodeConnectionRole(wire controlpb.ConnectionRole) (iomsg.ConnectionRole, error) {
	if wire < controlpb.ConnectionRole_CONNECTION_ROLE_CONTROL || wire > controlpb.ConnectionRole_CONNECTION_ROLE_DATA {
		return 0, status.Errorf(status.InvalidValue, "connection role %d does not exist", wire)
	}
	return iomsg.ConnectionRole(wire - controlpb.ConnectionRole_CONNECTION_ROLE_CONTROL), nil
}

func encodeConnectionRole(role iomsg.ConnectionRole) controlpb.ConnectionRole {
	return controlpb.ConnectionRole(role) + controlpb.ConnectionRole_CONNECTION_ROLE_CONTROL
}

// decodeStaging adds the right to write, which the message implies.
func decodeStaging(wire *controlpb.Staging) *rdma.RemoteMemory {
	if wire == nil {
		return nil
	}
	return &rdma.RemoteMemory{Key: wire.GetRemoteKey(), Base: wire.GetBase(), Length: wire.GetLength(), Access: memory.RemoteWrite}
}

// decodeEnum narrows an enum that may hold any number on the wire.
func decodeEnum[E ~uint8](field string, number int32) (E, error) {
	if number < 0 || number > math.MaxUint8 {
		return 0, status.Errorf(status.InvalidValue, "%s %d does not exist", field, number)
	}
	return E(number), nil
}

func decodeSixteen(field string, b []byte) (array [16]byte, err error) {
	if len(b) != len(array) {
		return array, status.Errorf(status.InvalidValue, "%s has %d bytes, it must have %d", field, len(b), len(array))
	}
	return [16]byte(b), nil
}

func decodeAddress(field string, b []byte) (netip.Addr, error) {
	address, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.Addr{}, status.Errorf(status.InvalidValue, "%s has %d bytes, an IP address has 4 or 16", field, len(b))
	}
	return address.Unmap(), nil
}
