// SPDX-License-Identifier: Apache-2.0

//go:build cgo && libdoca_shared

package libdoca

// #cgo CFLAGS: -DEMU_SHARED
import "C"

import (
	"fmt"
	"os"
	"runtime"
)

// minThreads keeps threads for the goroutines of the library while those of the program spin inside
// of it. With fewer, they wait for the scheduler's clock.
const minThreads = 4

func init() {
	runtime.GOMAXPROCS(max(minThreads, runtime.GOMAXPROCS(0)))
	config, err := FromEnvironment(os.Getenv)
	if err == nil {
		err = Configure(config)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "libdoca emulated: %v: continuing without devices\n", err)
		if err := Configure(Config{Devices: []Device{}}); err != nil {
			panic(err)
		}
	}
}
