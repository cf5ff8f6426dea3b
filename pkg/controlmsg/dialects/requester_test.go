// SPDX-License-Identifier: Apache-2.0

package dialects_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// scriptedTarget is the target's end of a conversation.
type scriptedTarget struct {
	*testing.T
	version dialects.Version
	stream  network.Stream
}

// streams returns both ends of a TCP connection.
func streams(t *testing.T) (near, far network.Stream) {
	t.Helper()
	listener, err := network.Kernel{}.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err = network.Kernel{}.Dial(t.Context(), netip.Addr{}, listener.Address())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// The applications' messages follow each other on a stream without anything between them.
func TestGoldenMessagesAreCutFromAStream(t *testing.T) {
	for _, name := range names(t, "ctl") {
		for _, v := range versionsOf(name) {
			near, far := streams(t)
			want := golden(t, name)
			if _, err := far.Write(append(bytes.Clone(want), want...)); err != nil {
				t.Fatal(err)
			}
			_ = far.Close()
			transport := controlmsg.NewTCPTransport(near, v.TCPConfig())
			for range 2 {
				got, err := transport.Receive(t.Context())
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%v: %s is received as %x, %v", v, name, got, err)
				}
			}
			if _, err := transport.Receive(t.Context()); !errors.Is(err, status.NotConnected) {
				t.Errorf("%v: %s is followed by %v", v, name, err)
			}
			transport.Abort()
		}
	}
}

// converse returns both ends of a conversation.
func converse(t *testing.T, v dialects.Version) (*dialects.Requester, *scriptedTarget) {
	t.Helper()
	near, far := streams(t)
	conversation := dialects.NewRequester(controlmsg.NewTCPTransport(near, v.TCPConfig()),
		dialects.RequesterConfig{Version: v, Timeout: 2 * time.Minute})
	t.Cleanup(func() {
		_ = far.Close() // which Close waits for
		conversation.Close(nil)
	})
	return conversation, &scriptedTarget{t, v, far}
}

// expect receives a request and checks it.
func (s *scriptedTarget) expect(want dialects.Message) *dialects.Envelope {
	s.Helper()
	header := make([]byte, s.version.HeaderSize())
	if _, err := io.ReadFull(s.stream, header); err != nil {
		s.Fatal(err)
	}
	message := append(header, make([]byte, s.version.MessageSize(header)-uint64(len(header)))...)
	if _, err := io.ReadFull(s.stream, message[len(header):]); err != nil {
		s.Fatal(err)
	}
	got, err := dialects.Decode(s.version, message)
	if err != nil {
		s.Fatal(err)
	}
	if difference := cmp.Diff(want, got.Message); difference != "" {
		s.Errorf("the target gets another request: %s", difference)
	}
	return got
}

func (s *scriptedTarget) send(e *dialects.Envelope) {
	s.Helper()
	b, err := dialects.Encode(s.version, e)
	if err == nil {
		_, err = s.stream.Write(b)
	}
	if err != nil {
		s.Fatal(err)
	}
}

func (s *scriptedTarget) answer(want, reply dialects.Message) {
	s.Helper()
	request := s.expect(want)
	s.send(&dialects.Envelope{ID: request.ID, Correlation: request.Correlation, Message: reply})
}

// call calls the conversation while the script runs.
func call[R controlmsg.Message](
	t *testing.T, d *dialects.Requester, request controlmsg.RequestFor[R], script func(),
) (R, error) {
	t.Helper()
	type outcome struct {
		reply R
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		reply, err := controlmsg.Call(context.Background(), d, request)
		done <- outcome{reply, err}
	}()
	script()
	o := <-done
	return o.reply, o.err
}

