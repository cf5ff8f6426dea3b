package tlsrecord

import (
	"bytes"
	"io"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/network/networktest"
)

func TestDataCrossesBothWays(t *testing.T) {
	for name, connect := range map[string]func(testing.TB) (*Stream, *Stream){
		"memory": securePair,
		"TCP": func(t testing.TB) (*Stream, *Stream) {
			client, server := connectTCP(t)
			clientConfig, serverConfig := credentials(t)
			return secure(t, client, server, clientConfig, serverConfig)
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t)
			want := bytes.Repeat([]byte("0123456789abcde\n"), 32<<10) // 512 KiB
			done := make(chan error, 4)
			for _, s := range []*Stream{client, server} {
				go func() {
					_, err := s.Write(want)
					if err == nil {
						err = s.CloseWrite()
					}
					done <- err
				}()
				go func() {
					got, err := io.ReadAll(s)
					if err == nil && !bytes.Equal(got, want) {
						t.Error("other data has arrived")
					}
					done <- err
				}()
			}
			for range cap(done) {
				if err := testkit.Receive(t, "all has arrived", done); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestBothEndsHaveTheSameBinding(t *testing.T) {
	client, server := securePair(t)
	another, _ := securePair(t)
	if b := client.ChannelBinding(); len(b) != 32 || !bytes.Equal(b, server.ChannelBinding()) ||
		bytes.Equal(b, another.ChannelBinding()) {
		t.Errorf("bindings %x, %x, and of another connection %x", b, server.ChannelBinding(),
			another.ChannelBinding())
	}
	if names := client.State().PeerCertificates[0].DNSNames; names[0] != "target.test" {
		t.Errorf("the peer is %q", names)
	}
}

func TestDetachReturnsWhatHasArrived(t *testing.T) {
	client, server := securePair(t)
	if _, err := client.Write([]byte("hello, world")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(server, b); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	stream, session, plaintext, partial := server.Detach()
	if string(plaintext) != ", world" || len(partial) != 0 {
		t.Errorf("plaintext %q, partial %q", plaintext, partial)
	}
	if _, err := client.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	record := make([]byte, 4+Overhead)
	if _, err := io.ReadFull(stream, record); err != nil {
		t.Fatal(err)
	}
	opened(t, session, record, "more")
}

var _ = networktest.Config{}
