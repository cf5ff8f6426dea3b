// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"sync"
)

// Output collects what a program or a logger writes. Any goroutine may write and read.
type Output struct {
	mu     sync.Mutex
	buffer bytes.Buffer // guarded by mu
}

// Write appends to the output. It never fails.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.Write(b)
}

// String returns all that has been written.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.String()
}

// Len returns how many bytes have been written.
func (o *Output) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.Len()
}

// Contains reports whether text has been written.
func (o *Output) Contains(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.buffer.Bytes(), []byte(text))
}
