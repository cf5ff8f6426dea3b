package datapath

// fifo is a bounded queue of transaction indices. Its capacity is that of the
// transactions, so it cannot overflow.
type fifo struct {
	items []uint32
	head  int
	count int
}

func newFIFO(capacity int) fifo { return fifo{items: make([]uint32, capacity)} }

func (f *fifo) empty() bool { return f.count == 0 }

func (f *fifo) push(index uint32) {
	if f.count == len(f.items) {
		panic("datapath: a transaction waits twice")
	}
	f.items[(f.head+f.count)%len(f.items)] = index
	f.count++
}

// pop takes the oldest item; the queue must not be empty.
func (f *fifo) pop() uint32 {
	index := f.items[f.head]
	f.head = (f.head + 1) % len(f.items)
	f.count--
	return index
}
