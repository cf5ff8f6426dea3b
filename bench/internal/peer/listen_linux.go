// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"fmt"
	"os"
	"strings"
)

// stateListen is a listening socket in /proc/net/tcp.
const stateListen = "0A"

func listensTCP(port int) bool {
	suffix := fmt.Sprintf(":%04X", port)
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			if len(fields) > 3 && strings.HasSuffix(fields[1], suffix) && fields[3] == stateListen {
				return true
			}
		}
	}
	return false
}
