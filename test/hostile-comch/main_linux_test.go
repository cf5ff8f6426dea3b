// Package hostilecomch attacks a Comch server from other processes, and looks
// whether the server and its honest clients notice.
package hostilecomch

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(attackVariable); name != "" {
		if err := runAttack(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
