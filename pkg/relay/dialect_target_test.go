package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
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

// converse returns both ends of a conversation.
func converse(t *testing.T, v dialects.Version) (*dialectTarget, *scriptedTarget) {
	t.Helper()
	listener, err := network.Kernel{}.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err := network.Kernel{}.Dial(t.Context(), netip.Addr{}, listener.Address())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conversation := newDialectTarget(v, near, 2*time.Minute)
	t.Cleanup(func() {
		conversation.Close(nil)
		_ = far.Close()
	})
	return conversation, &scriptedTarget{t, v, far}
}

// expect receives a request and checks it.
func (s *scriptedTarget) expect(want dialects.Message) *dialects.Envelope {
	s.Helper()
	message := make([]byte, 4)
	if _, err := io.ReadFull(s.stream, message); err != nil {
		s.Fatal(err)
	}
	message = append(message, make([]byte, binary.BigEndian.Uint32(message))...)
	if _, err := io.ReadFull(s.stream, message[4:]); err != nil {
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
	t *testing.T, d *dialectTarget, request controlmsg.RequestFor[R], script func(),
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
				s.answer(&dialects.InitStorage{Count: 32, Cores: 2, Export: []byte("export")},
					&dialects.InitStorageReply{})
			})
			if err != nil {
				t.Fatal(err)
			}
			details := make(chan []byte, 1)
			go func() {
				theirs, _ := d.connect(context.Background(), 1, dialects.RoleControl,
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
	for name, c := range map[string]struct {
		script func(s *scriptedTarget)
		want   status.Code
	}{
		"another reply": {func(s *scriptedTarget) {
			s.answer(&dialects.StartStorage{}, &dialects.StopStorageReply{})
		}, status.Unexpected},
		"another ID": {func(s *scriptedTarget) {
			request := s.expect(&dialects.StartStorage{})
			s.send(&dialects.Envelope{ID: request.ID + 1, Message: &dialects.StartStorageReply{}})
		}, status.Unexpected},
		"an error of another ID": {func(s *scriptedTarget) {
			request := s.expect(&dialects.StartStorage{})
			s.send(&dialects.Envelope{ID: request.ID + 1,
				Message: &dialects.Response{Result: status.NoMemory}})
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
			_, _ = s.stream.Write([]byte{0, 0, 0, 12, 0})
			_ = s.stream.Close()
		}, status.ConnectionReset},
		"the end": {func(s *scriptedTarget) { _ = s.stream.Close() }, status.ConnectionReset},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := converse(t, dialects.DOCA3_2)
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
	t.Run("a message that nobody asked for", func(t *testing.T) {
		d, s := converse(t, dialects.DOCA3_2)
		for range 2 {
			s.send(&dialects.Envelope{Message: &dialects.StartStorageReply{}})
		}
		<-d.Done()
		if !errors.Is(d.Err(), status.Unexpected) {
			t.Errorf("the conversation ends with %v", d.Err())
		}
	})
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
		_, err := d.connect(context.Background(), 1, dialects.RoleData, []byte("ours"))
		failed <- err
	}()
	s.answer(&dialects.CreateConnection{Context: 1, Details: []byte("ours")},
		&dialects.CreateConnectionReply{Context: 2, Details: []byte("theirs")})
	if err := <-failed; !errors.Is(err, status.Unexpected) {
		t.Errorf("the connection is taken, or fails with %v", err)
	}
}
