package controlmsg

import "github.com/zc-relay/zc-relay/pkg/status"

// StartDataPathConnections tells that the sender's side of all queues exists.
type StartDataPathConnections struct {
	// ConsumerIDs are the Comch consumers of an initiator in the order of
	// its queues; none from a relay.
	ConsumerIDs []uint32
}

// StartDataPathConnectionsReply tells that all queues are connected.
type StartDataPathConnectionsReply struct {
	// ConsumerIDs are the Comch consumers of a relay in the order of the
	// queues; none from a target.
	ConsumerIDs []uint32
}

// StartStorage starts serving IO.
type StartStorage struct{}

// StartStorageReply tells that IO is served and all receives are posted.
type StartStorageReply struct{}

// Stop ends serving IO. Each queue has been drained by a stop message of its
// own before.
type Stop struct{}

// StopReply tells that no IO is served any more.
type StopReply struct{}

// DestroyObjects releases what the session has built, however far it got.
type DestroyObjects struct{}

// DestroyObjectsReply tells that all of it is gone.
type DestroyObjectsReply struct{}

// Kind returns KindStartDataPathConnections.
func (*StartDataPathConnections) Kind() Kind { return KindStartDataPathConnections }

// Kind returns KindStartDataPathConnectionsReply.
func (*StartDataPathConnectionsReply) Kind() Kind { return KindStartDataPathConnectionsReply }

// Kind returns KindStartStorage.
func (*StartStorage) Kind() Kind { return KindStartStorage }

// Kind returns KindStartStorageReply.
func (*StartStorageReply) Kind() Kind { return KindStartStorageReply }

// Kind returns KindStop.
func (*Stop) Kind() Kind { return KindStop }

// Kind returns KindStopReply.
func (*StopReply) Kind() Kind { return KindStopReply }

// Kind returns KindDestroyObjects.
func (*DestroyObjects) Kind() Kind { return KindDestroyObjects }

// Kind returns KindDestroyObjectsReply.
func (*DestroyObjectsReply) Kind() Kind { return KindDestroyObjectsReply }

func (m *StartDataPathConnections) validate() error      { return checkConsumers(m.ConsumerIDs) }
func (m *StartDataPathConnectionsReply) validate() error { return checkConsumers(m.ConsumerIDs) }
func (*StartStorage) validate() error                    { return nil }
func (*StartStorageReply) validate() error               { return nil }
func (*Stop) validate() error                            { return nil }
func (*StopReply) validate() error                       { return nil }
func (*DestroyObjects) validate() error                  { return nil }
func (*DestroyObjectsReply) validate() error             { return nil }

// checkConsumers returns an error unless every id can be a consumer and names
// one queue only.
func checkConsumers(ids []uint32) error {
	if len(ids) > MaxQueues {
		return status.Errorf(status.TooBig, "%d consumer ids, the limit is %d", len(ids), MaxQueues)
	}
	queueOf := make(map[uint32]int, len(ids))
	for queue, id := range ids {
		if id == 0 {
			return status.Errorf(status.InvalidValue, "consumer id of queue %d is 0", queue)
		}
		if other, taken := queueOf[id]; taken {
			return status.Errorf(status.InvalidValue, "consumer id %d is given for queue %d and queue %d", id, other, queue)
		}
		queueOf[id] = queue
	}
	return nil
}
