// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// openSSL is a process that is the other end of a connection. What is written to its input becomes
// data, unless it is a command: a letter alone.
type openSSL struct {
	*testkit.Process
	input io.WriteCloser
}

func startOpenSSL(t *testing.T, files mutualtls.Files, args ...string) *openSSL {
	t.Helper()
	args = append(args, "-tls1_3", "-cert", files.Certificate, "-key", files.Key,
		"-CAfile", files.CA, "-verify_return_error", "-alpn", mutualtls.Protocol)
	cmd := exec.Command("openssl", args...)
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	return &openSSL{testkit.Start(t, cmd), input}
}

func (p *openSSL) send(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(p.input, text); err != nil {
		t.Fatal(err)
	}
}

var accepts = regexp.MustCompile(`ACCEPT (\S+)`)

// connectOpenSSL returns a connection to OpenSSL as the other side.
func connectOpenSSL(t *testing.T, isClient bool, suite uint16, args ...string) (*Stream, *openSSL) {
	t.Helper()
	testkit.RequireTools(t, "openssl")
	authority := mutualtlstest.NewAuthority(t)
	own := authority.Write(t.TempDir(), []string{"relay.test"})
	peer := authority.Write(t.TempDir(), []string{"target.test"})
	if !isClient {
		own, peer = peer, own
	}
	credentials, err := mutualtls.Load(own, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := testkit.Context(t)
	args = append(args, "-ciphersuites", suiteNames[suite])
	var s *Stream
	var p *openSSL
	if isClient {
		var stream network.Stream
		p, stream = dialOpenSSL(t, peer, args...)
		s, err = Client(ctx, stream, credentials.Client("target.test"))
	} else {
		listener, listenErr := network.Kernel{}.Listen(ctx, testkit.Endpoint(t))
		if listenErr != nil {
			t.Fatal(listenErr)
		}
		defer listener.Close()
		p = startOpenSSL(t, peer, append([]string{"s_client", "-connect",
			listener.Address().String(), "-verify_hostname", "target.test"}, args...)...)
		stream, acceptErr := listener.Accept()
		if acceptErr != nil {
			t.Fatal(acceptErr)
		}
		s, err = Server(ctx, stream, credentials.Server(nil))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if s.State().CipherSuite != suite {
		t.Fatalf("suite %#04x", s.State().CipherSuite)
	}
	return s, p
}

// dialOpenSSL connects to OpenSSL as a server, which requires a certificate.
func dialOpenSSL(t *testing.T, files mutualtls.Files, args ...string) (*openSSL, network.Stream) {
	t.Helper()
	p := startOpenSSL(t, files, append([]string{"s_server", "-naccept", "1", "-Verify", "1",
		"-accept", testkit.Endpoint(t).String()}, args...)...)
	testkit.Eventually(t, "OpenSSL listens", func() bool {
		return accepts.MatchString(p.Stdout.String())
	})
	at := netip.MustParseAddrPort(accepts.FindStringSubmatch(p.Stdout.String())[1])
	stream, err := network.Kernel{}.Dial(t.Context(), netip.Addr{}, at)
	if err != nil {
		t.Fatal(err)
	}
	return p, stream
}

func forOpenSSL(
	t *testing.T, test func(t *testing.T, isClient bool, suite uint16),
) {
	for _, role := range []string{"server", "client"} {
		t.Run("OpenSSL as "+role, func(t *testing.T) {
			forSuites(t, func(t *testing.T, suite uint16) {
				t.Parallel()
				test(t, role == "server", suite)
			})
		})
	}
}

func TestOpenSSLExchangesData(t *testing.T) {
	forOpenSSL(t, func(t *testing.T, isClient bool, suite uint16) {
		var quiet []string
		if !isClient {
			quiet = []string{"-quiet"} // or it prints between the data
		}
		s, p := connectOpenSSL(t, isClient, suite, quiet...)
		done := make(chan error, 2)
		go func() {
			_, err := p.input.Write(half)
			done <- err
		}()
		go func() {
			_, err := s.Write(half)
			done <- err
		}()
		read(t, s, string(half))
		for range cap(done) {
			if err := testkit.Receive(t, "all is sent", done); err != nil {
				t.Error(err)
			}
		}
		testkit.Eventually(t, "all has arrived", func() bool {
			return p.Stdout.Contains(string(half))
		})
		if err := s.CloseWrite(); err != nil {
			t.Error(err)
		}
		if code := p.Wait(); code != 0 {
			t.Errorf("OpenSSL exits with %d", code)
		}
	})
}

func TestOpenSSLChangesKeys(t *testing.T) {
	forOpenSSL(t, func(t *testing.T, isClient bool, suite uint16) {
		s, p := connectOpenSSL(t, isClient, suite)
		round := 0
		roundTrip := func() {
			t.Helper()
			round++
			out, back := fmt.Sprintf("<out %d>", round), fmt.Sprintf("<back %d>\n", round)
			write(t, s, out)
			testkit.Eventually(t, "the data has arrived", func() bool {
				return p.Stdout.Contains(out)
			})
			p.send(t, back)
			read(t, s, back)
		}
		secrets := func() [2]string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return [2]string{string(s.session.in.secret), string(s.session.out.secret)}
		}
		roundTrip()
		for _, c := range []struct {
			command string
			request byte
			isDue   bool
		}{{command: "k"}, {command: "K", isDue: true}, {request: updateNotRequested},
			{request: updateRequested}} {
			before := secrets()
			if c.command != "" {
				// The update is read, with nothing behind it until that has happened.
				p.send(t, c.command+"\n")
				reading := make(chan error, 1)
				text := fmt.Sprintf("<after %s>\n", c.command)
				go func() {
					b := make([]byte, len(text))
					_, err := io.ReadFull(s, b)
					if err == nil && string(b) != text {
						err = fmt.Errorf("read %q", b)
					}
					reading <- err
				}()
				testkit.Eventually(t, "the key has changed", func() bool {
					return secrets()[0] != before[0]
				})
				p.send(t, text)
				if err := testkit.Receive(t, "data with the new key", reading); err != nil {
					t.Fatal(err)
				}
				if s.session.UpdateDue() != c.isDue {
					t.Errorf("%s: an update is due: %v", c.command, s.session.UpdateDue())
				}
			} else if err := updateKey(s, c.request); err != nil {
				t.Fatal(err)
			}
			roundTrip()
			after := secrets()
			inChanged, outChanged := before[0] != after[0], before[1] != after[1]
			if inChanged != (c.command != "" || c.request == updateRequested) ||
				outChanged != (c.command == "" || c.isDue) {
				t.Errorf("%+v: the keys have changed: %v, %v", c, inChanged, outChanged)
			}
		}
		if !isClient {
			p.send(t, "Q\n")
		} else if err := s.CloseWrite(); err != nil { // it says that it ends only in return
			t.Fatal(err)
		}
		if n, err := s.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("read %d bytes, %v, want the end", n, err)
		}
		_ = s.Close()
		if code := p.Wait(); code != 0 {
			t.Errorf("OpenSSL exits with %d", code)
		}
	})
}

