// SPDX-License-Identifier: Apache-2.0

package mutualtls_test

import (
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// A relay and a target prove to each other who they are. Both have a certificate of an authority
// that the other trusts.
func Example() {
	directory, err := os.MkdirTemp("", "mutualtls-example")
	must(err)
	defer os.RemoveAll(directory)
	authority := mutualtlstest.NewAuthority(exampleTB{})
	target, err := mutualtls.Load(authority.Write(filepath.Join(directory, "target"),
		[]string{"target.test"}), nil)
	must(err)
	relay, err := mutualtls.Load(authority.Write(filepath.Join(directory, "relay"),
		[]string{"relay.test"}), nil)
	must(err)

	// The target serves only relays with an allowed name.
	allowed, err := mutualtls.ParseName("dns:relay.test")
	must(err)
	atTarget, atRelay := net.Pipe()
	go func() {
		connection := tls.Server(atTarget, target.Server([]mutualtls.Name{allowed}))
		must(connection.Handshake())
		_, err := fmt.Fprintf(connection, "hello %s",
			connection.ConnectionState().PeerCertificates[0].DNSNames[0])
		must(err)
		must(atTarget.Close())
	}()

	// The relay requires the name of the target that it has connected to. To pick up renewed files,
	// ask for a new configuration for each connection.
	connection := tls.Client(atRelay, relay.Client("target.test"))
	message := make([]byte, 64)
	n, err := connection.Read(message)
	must(err)
	fmt.Printf("%s says %q\n", connection.ConnectionState().PeerCertificates[0].DNSNames[0],
		message[:n])
	must(atRelay.Close())
	// Output: target.test says "hello relay.test"
}

// exampleTB lets the authority of the tests report its errors in an example.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper() {}

func (exampleTB) Fatal(args ...any) { log.Fatal(args...) }

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
