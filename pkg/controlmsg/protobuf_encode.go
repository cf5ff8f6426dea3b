package controlmsg

import (
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/controlmsg/internal/controlpb"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// encodeMessage puts a valid message into wire.
func encodeMessage(wire *controlpb.Envelope, message Message) {
	if message.Kind().isRequest() {
		encodeRequest(wire, message)
		return
	}
	encodeAnswer(wire, message)
}

func encodeRequest(wire *controlpb.Envelope, message Message) {
	switch m := message.(type) {
	case *Hello:
		wire.Message = &controlpb.Envelope_Hello{Hello: &controlpb.Hello{
			Role: controlpb.Role(m.Role), MinVersion: m.MinVersion, MaxVersion: m.MaxVersion,
			MaxMessageSize: m.MaxMessageSize, Software: m.Software, SilenceLimitMs: m.SilenceLimitMs,
		}}
	case *OpenVolume:
		wire.Message = &controlpb.Envelope_OpenVolume{OpenVolume: &controlpb.OpenVolume{Volume: m.Volume}}
	case *ConfigureDataPath:
		wire.Message = &controlpb.Envelope_ConfigureDataPath{ConfigureDataPath: &controlpb.ConfigureDataPath{
			QueueCount: m.QueueCount, Depth: m.Depth, BufferSize: m.BufferSize, Export: encodeExport(&m.Export),
			ClientInstance: m.ClientInstance[:], Epoch: m.Epoch,
		}}
	case *CreateRDMAConnection:
		wire.Message = &controlpb.Envelope_CreateRdmaConnection{CreateRdmaConnection: &controlpb.CreateRdmaConnection{
			Queue: m.Queue, Role: encodeConnectionRole(m.Role), Source: encodeAddress(m.Source),
		}}
	case *StartDataPathConnections:
		wire.Message = &controlpb.Envelope_StartDataPathConnections{
			StartDataPathConnections: &controlpb.StartDataPathConnections{ConsumerIds: m.ConsumerIDs},
		}
	case *StartStorage:
		wire.Message = &controlpb.Envelope_StartStorage{StartStorage: &controlpb.StartStorage{}}
	case *Stop:
		wire.Message = &controlpb.Envelope_Stop{Stop: &controlpb.Stop{}}
	case *DestroyObjects:
		wire.Message = &controlpb.Envelope_DestroyObjects{DestroyObjects: &controlpb.DestroyObjects{}}
	}
}

func encodeAnswer(wire *controlpb.Envelope, message Message) {
	switch m := message.(type) {
	case *Error:
		wire.Message = &controlpb.Envelope_Error{Error: &controlpb.Error{
			Code: controlpb.Code(m.Code), Phase: controlpb.Phase(m.Phase), Text: m.Text,
		}}
	case *KeepAlive:
		wire.Message = &controlpb.Envelope_KeepAlive{KeepAlive: &controlpb.KeepAlive{}}
	case *HelloReply:
		wire.Message = &controlpb.Envelope_HelloReply{HelloReply: &controlpb.HelloReply{
			Version: m.Version, MaxMessageSize: m.MaxMessageSize, Software: m.Software, SilenceLimitMs: m.SilenceLimitMs,
		}}
	case *OpenVolumeReply:
		wire.Message = &controlpb.Envelope_OpenVolumeReply{OpenVolumeReply: &controlpb.OpenVolumeReply{
			Volume: m.Volume, Uuid: m.UUID[:], WriteVerifier: m.WriteVerifier, Size: m.Size, BlockSize: m.BlockSize,
			ReadOnly: m.ReadOnly, Capabilities: m.Capabilities, MaxQueues: m.MaxQueues, MaxDepth: m.MaxDepth,
			MaxBufferSize: m.MaxBufferSize, Transport: m.Transport,
		}}
	case *ConfigureDataPathReply:
		wire.Message = &controlpb.Envelope_ConfigureDataPathReply{
			ConfigureDataPathReply: &controlpb.ConfigureDataPathReply{InboundReads: m.InboundReads},
		}
	case *CreateRDMAConnectionReply:
		wire.Message = &controlpb.Envelope_CreateRdmaConnectionReply{
			CreateRdmaConnectionReply: &controlpb.CreateRdmaConnectionReply{
				Address: encodeAddress(m.Address.Addr()), Port: uint32(m.Address.Port()), Token: m.Token[:],
				Staging: encodeStaging(m.Staging),
			},
		}
	case *StartDataPathConnectionsReply:
		wire.Message = &controlpb.Envelope_StartDataPathConnectionsReply{
			StartDataPathConnectionsReply: &controlpb.StartDataPathConnectionsReply{ConsumerIds: m.ConsumerIDs},
		}
	case *StartStorageReply:
		wire.Message = &controlpb.Envelope_StartStorageReply{StartStorageReply: &controlpb.StartStorageReply{}}
	case *StopReply:
		wire.Message = &controlpb.Envelope_StopReply{StopReply: &controlpb.StopReply{}}
	case *DestroyObjectsReply:
		wire.Message = &controlpb.Envelope_DestroyObjectsReply{DestroyObjectsReply: &controlpb.DestroyObjectsReply{}}
	}
}

func encodeStaging(s *rdma.RemoteMemory) *controlpb.Staging {
	if s == nil {
		return nil
	}
	return &controlpb.Staging{RemoteKey: s.Key, Base: s.Base, Length: s.Length}
}

func encodeExport(e *Export) *controlpb.Export {
	wire := &controlpb.Export{Access: uint32(e.Access), Length: e.Length}
	if e.RDMA == nil {
		wire.Location = &controlpb.Export_Descriptor_{Descriptor_: e.Descriptor}
		return wire
	}
	wire.Location = &controlpb.Export_Rdma{Rdma: &controlpb.RdmaExport{
		Transport: e.RDMA.Transport, RemoteKey: e.RDMA.Key, Base: e.RDMA.Base,
	}}
	return wire
}

// encodeAddress writes IPv4 addresses in 4 bytes, however they came.
func encodeAddress(address netip.Addr) []byte { return address.Unmap().AsSlice() }
