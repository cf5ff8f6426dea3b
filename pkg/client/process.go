// SPDX-License-Identifier: Apache-2.0

package client

// callbacks is what Process needs to call Request.Done.
type callbacks struct {
	isOn      bool // Process polls: complete adds the functions of what completes
	isRunning bool // Process runs
	results   [pollBatch]Result
	done      []func(*Result) // of the results, in their order
}

// add takes the function of a request that completes.
func (c *callbacks) add(s *slot) {
	c.done = append(c.done, s.done)
	s.done = nil
}

// Process polls the queue, and calls Request.Done of each request that has completed, if it is not
// nil, with the result. It returns the number of results, of which there is a bounded number at a
// time. The functions run on the calling thread, one after the other. They may submit requests,
// which Process rings for, but a call of Process by one of them does nothing. The result is valid
// until the function returns.
func (q *Queue) Process() int {
	c := &q.called
	if c.isRunning {
		return 0
	}
	c.isRunning, c.isOn = true, true
	if c.done == nil {
		c.done = make([]func(*Result), 0, pollBatch)
	}
	n := q.Poll(c.results[:])
	c.isOn = false
	defer c.reset() // also if a function panics
	for i, done := range c.done {
		if done != nil {
			done(&c.results[i])
		}
	}
	if n > 0 {
		q.Ring()
	}
	return n
}

// reset ends a call of Process.
func (c *callbacks) reset() {
	clear(c.done)
	c.isRunning, c.done = false, c.done[:0]
}
