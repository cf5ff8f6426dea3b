package comchtest

import (
	"encoding/binary"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	workerTasks  = 4
	headerLength = 8 // bytes of a message that say who sent it and as which
)

// workerRole has a consumer and a producer on one side of a connection.
type workerRole struct {
	*actor
	client, side, number int

	consumer     *contexts.Consumer
	receivesOut  int
	heldReceives []*contexts.ReceiveTask
	free         []uint32 // buffers that no task has
	buffers      map[*contexts.ReceiveTask]uint32
	next         map[uint32]uint32 // of each producer, the least number that may come

	producer  *contexts.Producer
	sendsOut  int
	heldSends []*contexts.ProducerSendTask
	uid       uint32
	sequence  uint32
}

func newWorkerRole(a *actor, client, side, number int) role {
	w := &workerRole{
		actor: a, client: client, side: side, number: number,
		buffers: make(map[*contexts.ReceiveTask]uint32), next: make(map[uint32]uint32),
	}
	for i := range uint32(workerTasks) {
		w.free = append(w.free, i)
	}
	return w
}

// rise starts with a consumer and a producer.
func (w *workerRole) rise() {
	connection := w.links[w.client][w.side].Load()
	if connection == nil || w.consumer != nil {
		return
	}
	w.renewConsumer(connection)
	w.renewProducer(connection)
}

func (w *workerRole) step(choice int) {
	connection := w.links[w.client][w.side].Load()
	if connection == nil {
		return
	}
	detail := choice / 16
	switch choice % 16 {
	case 0, 1:
		w.renewConsumer(connection)
	case 2:
		w.startConsumer()
	case 3, 4, 5, 6:
		w.receive(detail)
	case 7:
		w.freeReceives()
	case 8, 9:
		w.renewProducer(connection)
	case 10, 11, 12, 13:
		w.send(detail)
	case 14:
		w.freeSends()
	default:
		w.stopOne(detail)
	}
}

func (w *workerRole) stopOne(detail int) {
	switch {
	case detail%2 == 0 && w.consumer != nil:
		w.expect("stop", w.consumer.State(), inUse, w.consumer.Stop())
	case detail%2 == 1 && w.producer != nil:
		w.expect("stop", w.producer.State(), inUse, w.producer.Stop())
	}
}

// renewConsumer makes another consumer if the present one is idle, and starts
// it.
func (w *workerRole) renewConsumer(connection *contexts.Connection) {
	if w.consumer != nil {
		state := w.consumer.State()
		if !w.expect("destroy", state, inIdle, w.consumer.Destroy()) {
			w.expect("configure", state, inIdle, w.consumer.Configure(contexts.ConsumerConfig{}))
			return
		}
		w.consumer = nil
	}
	consumer, err := contexts.NewConsumer(connection, workerTasks*bufferSize)
	if err != nil {
		return // the connection has ended
	}
	w.consumer = consumer
	watch := w.watch("consumer", &w.receivesOut)
	slot := &w.ids[w.client][w.side][w.number]
	err = consumer.Configure(contexts.ConsumerConfig{
		ReceiveTasks: workerTasks,
		Received:     w.messageReceived,
		Failed:       func(t *contexts.ReceiveTask, _ error) { w.heldReceives = append(w.heldReceives, t) },
		StateChanged: func(previous, next progress.State) {
			watch(previous, next)
			slot.Store(0)
			if next == progress.Running {
				slot.Store(uint32(consumer.ID()))
			}
		},
	})
	if err != nil {
		w.fail("configure consumer: %v", err)
	}
	w.startConsumer()
}

func (w *workerRole) startConsumer() {
	if w.consumer != nil {
		w.expect("start", w.consumer.State(), inIdle, w.consumer.Start(w.engine), status.NotConnected)
	}
}

// receive allocates a task, sometimes for an impossible buffer, and submits
// it, sometimes twice.
func (w *workerRole) receive(detail int) {
	if w.consumer == nil {
		return
	}
	state := w.consumer.State()
	if len(w.free) == 0 || detail%8 == 7 {
		_, err := w.consumer.AllocateReceive(workerTasks*bufferSize, 1)
		w.expect("allocate outside", state, inUse, err, status.InvalidValue)
		if err == nil {
			w.fail("allocated a receive outside the memory")
		}
		return
	}
	buffer := w.free[0]
	task, err := w.consumer.AllocateReceive(buffer*bufferSize, uint32(detail)%(bufferSize+1))
	if !w.expect("allocate receive", state, inUse, err) {
		return
	}
	w.receivesOut++
	w.free = w.free[1:]
	w.buffers[task] = buffer
	if w.expect("submit receive", state, inUse, task.Submit()) && detail%3 == 0 {
		if err := task.Submit(); status.CodeOf(err) != status.InUse {
			w.fail("submit a submitted receive: %v", err)
		}
	}
}

