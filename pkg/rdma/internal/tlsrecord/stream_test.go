// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/network/networktest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// write sends text, which must not fail.
func write(t *testing.T, s *Stream, text string) {
	t.Helper()
	if n, err := s.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("wrote %d bytes of %q: %v", n, text, err)
	}
}

// read checks that the next bytes are text.
func read(t *testing.T, s *Stream, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if n, err := io.ReadFull(s, b); string(b[:n]) != text || err != nil {
		t.Fatalf("read %q, %v, want %q", b[:n], err, text)
	}
}

// half is half a MiB of lines, each of which begins with a digit.
var half = bytes.Repeat([]byte("0123456789abcde\n"), 32<<10)

// exchange sends half a MiB in each direction at the same time, and the end of the data.
func exchange(t *testing.T, client, server *Stream) {
	t.Helper()
	done := make(chan error, 4)
	for _, s := range []*Stream{client, server} {
		go func() {
			_, err := s.Write(half)
			if err == nil {
				err = s.CloseWrite()
			}
			done <- err
		}()
		go func() {
			got, err := io.ReadAll(s)
			if err == nil && !bytes.Equal(got, half) {
				err = errors.New("other data has arrived")
			}
			done <- err
		}()
	}
	for range cap(done) {
		if err := testkit.Receive(t, "all has arrived", done); err != nil {
			t.Error(err)
		}
	}
}

func TestDataCrossesBothWays(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		client, server := securePair(t)
		exchange(t, client, server)
	})
	t.Run("TCP", func(t *testing.T) {
		client, server := connectTCP(t)
		clientConfig, serverConfig := credentials(t)
		a, b := secure(t, client, server, clientConfig, serverConfig)
		exchange(t, a, b)
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestCryptoTLSIsAPeer(t *testing.T) {
	near, far := connectTCP(t)
	clientConfig, serverConfig := credentials(t)
	serverConfig.SessionTicketsDisabled = false // its first records are tickets
	peer := tls.Server(far, serverConfig)
	served := make(chan error, 1)
	go func() {
		// It sends back what it gets, and then the end.
		_, err := io.Copy(onlyWriter{peer}, onlyReader{peer})
		served <- errors.Join(err, peer.CloseWrite())
	}()
	s, err := Client(testkit.Context(t), near, clientConfig)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		var errs []error
		for _, request := range []byte{updateNotRequested, updateRequested} {
			errs = append(errs, updateKey(s, request))
			_, err := s.Write(half)
			errs = append(errs, err)
		}
		sent <- errors.Join(append(errs, s.CloseWrite())...)
	}()
	before := slices.Clone(s.session.in.secret)
	if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, slices.Concat(half, half)) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	if bytes.Equal(before, s.session.in.secret) {
		t.Error("the peer has the same key")
	}
	for _, done := range []chan error{sent, served} {
		if err := testkit.Receive(t, "all is sent", done); err != nil {
			t.Error(err)
		}
	}
}

type onlyWriter struct{ io.Writer }

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

// fragmented returns at most a number of bytes from a Read.
type fragmented struct {
	network.Stream
	most int
}

func (f *fragmented) Read(b []byte) (int, error) {
	return f.Stream.Read(b[:min(len(b), f.most)])
}

func TestTheStreamMayBeFragmentedAnywhere(t *testing.T) {
	clientConfig, serverConfig := credentials(t)
	for most := 1; most < 40; most++ {
		client, server := connect(t, networktest.Config{})
		a, b := secure(t, &fragmented{client, most}, &fragmented{server, most}, clientConfig,
			serverConfig)
		for range 2 {
			write(t, a, "a request")
			read(t, b, "a request")
			write(t, b, "and a response")
			read(t, a, "and a response")
		}
	}
}

// recorder counts the calls of Write, and keeps what was written last.
type recorder struct {
	network.Stream
	writes atomic.Int32
	last   []byte
}

func (r *recorder) Write(b []byte) (int, error) {
	r.writes.Add(1)
	r.last = slices.Clone(b)
	return r.Stream.Write(b)
}

func TestAWriteOfARecordIsOneCall(t *testing.T) {
	client, server := connect(t, networktest.Config{})
	clientConfig, serverConfig := credentials(t)
	counted := &recorder{Stream: client}
	a, b := secure(t, counted, server, clientConfig, serverConfig)
	for _, n := range []int{1, 1000, MaxPlaintext} {
		a.session.updateRequested = true // goes with the data
		counted.writes.Store(0)
		text := strings.Repeat("x", n)
		write(t, a, text)
		read(t, b, text)
		if n := counted.writes.Load(); n != 1 {
			t.Errorf("%d calls", n)
		}
	}
}

func TestAReadContinuesAfterADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, networktest.Config{})
		clientConfig, serverConfig := credentials(t)
		counted := &recorder{Stream: client}
		a, b := secure(t, counted, server, clientConfig, serverConfig)
		write(t, a, "x")
		read(t, b, "x")
		length := len(counted.last)
		for at := range length {
			a.mu.Lock()
			record := a.session.sealed("y")
			a.mu.Unlock()
			if _, err := client.Write(record[:at]); err != nil {
				t.Fatal(err)
			}
			if err := b.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 8)
			if n, err := b.Read(got); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("at %d: read %d bytes, %v", at, n, err)
			}
			if err := b.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Write(record[at:]); err != nil {
				t.Fatal(err)
			}
			read(t, b, "y")
		}
	})
}

func TestOnlyCloseNotifyIsAnEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(a *Stream, raw network.Stream) error
		want error
		code status.Code
	}{
		"close notify": {func(a *Stream, _ network.Stream) error { return a.CloseWrite() },
			io.EOF, status.Unknown},
		"closed": {func(a *Stream, _ network.Stream) error { return a.Close() },
			io.EOF, status.Unknown},
		"end of TCP": {func(_ *Stream, raw network.Stream) error { return raw.CloseWrite() },
			io.ErrUnexpectedEOF, status.ConnectionReset},
		"closed TCP": {func(_ *Stream, raw network.Stream) error { return raw.Close() },
			io.ErrUnexpectedEOF, status.ConnectionReset},
		"part of a record": {func(a *Stream, raw network.Stream) error {
			record := a.session.sealed("lost")
			_, err := raw.Write(record[:len(record)-1])
			return errors.Join(err, raw.CloseWrite())
		}, io.ErrUnexpectedEOF, status.ConnectionReset},
		"part of a header": {func(a *Stream, raw network.Stream) error {
			_, err := raw.Write(a.session.sealed("lost")[:HeaderBytes-1])
			return errors.Join(err, raw.CloseWrite())
		}, io.ErrUnexpectedEOF, status.ConnectionReset},
		"reset": {func(_ *Stream, raw network.Stream) error {
			return errors.Join(raw.SetLinger(0), raw.Close())
		}, nil, status.ConnectionReset},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clientConfig, serverConfig := credentials(t)
				client, server := connect(t, networktest.Config{ResetsFollow: true})
				a, b := secure(t, client, server, clientConfig, serverConfig)
				write(t, a, "before")
				if err := c.end(a, client); err != nil {
					t.Fatal(err)
				}
				read(t, b, "before")
				for range 2 {
					n, err := b.Read(make([]byte, 1))
					if n != 0 || c.want != nil && !errors.Is(err, c.want) ||
						status.CodeOf(err) != c.code || (err == io.EOF) != (c.want == io.EOF) {
						t.Errorf("read %d bytes, %v [%v], want %v", n, err, status.CodeOf(err),
							c.want)
					}
				}
			})
		})
	}
}

func TestAfterTheEndOfItsDataAPeerStillReads(t *testing.T) {
	client, server := securePair(t)
	for range 2 {
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writes behind the end: %v", err)
	}
	if b, err := io.ReadAll(server); len(b) != 0 || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	write(t, server, "an answer")
	read(t, client, "an answer")
}

func TestDamageIsReportedToThePeer(t *testing.T) {
	for name, c := range map[string]struct {
		send func(s *Session) []byte
		want Alert
	}{
		"flipped": {func(s *Session) []byte {
			record := s.sealed("data")
			record[HeaderBytes] ^= 1
			return record
		}, BadRecordMAC},
		"plain":  {func(*Session) []byte { return unhex("15 0303 0002 0100") }, UnexpectedMessage},
		"no TLS": {func(*Session) []byte { return []byte("MPA ID Req Frame") }, UnexpectedMessage},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clientConfig, serverConfig := credentials(t)
				client, server := connect(t, networktest.Config{})
				a, b := secure(t, client, server, clientConfig, serverConfig)
				if _, err := client.Write(c.send(a.session)); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if _, err := b.Read(make([]byte, 1)); !errors.Is(err, c.want) {
						t.Errorf("%v, want %v", err, c.want)
					}
				}
				_, err := a.Read(make([]byte, 1))
				if !strings.Contains(err.Error(), "the peer ended TLS: "+c.want.String()) {
					t.Errorf("the peer reads %v", err)
				}
				for _, s := range []*Stream{a, b} {
					if _, err := s.Write([]byte("x")); err == nil {
						t.Error("writes after the end of TLS")
					}
				}
			})
		})
	}
}

