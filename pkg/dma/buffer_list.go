package dma

import "github.com/zc-relay/zc-relay/pkg/status"

// Chain appends the list that next heads to the list that b heads, and takes
// over the only reference to it. A job then copies from all of them, in order.
// status.InvalidValue if either is not the head of a list of its own,
// status.InUse if a job uses one of them or next has more references.
func (b *Buffer) Chain(next *Buffer) error {
	const what = "chain buffers"
	for _, head := range []*Buffer{b, next} {
		if err := head.changeable(what); err != nil {
			return err
		}
		if head.references == 0 {
			return status.Errorf(status.InvalidValue, "%s: one is in the middle of a list", what)
		}
	}
	if b == next {
		return status.Errorf(status.InvalidValue, "%s: a list cannot follow itself", what)
	}
	if next.references > 1 {
		return status.Errorf(status.InUse, "%s: there are %d references to the second", what, next.references)
	}
	b.last.next = next
	b.last = next.last
	b.elements += next.elements
	next.references, next.last, next.elements = 0, nil, 0
	return nil
}

// Unchain cuts the list that b heads in front of tail, which then heads a list
// of its own, with one reference. status.InvalidValue if tail does not follow
// b in its list.
func (b *Buffer) Unchain(tail *Buffer) error {
	const what = "unchain buffers"
	if err := b.changeable(what); err != nil {
		return err
	}
	if b.references == 0 {
		return status.Errorf(status.InvalidValue, "%s: the first is in the middle of a list", what)
	}
	before, position := b, 1
	for before.next != nil && before.next != tail {
		before, position = before.next, position+1
	}
	if before.next == nil {
		return status.Errorf(status.InvalidValue, "%s: the second is not in the list of the first", what)
	}
	tail.references, tail.last, tail.elements = 1, b.last, b.elements-position
	before.next, b.last, b.elements = nil, before, position
	return nil
}

// Next is the buffer that follows in the list, nil at its end.
func (b *Buffer) Next() *Buffer { return b.next }

// ListLength is how many buffers the list has that b heads; 0 if b is not the
// head.
func (b *Buffer) ListLength() int { return b.elements }