func TestAConversationWithATargetOfTheApplications(t *testing.T) {
	for v := dialects.DOCA3_0; v <= dialects.DOCA3_2; v++ {
		t.Run(v.String(), func(t *testing.T) {
			d, s := converse(t, v)
			volume, err := call(t, d, &controlmsg.OpenVolume{Volume: "disk"}, func() {
				s.answer(&dialects.QueryStorage{},
					&dialects.QueryStorageReply{TotalSize: 1 << 20, BlockSize: 4096})
			})
			if err != nil {
				t.Fatal(err)
			}
			if volume.Size != 1<<20 || volume.BlockSize != 4096 || volume.Transport != "doca" ||
				volume.UUID == [16]byte{} || volume.Capabilities != 0 {
				t.Errorf("the volume is %+v", volume)
			}
			_, err = call(t, d, &controlmsg.ConfigureDataPath{QueueCount: 2, Depth: 16,
				Export: controlmsg.Export{Descriptor: []byte("export")}}, func() {
				want := &dialects.InitStorage{Count: 16, Cores: 2, Export: []byte("export")}
				switch v {
				case dialects.DOCA3_0:
					want.BatchSize = 1
				case dialects.DOCA3_2:
					want.Count = 32
				}
				s.answer(want, &dialects.InitStorageReply{})
			})
			if err != nil {
				t.Fatal(err)
			}
			details := make(chan []byte, 1)
			go func() {
				theirs, _ := d.Connect(context.Background(), 1, dialects.RoleControl,
					[]byte("ours"))
				details <- theirs
			}()
			s.answer(&dialects.CreateConnection{Context: 1, Role: dialects.RoleControl,
				Details: []byte("ours")}, &dialects.CreateConnectionReply{Context: 1,
				Role: dialects.RoleControl, Details: []byte("theirs")})
			if theirs := string(<-details); theirs != "theirs" {
				t.Errorf("the target's details are %q", theirs)
			}
			if _, err := call(t, d, &controlmsg.StartStorage{}, func() {
				s.answer(&dialects.StartStorage{}, &dialects.StartStorageReply{})
			}); err != nil {
				t.Error(err)
			}
			if _, err := call(t, d, &controlmsg.Stop{}, func() {
				s.answer(&dialects.StopStorage{}, &dialects.StopStorageReply{})
			}); err != nil {
				t.Error(err)
			}
			if _, err := call(t, d, &controlmsg.DestroyObjects{}, func() {
				s.answer(&dialects.Shutdown{}, &dialects.ShutdownReply{})
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A target of 2.10 is told all that the initiator has told the relay, and answers most requests
// with the same response.
func TestAConversationWithATargetOf2_10(t *testing.T) {
	d, s := converse(t, dialects.DOCA2_10)
	volume, err := controlmsg.Call(t.Context(), d, &controlmsg.OpenVolume{Volume: "disk"})
	if err != nil || volume.Size != 1<<32 || volume.BlockSize != 64 {
		t.Fatalf("the volume is %+v: %v", volume, err)
	}
	accept := func(request controlmsg.Message, want dialects.Message) {
		t.Helper()
		done := make(chan error, 1)
		go func() {
			_, err := d.Call(context.Background(), request)
			done <- err
		}()
		s.answer(want, &dialects.Response{})
		if err := <-done; err != nil {
			t.Errorf("%v: %v", request.Kind(), err)
		}
	}
	accept(&controlmsg.ConfigureDataPath{QueueCount: 2, Depth: 16, BufferSize: 4096,
		Export: controlmsg.Export{Descriptor: []byte("export")}},
		&dialects.InitStorage{Count: 16, BufferSize: 4096, BatchSize: 1, Export: []byte("export")})
	connected := make(chan string, 1)
	go func() {
		theirs, err := d.Connect(context.Background(), 1, dialects.RoleControl, []byte("ours"))
		connected <- fmt.Sprintf("%s, %v", theirs, err)
	}()
	s.answer(&dialects.CreateConnection{Role: dialects.RoleControl, Details: []byte("ours")},
		&dialects.CreateConnectionReply{Role: dialects.RoleControl, Details: []byte("theirs")})
	if got := <-connected; got != "theirs, <nil>" {
		t.Errorf("the target's details are %s", got)
	}
	accept(&controlmsg.StartDataPathConnections{}, &dialects.StartConnections{})
	accept(&controlmsg.StartStorage{}, &dialects.StartStorage{})
	if _, err := d.Call(t.Context(), &controlmsg.Stop{}); err != nil { // is not sent
		t.Error(err)
	}
	accept(&controlmsg.DestroyObjects{}, &dialects.Shutdown{})
}

// Where 2.10 has a reply of its own, a response without an error is not that reply.
func TestAResponseIsNoConnectionOf2_10(t *testing.T) {
	d, s := converse(t, dialects.DOCA2_10)
	failed := make(chan error, 1)
	go func() {
		_, err := d.Connect(context.Background(), 0, dialects.RoleData, []byte("ours"))
		failed <- err
	}()
	s.answer(&dialects.CreateConnection{Details: []byte("ours")}, &dialects.Response{})
	if err := <-failed; !errors.Is(err, status.Unexpected) {
		t.Errorf("the connection is taken, or fails with %v", err)
	}
}

// An initiator learns the relay's consumers after the request that has no counterpart.
func TestAConversationWithARelayOfTheApplications(t *testing.T) {
	for v := dialects.DOCA2_10; v <= dialects.DOCA3_2; v++ {
		t.Run(v.String(), func(t *testing.T) {
			stream, far := streams(t)
			d := dialects.NewRequester(controlmsg.NewTCPTransport(stream, v.TCPConfig()),
				dialects.RequesterConfig{Version: v, Timeout: 2 * time.Minute,
					AwaitConsumers: func(_ context.Context, count int) ([]uint32, error) {
						return []uint32{7, 5}[:count], nil
					}})
			t.Cleanup(func() {
				_ = far.Close()
				d.Close(nil)
			})
			s := &scriptedTarget{t, v, far}
			init := &dialects.InitStorage{Count: 16, Export: []byte("export")}
			reply := dialects.Message(&dialects.InitStorageReply{})
			if v == dialects.DOCA2_10 {
				init.BufferSize, reply = 4096, &dialects.Response{}
			} else {
				init.Cores = 2
			}
			if v <= dialects.DOCA3_0 {
				init.BatchSize = 1
			}
			if _, err := call(t, d, &controlmsg.ConfigureDataPath{QueueCount: 2, Depth: 16,
				BufferSize: 4096, Export: controlmsg.Export{Descriptor: []byte("export")}},
				func() { s.answer(init, reply) }); err != nil {
				t.Fatal(err)
			}
			connected, err := call(t, d,
				&controlmsg.StartDataPathConnections{ConsumerIDs: []uint32{1, 2}}, func() {
					if v == dialects.DOCA2_10 {
						s.answer(&dialects.StartConnections{}, &dialects.Response{})
					}
				})
			if err != nil || !slices.Equal(connected.ConsumerIDs, []uint32{7, 5}) {
				t.Errorf("the relay's consumers are %v: %v", connected, err)
			}
		})
	}
}

func TestAnErrorOfATargetOfTheApplicationsIsPassedOn(t *testing.T) {
	d, s := converse(t, dialects.DOCA3_2)
	for result, want := range map[status.Code]status.Code{
		status.NoMemory: status.NoMemory, status.Success: status.Unknown, 77777: status.Unknown,
	} {
		_, err := call(t, d, &controlmsg.StartStorage{}, func() {
			s.answer(&dialects.StartStorage{}, &dialects.Response{Result: result, Text: "why\x1b"})
		})
		if status.CodeOf(err) != want || errors.Is(err, status.Success) {
			t.Errorf("code %d is passed on as %v", result, err)
		}
	}
	if err := d.Err(); err != nil {
		t.Errorf("the conversation has ended: %v", err)
	}
}

func TestATargetOfTheApplicationsThatBreaksTheProtocolIsLeft(t *testing.T) {
	for v := dialects.DOCA2_10; v <= dialects.DOCA3_2; v++ {
		started := dialects.Message(&dialects.StartStorageReply{})
		if v == dialects.DOCA2_10 {
			started = &dialects.Response{}
		}
		for name, c := range map[string]struct {
			script func(s *scriptedTarget)
			want   status.Code
		}{
			"another reply": {func(s *scriptedTarget) {
				s.answer(&dialects.StartStorage{}, &dialects.CreateConnectionReply{})
			}, status.Unexpected},
			"another ID": {func(s *scriptedTarget) {
				request := s.expect(&dialects.StartStorage{})
				s.send(&dialects.Envelope{ID: request.ID + 1,
					Correlation: request.Correlation + 1, Message: started})
			}, status.Unexpected},
			"an error of another ID": {func(s *scriptedTarget) {
				request := s.expect(&dialects.StartStorage{})
				s.send(&dialects.Envelope{ID: request.ID + 1,
					Correlation: request.Correlation + 1,
					Message:     &dialects.Response{Result: status.NoMemory}})
			}, status.Unexpected},
			"a huge message": {func(s *scriptedTarget) {
				s.expect(&dialects.StartStorage{})
				_, _ = s.stream.Write([]byte{0xff, 0xff, 0xff, 0xff})
			}, status.ConnectionReset},
			"nonsense": {func(s *scriptedTarget) {
				s.expect(&dialects.StartStorage{})
				_, _ = s.stream.Write(make([]byte, 64))
			}, status.ConnectionReset},
			"half a message": {func(s *scriptedTarget) {
				s.expect(&dialects.StartStorage{})
				half := []byte{0, 0, 0, 12, 0}
				if s.version == dialects.DOCA2_10 {
					half = []byte{0, 8, 0}
				}
				_, _ = s.stream.Write(half)
				_ = s.stream.Close()
			}, status.ConnectionReset},
			"the end": {func(s *scriptedTarget) { _ = s.stream.Close() },
				status.ConnectionReset},
		} {
			t.Run(fmt.Sprintf("%s/%v", name, v), func(t *testing.T) {
				d, s := converse(t, v)
				_, err := call(t, d, &controlmsg.StartStorage{}, func() { c.script(s) })
				if status.CodeOf(err) != c.want {
					t.Errorf("the request fails with %v, want %v", err, c.want)
				}
				<-d.Done()
				if d.Err() == nil {
					t.Error("the conversation has ended without a reason")
				}
			})
		}
		t.Run(fmt.Sprintf("a message that nobody asked for/%v", v), func(t *testing.T) {
			d, s := converse(t, v)
			for range 2 {
				s.send(&dialects.Envelope{Message: started})
			}
			<-d.Done()
			if !errors.Is(d.Err(), status.Unexpected) {
				t.Errorf("the conversation ends with %v", d.Err())
			}
		})
	}
}

func TestASilentTargetOfTheApplicationsIsLeft(t *testing.T) {
	d, _ := converse(t, dialects.DOCA3_2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := controlmsg.Call(ctx, d, &controlmsg.StartStorage{})
	if !errors.Is(err, status.TimeOut) || d.Err() == nil {
		t.Errorf("the request fails with %v, and the conversation with %v", err, d.Err())
	}
}

func TestConnectionsOfAnotherQueueAreNotTaken(t *testing.T) {
	d, s := converse(t, dialects.DOCA3_2)
	failed := make(chan error, 1)
	go func() {
		_, err := d.Connect(context.Background(), 1, dialects.RoleData, []byte("ours"))
		failed <- err
	}()
	s.answer(&dialects.CreateConnection{Context: 1, Details: []byte("ours")},
		&dialects.CreateConnectionReply{Context: 2, Details: []byte("theirs")})
	if err := <-failed; !errors.Is(err, status.Unexpected) {
		t.Errorf("the connection is taken, or fails with %v", err)
	}
}