// messageReceived checks one message.
func (w *workerRole) messageReceived(t *contexts.ReceiveTask) {
	w.heldReceives = append(w.heldReceives, t)
	w.plot.received.Add(1)
	data, immediate := t.Data(), t.Immediate()
	if len(immediate) != headerLength {
		w.fail("message has %d bytes of immediate data", len(immediate))
		return
	}
	uid, sequence := binary.LittleEndian.Uint32(immediate), binary.LittleEndian.Uint32(immediate[4:])
	if sequence < w.next[uid] {
		w.fail("message %d of producer %d came after message %d", sequence, uid, w.next[uid]-1)
	}
	w.next[uid] = sequence + 1
	for i, b := range data {
		if b != pattern(uid, sequence, i) {
			w.fail("byte %d of message %d of producer %d is %#x", i, sequence, uid, b)
			return
		}
	}
}

func pattern(uid, sequence uint32, i int) byte { return byte(uid*31 + sequence*7 + uint32(i)) }

func (w *workerRole) freeReceives() {
	for _, t := range w.heldReceives {
		w.free = append(w.free, w.buffers[t])
		delete(w.buffers, t)
		w.receivesOut--
		if err := t.Free(); err != nil {
			w.fail("free a completed receive: %v", err)
		}
	}
	w.heldReceives = nil
}

// renewProducer makes another producer if the present one is idle, and starts
// it.
func (w *workerRole) renewProducer(connection *contexts.Connection) {
	if w.producer != nil {
		if !w.expect("destroy", w.producer.State(), inIdle, w.producer.Destroy()) {
			return
		}
		w.producer = nil
	}
	producer, err := contexts.NewProducer(connection)
	if err != nil {
		return // the connection has ended
	}
	w.producer = producer
	w.uid, w.sequence = w.uids.Add(1), 0
	err = producer.Configure(contexts.ProducerConfig{
		SendTasks:    workerTasks,
		Sent:         func(t *contexts.ProducerSendTask) { w.heldSends = append(w.heldSends, t) },
		Failed:       func(t *contexts.ProducerSendTask, _ error) { w.heldSends = append(w.heldSends, t) },
		StateChanged: w.watch("producer", &w.sendsOut),
	})
	if err != nil {
		w.fail("configure producer: %v", err)
	}
	w.expect("start", producer.State(), inIdle, producer.Start(w.engine), status.NotConnected)
}

// send sends a numbered message to a consumer of the other side, or to none.
func (w *workerRole) send(detail int) {
	if w.producer == nil {
		return
	}
	state := w.producer.State()
	target := comch.ConsumerID(w.ids[w.client][1-w.side][detail%plotWorkers].Load())
	if detail%16 == 15 {
		target = comch.ConsumerID(detail)
	}
	immediate := binary.LittleEndian.AppendUint32(nil, w.uid)
	immediate = binary.LittleEndian.AppendUint32(immediate, w.sequence)
	message := make([]byte, detail%(bufferSize/2))
	for i := range message {
		message[i] = pattern(w.uid, w.sequence, i)
	}
	task, err := w.producer.AllocateSend(target, message, immediate)
	if !w.expect("allocate send", state, inUse, err, status.NoMemory) {
		return
	}
	w.sequence++
	w.sendsOut++
	w.expect("submit send", state, inUse, task.Submit())
}

func (w *workerRole) freeSends() {
	for _, t := range w.heldSends {
		w.sendsOut--
		if err := t.Free(); err != nil {
			w.fail("free a completed send: %v", err)
		}
	}
	w.heldSends = nil
}

func (w *workerRole) home() bool {
	w.freeReceives()
	w.freeSends()
	idle := true
	if w.consumer != nil {
		if w.consumer.State() == progress.Running {
			w.stopOne(0)
		}
		idle = w.consumer.State() == progress.Idle
	}
	if w.producer != nil {
		if w.producer.State() == progress.Running {
			w.stopOne(1)
		}
		idle = idle && w.producer.State() == progress.Idle
	}
	return idle
}
