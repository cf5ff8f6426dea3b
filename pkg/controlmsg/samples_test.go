package controlmsg

import (
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// sample is a message whose encoding is part of the protocol.
type sample struct {
	name        string
	correlation uint64
	message     Message
}

func sixteen(first byte) (array [16]byte) {
	for i := range array {
		array[i] = first + byte(i)
	}
	return array
}

// samples has every kind of message at least once, every field with a value
// of its own.
func samples() []sample {
	return []sample{
		{"error_answer", 7, &Error{Code: status.TooBig, Phase: PhaseConfigureDataPath, Text: "depth is 4096, the limit is 1024"}},
		{"error_spontaneous", 0, &Error{Code: status.Shutdown, Phase: PhaseRunning, Text: "the relay is shutting down"}},
		{"keep_alive", 0, &KeepAlive{}},
		{"hello", 1, &Hello{Role: RoleInitiator, MinVersion: 1, MaxVersion: 3, MaxMessageSize: 65536, Software: "initiator 1.2.3", SilenceLimitMs: 5000}},
		{"hello_reply", 1, &HelloReply{Version: 1, MaxMessageSize: 4080, Software: "zc-relay 1.2.3", SilenceLimitMs: 250}},
		{"open_volume", 2, &OpenVolume{Volume: "backup"}},
		{"open_volume_by_channel", 2, &OpenVolume{}},
		{"open_volume_reply", 2, &OpenVolumeReply{
			Volume: "backup", UUID: sixteen(0x10), WriteVerifier: 0x0102030405060708, Size: 78187491328, BlockSize: 512,
			ReadOnly: true, Capabilities: 5, MaxQueues: 32, MaxDepth: 1024, MaxBufferSize: 1 << 20, Transport: "iwarp",
		}},
		{"configure_data_path_of_initiator", 3, &ConfigureDataPath{
			QueueCount: 4, Depth: 64, BufferSize: 1 << 20, ClientInstance: sixteen(0x20), Epoch: 9,
			Export: Export{Access: memory.PCIRead | memory.PCIWrite, Length: 256 << 20, Descriptor: []byte{0xde, 0xad, 0xbe, 0xef}},
		}},
		{"configure_data_path_of_relay", 3, &ConfigureDataPath{
			QueueCount: 4, Depth: 64, BufferSize: 1 << 20, ClientInstance: sixteen(0x20), Epoch: 9,
			Export: Export{Access: memory.RemoteRead | memory.RemoteWrite, Length: 256 << 20,
				RDMA: &RDMAExport{Transport: "iwarp", Key: 0xcafe0001, Base: 0x7f0000000000}},
		}},
		{"configure_data_path_reply", 3, &ConfigureDataPathReply{InboundReads: 16}},
		{"create_rdma_connection_ipv4", 4, &CreateRDMAConnection{Queue: 1, Role: iomsg.DataConnection, Source: netip.MustParseAddr("192.0.2.1")}},
		{"create_rdma_connection_ipv6", 4, &CreateRDMAConnection{Role: iomsg.ControlConnection, Source: netip.MustParseAddr("2001:db8::1")}},
		{"create_rdma_connection_reply", 4, &CreateRDMAConnectionReply{Address: netip.MustParseAddrPort("192.0.2.2:20049"), Token: sixteen(0x30)}},
		{"create_rdma_connection_reply_with_staging", 4, &CreateRDMAConnectionReply{
			Address: netip.MustParseAddrPort("192.0.2.2:20049"), Token: sixteen(0x30),
			Staging: &rdma.RemoteMemory{Access: memory.RemoteWrite, Key: 0xcafe0002, Base: 0x7f1000000000, Length: 64 << 20},
		}},
		{"start_data_path_connections", 5, &StartDataPathConnections{ConsumerIDs: []uint32{3, 1, 4, 0xffffffff}}},
		{"start_data_path_connections_reply", 5, &StartDataPathConnectionsReply{ConsumerIDs: []uint32{9, 2, 6, 5}}},
		{"start_storage", 6, &StartStorage{}},
		{"start_storage_reply", 6, &StartStorageReply{}},
		{"stop", 7, &Stop{}},
		{"stop_reply", 7, &StopReply{}},
		{"destroy_objects", 8, &DestroyObjects{}},
		{"destroy_objects_reply", 0xffffffffffffffff, &DestroyObjectsReply{}},
	}
}
