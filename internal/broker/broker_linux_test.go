// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAnAnswerOfTheWrongLengthIsRejected(t *testing.T) {
	whole := (&broker.Reply{}).Encode()
	for name, answer := range map[string][]byte{
		"short": whole[:len(whole)-1], "long": append(whole, 0), "one byte": {0},
	} {
		t.Run(name, func(t *testing.T) {
			d := &broker.Descriptor{Name: fmt.Sprintf("zc-broker-test-%d", os.Getpid()), Length: 1}
			listener, err := net.Listen(broker.Network, "@"+d.Name)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					return // the test has ended
				}
				defer conn.Close()
				if _, err := conn.Read(make([]byte, len(d.ID))); err == nil {
					_, _ = conn.Write(answer)
				}
			}()
			_, err = broker.Open(d)
			if !errors.Is(err, status.InvalidValue) || strings.Contains(err.Error(), "%!") {
				t.Errorf("Open returns %v", err)
			}
		})
	}
}
