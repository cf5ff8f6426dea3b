package datapath

// outbox is a bounded queue of answers that the client has posted no receive
// for yet.
type outbox struct {
	messages []message
	head     int
	count    int
}

func newOutbox(capacity int) outbox { return outbox{messages: make([]message, capacity)} }

func (o *outbox) empty() bool { return o.count == 0 }

// push returns false if the queue is full.
func (o *outbox) push(m *message) bool {
	if o.count == len(o.messages) {
		return false
	}
	o.messages[(o.head+o.count)%len(o.messages)] = *m
	o.count++
	return true
}

// first is the oldest message; the queue must not be empty.
func (o *outbox) first() *message { return &o.messages[o.head] }

func (o *outbox) pop() {
	o.head = (o.head + 1) % len(o.messages)
	o.count--
}
