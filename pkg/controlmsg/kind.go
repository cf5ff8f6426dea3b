package controlmsg

// Kind tells what a message is.
type Kind uint8

// The kinds of messages. A reply follows its request.
const (
	KindError Kind = iota + 1
	KindKeepAlive
	KindHello
	KindHelloReply
	KindOpenVolume
	KindOpenVolumeReply
	KindConfigureDataPath
	KindConfigureDataPathReply
	KindCreateRDMAConnection
	KindCreateRDMAConnectionReply
	KindStartDataPathConnections
	KindStartDataPathConnectionsReply
	KindStartStorage
	KindStartStorageReply
	KindStop
	KindStopReply
	KindDestroyObjects
	KindDestroyObjectsReply

	kindCount
)

var kindNames = [kindCount]string{
	"invalid",
	"error", "keep_alive",
	"hello", "hello_reply",
	"open_volume", "open_volume_reply",
	"configure_data_path", "configure_data_path_reply",
	"create_rdma_connection", "create_rdma_connection_reply",
	"start_data_path_connections", "start_data_path_connections_reply",
	"start_storage", "start_storage_reply",
	"stop", "stop_reply",
	"destroy_objects", "destroy_objects_reply",
}

// String returns the symbolic name, for instance "open_volume_reply".
func (k Kind) String() string {
	if k < kindCount {
		return kindNames[k]
	}
	return kindNames[0]
}

// isRequest reports whether messages of this kind are answered.
func (k Kind) isRequest() bool {
	return k >= KindHello && k < kindCount && (k-KindHello)%2 == 0
}

// reply is the kind of answer that a request gets if it succeeds.
func (k Kind) reply() Kind { return k + 1 }
