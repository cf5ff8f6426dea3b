package contexts

import (
	"sync"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// SendTask sends one control message. Once it is submitted its message must
// not be changed until it completes.
type SendTask struct {
	task
	control    *control
	connection *Connection
	message    []byte
}

// AllocateSend takes a task from the pool. The message need not be registered
// memory. status.NoMemory if all tasks are in use, status.TooBig if the
// message exceeds the agreed size.
func (c *control) AllocateSend(connection *Connection, message []byte) (*SendTask, error) {
	if err := c.allow(allocate); err != nil {
		return nil, err
	}
	if connection == nil || connection.control != c || connection.peer == nil {
		return nil, status.Errorf(status.InvalidValue, "allocate send task: the connection is not one of this %s", c.kind)
	}
	if limit := connection.peer.MaxMessageSize(); len(message) > limit {
		return nil, status.Errorf(status.TooBig, "allocate send task: message of %d bytes, the limit is %d", len(message), limit)
	}
	t, err := c.tasks.get()
	if err != nil {
		return nil, err
	}
	t.take()
	t.connection, t.message = connection, message
	return t, nil
}

// Connection is where the message goes.
func (t *SendTask) Connection() *Connection { return t.connection }

// Submit sends the message. Success completes the task when the peer has room
// for the message, which will be received unless the connection breaks.
func (t *SendTask) Submit() error {
	if err := t.checkSubmit(); err != nil {
		return err
	}
	t.owner = library
	if t.context.is(progress.Stopping) {
		t.complete(errFlushed)
		return nil
	}
	if !t.connection.sends.put(t) {
		t.complete(t.connection.notConnected())
	}
	return nil
}

// complete gives the task back to the application, soon. Any goroutine may
// call it.
func (t *SendTask) complete(err error) {
	t.context.engine.Do(func() {
		t.owner = application
		if err == nil {
			t.control.config.SendCompleted(t)
		} else {
			t.control.config.SendFailed(t, err)
		}
	})
}

// Free gives the task back to the pool. It fails with status.InUse while the
// task is submitted.
func (t *SendTask) Free() error {
	if err := t.release(); err != nil {
		return err
	}
	t.connection, t.message = nil, nil
	t.control.tasks.put(t)
	return nil
}

// sendQueue holds the tasks that wait for a connection's goroutine. The pool
// bounds it.
type sendQueue struct {
	mu      sync.Mutex
	tasks   []*SendTask
	closed  bool
	changed chan struct{} // holds a token while there is something to see
}

func newSendQueue() *sendQueue { return &sendQueue{changed: make(chan struct{}, 1)} }

func (q *sendQueue) put(t *SendTask) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.tasks = append(q.tasks, t)
	q.signal()
	return true
}

func (q *sendQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

func (q *sendQueue) signal() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// take waits for tasks. It returns none when there will be no more.
func (q *sendQueue) take() []*SendTask {
	for range q.changed {
		q.mu.Lock()
		tasks, closed := q.tasks, q.closed
		q.tasks = nil
		q.mu.Unlock()
		if closed {
			q.signal()
		}
		if len(tasks) > 0 || closed {
			return tasks
		}
	}
	return nil
}
