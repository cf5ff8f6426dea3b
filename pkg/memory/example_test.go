// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"errors"
	"fmt"
	"log"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The owner of a region shares it by its file descriptor, and a peer imports it. The peer's mapping
// allows only what the peer was granted.
func Example() {
	owned, err := memory.Alloc("example", 4096)
	must(err)
	copy(owned.Bytes(), "hello")

	// Pass the descriptor to the peer. Between processes, a Unix socket does that.
	descriptor, err := unix.Dup(owned.Descriptor())
	must(err)

	// The peer limits the size of the file that it is willing to map. The owner can take pages away
	// at any time, so the peer only copies, and a page that is gone becomes an error.
	imported, err := memory.Import(descriptor, owned.Base(), 4096, 1<<20, memory.PCIRead)
	must(err)
	buffer := make([]byte, 5)
	must(imported.CopyOut(buffer, 0))
	fmt.Printf("%s, untrusted: %t\n", buffer, imported.Untrusted())

	// Every access is checked.
	err = imported.CopyOut(buffer, 4092)
	fmt.Println(errors.Is(err, status.InvalidValue))

	must(imported.Close())
	must(owned.Close())
	// Output:
	// hello, untrusted: true
	// true
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