func TestOpenSSLRejectsACertificate(t *testing.T) {
	testkit.RequireTools(t, "openssl")
	authority, stranger := mutualtlstest.NewAuthority(t), mutualtlstest.NewAuthority(t)
	own := stranger.Write(t.TempDir(), []string{"relay.test"})
	peer := authority.Write(t.TempDir(), []string{"target.test"})
	own.CA = peer.CA
	credentials, err := mutualtls.Load(own, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stream := dialOpenSSL(t, peer)
	s, err := Client(testkit.Context(t), stream, credentials.Client("target.test"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Read(make([]byte, 1))
	if status.CodeOf(err) != status.Authentication || !strings.Contains(err.Error(),
		"the peer rejected this side's certificate: unknown certificate authority") {
		t.Errorf("%v", err)
	}
}

func TestOpenSSLNoticesDamage(t *testing.T) {
	for name, c := range map[string]struct {
		send func(s *Stream) []byte
		want string // of what OpenSSL prints
	}{
		"flipped": {func(s *Stream) []byte {
			record := s.session.sealed("data")
			record[len(record)-1] ^= 1
			return record
		}, "bad record mac"},
		"replayed": {func(s *Stream) []byte {
			record := s.session.sealed("data")
			return slices.Concat(record, record)
		}, "bad record mac"},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := connectOpenSSL(t, true, anySuite)
			if _, err := s.Stream.Write(c.send(s)); err != nil {
				t.Fatal(err)
			}
			_, err := s.Read(make([]byte, 1))
			if err == nil || !strings.Contains(err.Error(), "the peer ended TLS: bad record MAC") {
				t.Errorf("%v", err)
			}
			p.Wait()
			if output := p.Stdout.String() + p.Stderr.String(); !strings.Contains(output, c.want) {
				t.Errorf("OpenSSL says %s", output)
			}
		})
	}
}
