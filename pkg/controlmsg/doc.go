// Package controlmsg is the control protocol between initiator, relay and
// target: its messages, how they are encoded and framed, and the order in
// which they may be sent.
//
// A conversation has a Requester, which asks, and a Responder, which answers:
// the initiator asks the relay over Comch, and the relay asks the target over
// TCP. One request is outstanding at a time. A session, as both ends see it:
//
//	initiator                   relay                      target
//	    │ hello                   │ hello                     │
//	    │ open_volume             │ open_volume               │
//	    │ configure_data_path     │ configure_data_path       │
//	    │                         │ create_rdma_connection ×2 │  for each queue
//	    │ start_data_path_…       │ start_data_path_…         │
//	    │ start_storage           │ start_storage             │
//	    │        … IO on the data path, then …                │
//	    │ stop                    │ stop                      │
//	    │ destroy_objects         │ destroy_objects           │
//
// Messages are plain structs. A Codec turns them into bytes and back, a
// Transport carries the bytes, and Requester and Responder keep order, time
// and correlation. A RelayMachine ties the two conversations of a relay.
// docs/protocol.md describes the protocol as a whole.
//
// Nothing that a peer sends is trusted: every length, count and wait is
// bounded, and what breaks the protocol is answered with an Error and ends
// the conversation.
package controlmsg
