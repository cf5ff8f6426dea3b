// SPDX-License-Identifier: Apache-2.0

package client

// vector is the data of a call in several slices: length bytes of head and then of tail. A call
// with one slice needs no tail, and so no allocation.
type vector struct {
	head   []byte
	tail   [][]byte
	length uint64
}

func vectorOf(p []byte) vector { return vector{head: p, length: uint64(len(p))} }

// newVector returns the data of several slices, one after the other.
func newVector(slices [][]byte) vector {
	v := vector{tail: slices}
	for _, p := range slices {
		v.length += uint64(len(p))
	}
	return v
}

// cut returns the first n bytes, of which there are as many, and the rest.
func (v vector) cut(n uint64) (first, rest vector) {
	first, rest = v, v
	first.length, rest.length = n, v.length-n
	for n >= uint64(len(rest.head)) && len(rest.tail) > 0 {
		n -= uint64(len(rest.head))
		rest.head, rest.tail = rest.tail[0], rest.tail[1:]
	}
	rest.head = rest.head[n:]
	return first, rest
}

// copyTo copies the data to buffer, which has room for it.
func (v vector) copyTo(buffer []byte) {
	v.eachSlice(func(p []byte) { buffer = buffer[copy(buffer, p):] })
}

// copyFrom copies the data from buffer, which has as much.
func (v vector) copyFrom(buffer []byte) {
	v.eachSlice(func(p []byte) { buffer = buffer[copy(p, buffer):] })
}

// eachSlice calls f with each of the slices, as far as they belong to the data.
func (v vector) eachSlice(f func(p []byte)) {
	for rest := v; rest.length > 0; {
		n := min(rest.length, uint64(len(rest.head)))
		f(rest.head[:n])
		_, rest = rest.cut(n)
	}
}
