package iwarp_test

import "testing"

func TestTheDataPathDoesNotAllocate(t *testing.T) {
	for name, crc := range map[string]bool{"plain": false, "CRC": true} {
		for _, size := range []int{64, 4096, 128 << 10} {
			l := newLink(t, crc)
			exchange := func() {
				l.y.receive(t, 1, 64)
				l.x.chain(t, l.y, size)
				l.await(t, l.y, 1)
				l.await(t, l.x, 2)
				l.x.read(t, l.y, size)
				l.await(t, l.x, 1)
			}
			for range 300 { // lists grow to their size
				exchange()
			}
			if n := testing.AllocsPerRun(200, exchange); n != 0 {
				t.Errorf("%s: %v allocations for a Write, a Send and a Read of %d bytes", name, n, size)
			}
		}
	}
}
