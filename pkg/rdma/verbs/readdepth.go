//go:build verbs

package verbs

import (
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
)

// readDepths are how many Reads one side serves and issues at a time.
type readDepths struct{ inbound, outbound int }

// offeredReadDepths are what the connection manager is told: at least one
// each, because siw does not survive zero.
func offeredReadDepths(config *rdma.ConnectionConfig) readDepths {
	return readDepths{max(config.InboundReads, 1), max(config.OutboundReads, 1)}
}

// readDepthsOf is what the peer allows this side.
func readDepthsOf(event *ibv.CMEvent) readDepths {
	return readDepths{event.InboundReads, event.OutboundReads}
}

func (r readDepths) limitedTo(other readDepths) readDepths {
	return readDepths{max(1, min(r.inbound, other.inbound)), max(1, min(r.outbound, other.outbound))}
}
