// Package contexts is Comch as its guide describes it, on any provider:
// server, client, consumer and producer as contexts of a progress engine, with
// tasks that are allocated from fixed pools, submitted, and completed by
// callbacks.
//
// A context is configured while it is idle and then started. What happens
// meanwhile (connections, messages, completions, changes of state) is told by
// callbacks, which run only inside Progress of the engine that the context was
// started on. The context belongs to the thread of that engine: apart from
// State, its methods and those of its tasks and connections may be called by
// that thread alone. Consumers and producers of one connection may run on
// engines of their own, each on its own thread; starting and stopping them
// is safe beside the thread of the server or client.
//
// Which operation is allowed in which state is the table in lifecycle.go;
// everything else fails with status.BadState and changes nothing.
//
// Programs that have goroutines to spare for their control path may use the
// provider's blocking calls directly instead: both ways speak to each other.
package contexts
