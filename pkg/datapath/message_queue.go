package datapath

// messageQueue is a bounded queue of messages that have to wait.
type messageQueue struct {
	messages []message
	head     int
	count    int
}

func newMessageQueue(capacity int) messageQueue {
	return messageQueue{messages: make([]message, capacity)}
}

func (q *messageQueue) empty() bool { return q.count == 0 }

// push returns false if the queue is full.
func (q *messageQueue) push(m *message) bool {
	if q.count == len(q.messages) {
		return false
	}
	q.messages[(q.head+q.count)%len(q.messages)] = *m
	q.count++
	return true
}

// first is the oldest message; the queue must not be empty.
func (q *messageQueue) first() *message { return &q.messages[q.head] }

func (q *messageQueue) pop() {
	q.head = (q.head + 1) % len(q.messages)
	q.count--
}
