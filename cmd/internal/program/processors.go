package program

import "runtime"

// ReserveProcessors lets the Go runtime run count threads that poll without
// pause, and two more for everything else. The runtime's own choice follows
// the number of CPUs, with which pollers could keep out garbage collection
// and control messages.
func ReserveProcessors(count int) {
	if wanted := count + 2; runtime.GOMAXPROCS(0) < wanted {
		runtime.GOMAXPROCS(wanted)
	}
}