func TestAStreamObeysRequestsForKeyUpdates(t *testing.T) {
	client, server := securePair(t)
	for _, request := range []byte{updateNotRequested, updateRequested} {
		before := slices.Clone(client.session.in.secret)
		if err := updateKey(server, request); err != nil {
			t.Fatal(err)
		}
		write(t, server, "to the client")
		read(t, client, "to the client")
		if bytes.Equal(before, client.session.in.secret) {
			t.Error("the server has the same key")
		}
		before = slices.Clone(server.session.in.secret)
		write(t, client, "to the server")
		read(t, server, "to the server")
		if bytes.Equal(before, server.session.in.secret) == (request == updateRequested) {
			t.Errorf("request %d: the client has changed its key, or not", request)
		}
	}
}

// updateKey sends a key update.
func updateKey(s *Stream, request byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	s.output = s.session.appendKeyUpdate(s.output[:0], request)
	s.mu.Unlock()
	return s.writeOutput()
}

func TestAWriteThatWasCutOffIsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, networktest.Config{BufferBytes: 40 << 10})
		clientConfig, serverConfig := credentials(t)
		a, b := secure(t, client, server, clientConfig, serverConfig)
		if err := a.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := a.Write(half)
		if n != 2*MaxPlaintext || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("wrote %d bytes, %v", n, err)
		}
		if err := a.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("writes behind a part of a record: %v", err)
		}
		if err := a.CloseWrite(); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(b); !bytes.Equal(got, half[:n]) ||
			!errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
	})
}

func TestCloseDoesNotWaitLongForItsPeer(t *testing.T) {
	for name, prepare := range map[string]func(a *Stream) error{
		"no room": func(a *Stream) error {
			_, err := a.Stream.Write(make([]byte, 40<<10))
			return err
		},
		"in a write": func(a *Stream) error {
			go a.Write(half)
			synctest.Wait()
			return nil
		},
		"in a read": func(a *Stream) error {
			go a.Read(make([]byte, 1))
			synctest.Wait()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clientConfig, serverConfig := credentials(t)
				client, server := connect(t, networktest.Config{BufferBytes: 40 << 10})
				a, _ := secure(t, client, server, clientConfig, serverConfig)
				if err := prepare(a); err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				if err := a.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); took > lastRecordTimeout {
					t.Errorf("took %v", took)
				}
				if a.session.out.secret != nil {
					t.Error("the keys are left")
				}
			})
		})
	}
}

func TestDetachReturnsWhatHasArrived(t *testing.T) {
	client, server := securePair(t)
	write(t, client, "hello, world")
	read(t, server, "hello")
	stream, session, plaintext, partial := server.Detach()
	if string(plaintext) != ", world" || len(partial) != 0 {
		t.Errorf("plaintext %q, partial %q", plaintext, partial)
	}
	write(t, client, "more")
	record := make([]byte, 4+Overhead)
	if _, err := io.ReadFull(stream, record); err != nil {
		t.Fatal(err)
	}
	opened(t, session, record, "more")
	if _, err := stream.Write(session.sealed("back")); err != nil {
		t.Fatal(err)
	}
	read(t, client, "back")
	checkDetached(t, server)
	if _, err := stream.Write(session.sealed("still open")); err != nil {
		t.Fatal(err)
	}
	read(t, client, "still open")
}

// checkDetached checks that a stream does nothing any more.
func checkDetached(t *testing.T, s *Stream) {
	t.Helper()
	_, readErr := s.Read(make([]byte, 1))
	_, writeErr := s.Write([]byte("x"))
	for _, err := range []error{readErr, writeErr, s.CloseWrite(), s.Close()} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("a detached stream returns %v", err)
		}
	}
}

func TestDetachReturnsAPartOfARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientConfig, serverConfig := credentials(t)
		for at := range 4 + Overhead {
			client, server := connect(t, networktest.Config{})
			a, b := secure(t, client, server, clientConfig, serverConfig)
			record := a.session.sealed("data")
			if _, err := client.Write(record[:at]); err != nil {
				t.Fatal(err)
			}
			_ = b.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			_, session, plaintext, partial := b.Detach()
			if len(plaintext) != 0 || !bytes.Equal(partial, record[:at]) {
				t.Errorf("at %d: plaintext %q, partial %q", at, plaintext, partial)
			}
			opened(t, session, append(partial, record[at:]...), "data")
		}
	})
}
