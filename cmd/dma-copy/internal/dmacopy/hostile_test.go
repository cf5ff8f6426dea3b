// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"context"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// actor plays one side of a copy by hand.
type actor struct {
	t          *testing.T
	connection comch.Connection
}

func (a *actor) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	a.t.Cleanup(cancel)
	return ctx
}

func (a *actor) send(b []byte) { _ = a.connection.Send(a.context(), b) }

func (a *actor) say(m message) { a.send(encode(m)) }

// hear returns the next message except alive, nil after the end.
func (a *actor) hear() message {
	for {
		b, err := a.connection.Receive(a.context())
		if err != nil {
			return nil
		}
		m, err := parse(b)
		if err != nil {
			a.t.Errorf("heard %x: %v", b, err)
			return nil
		}
		if _, ok := m.(alive); !ok {
			return m
		}
	}
}

// hearFailure receives messages until one reports that the copy has failed.
func (a *actor) hearFailure() outcome {
	for {
		switch m := a.hear().(type) {
		case nil:
			return outcome{}
		case outcome:
			return m
		}
	}
}

// export gives the other side access to memory that is large enough for p.
func (a *actor) export(p plan, access memory.Access) *memory.Region {
	region, err := memory.Alloc("actor", p.window())
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = region.Close() })
	descriptor, err := a.connection.ExportMemory(a.context(), region, access)
	if err != nil {
		a.t.Fatal(err)
	}
	a.say(export{address: region.Base(), length: p.window(), descriptor: descriptor})
	return region
}

// againstDPU runs the DPU's side with an actor as its host.
func againstDPU(s *site, play func(*actor)) error {
	return against(s, RunDPU, s.dpu, connect, &s.host, play)
}

// againstHost runs the host's side with an actor as its DPU.
func againstHost(s *site, play func(*actor)) error {
	return against(s, RunHost, s.host, accept, &s.dpu, play)
}

// against runs one side, with an actor that reaches it as the other, and returns the side's error.
func against(s *site, run func(context.Context, Config) (Result, error), side Config,
	reach func(context.Context, *Config) (comch.Connection, error), other *Config,
	play func(*actor)) error {
	ended := make(chan error, 1)
	go func() {
		_, err := run(context.Background(), side)
		ended <- err
	}()
	connection, err := reach(context.Background(), other)
	if err != nil {
		s.t.Fatal(err)
	}
	play(&actor{s.t, connection})
	err = <-ended
	_ = connection.Close()
	return err
}

const hostileSize = 200_000 // bytes: four chunks in four slots

func TestHostileHostsEndTheirOwnCopyOnly(t *testing.T) {
	begin := func(a *actor) plan {
		a.say(offer{hasFile: true, size: hostileSize})
		p, _ := a.hear().(plan)
		return p
	}
	first := func(p plan) filled { return filled{length: p.length(0), checksum: 0} }
	for name, c := range map[string]struct {
		code status.Code
		play func(*actor)
	}{
		"garbage":         {status.InvalidValue, func(a *actor) { a.send([]byte("garbage")) }},
		"nothing":         {status.InvalidValue, func(a *actor) { a.send(nil) }},
		"wrong beginning": {status.Unexpected, func(a *actor) { a.say(end{}) }},
		"huge file": {status.TooBig,
			func(a *actor) { a.say(offer{hasFile: true, size: 1 << 63}) }},
		"no export": {status.Unexpected, func(a *actor) { begin(a); a.say(end{}) }},
		"bad export": {status.InvalidValue,
			func(a *actor) { begin(a); a.say(export{length: 1, descriptor: []byte("x")}) }},
		"small window": {status.InvalidValue, func(a *actor) {
			p := begin(a)
			p.slots--
			a.export(p, memory.PCIRead)
		}},
		"no right to read": {status.NotPermitted, func(a *actor) {
			p := begin(a)
			a.export(p, memory.RemoteRead)
			a.say(first(p))
		}},
		"wrong chunk": {status.Unexpected, func(a *actor) {
			p := begin(a)
			a.export(p, memory.PCIRead)
			a.say(filled{chunk: 1, length: p.length(1)})
		}},
		"wrong length": {status.Unexpected, func(a *actor) {
			p := begin(a)
			a.export(p,
				memory.PCIRead)
			a.say(filled{length: 1 << 60})
		}},
		"wrong checksum": {status.IOFailed, func(a *actor) {
			p := begin(a)
			a.export(p,
				memory.PCIRead)
			a.say(first(p))
		}},
		"early end": {status.Unexpected, func(a *actor) {
			p := begin(a)
			a.export(p,
				memory.PCIRead)
			a.say(end{})
		}},
		"early success": {status.Unexpected, func(a *actor) {
			p := begin(a)
			a.export(p,
				memory.PCIRead)
			a.say(outcome{})
		}},
		"its failure": {status.NoMemory,
			func(a *actor) {
				begin(a)
				a.say(outcome{code: status.NoMemory,
					text: "no \x1b[31mmemory"})
			}},
		"leaving": {status.ConnectionReset,
			func(a *actor) { begin(a); a.connection.Abort() }},
		"wrong sum at the end": {status.IOFailed, func(a *actor) {
			p := begin(a)
			region := a.export(p, memory.PCIRead)
			sum := input{}
			for chunk := range p.chunks() {
				slot := region.Bytes()[p.slot(chunk):][:p.length(chunk)]
				sum.checksum = crc32.Update(sum.checksum, castagnoli, slot)
				a.say(filled{chunk: chunk, length: p.length(chunk), checksum: sum.checksum})
			}
			a.say(end{size: hostileSize, checksum: sum.checksum + 1})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			err := againstDPU(s, func(a *actor) {
				c.play(a)
				if told := a.hearFailure(); told.code != c.code && name != "its failure" &&
					name != "leaving" {
					t.Errorf("the host was told %v: %s", told.code, told.text)
				}
			})
			if !errors.Is(err, c.code) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("the DPU ended with %q, want %v", err, c.code)
			}
			s.wantOnly(s.dpuFile, nil)
		})
	}
}

func TestHostileDPUsEndTheirOwnCopyOnly(t *testing.T) {
	good := plan{direction: ToHost, slots: 4, chunkSize: 64 << 10, size: hostileSize}
	begin := func(a *actor) {
		a.hear()
		a.say(good)
		a.hear()
	}
	for name, c := range map[string]struct {
		code status.Code
		play func(*actor)
	}{
		"garbage": {status.InvalidValue,
			func(a *actor) { a.hear(); a.send(make([]byte, 4000)) }},
		"no plan": {status.Unexpected, func(a *actor) { a.hear(); a.say(end{}) }},
		"wrong direction": {status.InvalidValue,
			func(a *actor) { a.hear(); a.say(plan{direction: ToDPU, slots: 1, chunkSize: 1}) }},
		"huge window": {status.TooBig,
			func(a *actor) {
				a.hear()
				a.say(plan{direction: ToHost, slots: 64, chunkSize: 64 << 20,
					size: 1})
			}},
		"wrong chunk": {status.Unexpected,
			func(a *actor) { begin(a); a.say(filled{chunk: 3, length: 1}) }},
		"wrong length": {status.Unexpected,
			func(a *actor) { begin(a); a.say(filled{length: 1 << 40}) }},
		"wrong checksum": {status.IOFailed,
			func(a *actor) { begin(a); a.say(filled{length: good.length(0), checksum: 1}) }},
		"early end": {status.IOFailed,
			func(a *actor) { begin(a); a.say(end{size: hostileSize}) }},
		"its failure": {status.AlreadyExist,
			func(a *actor) { a.hear(); a.say(outcome{code: status.AlreadyExist, text: "both"}) }},
		"leaving": {status.ConnectionReset,
			func(a *actor) { begin(a); a.connection.Abort() }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if err := againstHost(s, func(a *actor) { c.play(a); a.hearFailure() }); !errors.Is(err,
				c.code) {
				t.Errorf("the host ended with %v, want %v", err, c.code)
			}
			s.wantOnly(s.hostFile, nil)
		})
	}
}

func TestADPUThatConfirmsWhatItHasNotTakenIsNotBelieved(t *testing.T) {
	for name, lie := range map[string]message{"release": released{chunk: 1}, "success": outcome{}} {
		s := newSite(t)
		s.write(s.hostFile, content(hostileSize))
		err := againstHost(s, func(a *actor) {
			a.hear()
			a.say(plan{direction: ToDPU, slots: 2, chunkSize: 1000, size: hostileSize})
			a.hear()
			a.say(lie)
			a.hearFailure()
		})
		if !errors.Is(err, status.Unexpected) {
			t.Errorf("%s: the host ended with %v", name, err)
		}
	}
}

func TestMemoryThatTheHostTakesAwayHarmsNobody(t *testing.T) {
	s := newSite(t)
	err := againstDPU(s, func(a *actor) {
		a.say(offer{hasFile: true, size: hostileSize})
		p, _ := a.hear().(plan)
		region := a.export(p, memory.PCIRead)
		if err := unix.Fallocate(region.Descriptor(),
			unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0,
			int64(region.Len())); err != nil {
			a.t.Error(err)
		}
		a.say(filled{length: p.length(0), checksum: 1})
		a.hearFailure()
	})
	if !errors.Is(err, status.IOFailed) {
		t.Errorf("the DPU ended with %v", err)
	}
}

func TestASilentSideIsGivenUp(t *testing.T) {
	s := newSite(t)
	s.dpu.Timeout, s.host.Timeout = 100*time.Millisecond, 100*time.Millisecond
	err := againstDPU(s, func(*actor) {})
	if !errors.Is(err, status.TimeOut) || !strings.Contains(err.Error(),
		"no message from the host for 100ms") {
		t.Errorf("the DPU ended with %v", err)
	}
	err = againstHost(s, func(*actor) {})
	if !errors.Is(err, status.TimeOut) || !strings.Contains(err.Error(),
		"no message from the DPU for 100ms") {
		t.Errorf("the host ended with %v", err)
	}
	s.original()
	if err := againstDPU(s, func(*actor) {}); !errors.Is(err, status.TimeOut) {
		t.Errorf("with the original's messages the DPU ended with %v", err)
	}
}

// TestASideThatOnlySaysThatItIsAliveIsWaitedFor gives the host more time if the machine keeps it
// from saying that it is alive in time.
func TestASideThatOnlySaysThatItIsAliveIsWaitedFor(t *testing.T) {
	const longest = 32 * time.Second
	var err error
	for timeout := longest / 128; timeout <= longest; timeout *= 2 {
		if err = sayAliveForLong(newSite(t), timeout); !errors.Is(err, status.TimeOut) {
			break
		}
	}
	if err != nil {
		t.Errorf("the DPU ended with %v", err)
	}
}

// sayAliveForLong lets a host say nothing else for longer than the DPU's timeout.
func sayAliveForLong(s *site, timeout time.Duration) error {
	s.dpu.Timeout = timeout
	s.write(s.dpuFile, nil)
	return againstDPU(s, func(a *actor) {
		for begun := time.Now(); time.Since(begun) < 3*timeout/2; time.Sleep(timeout / 50) {
			a.say(alive{})
		}
		a.say(offer{})
		a.hear()
		a.hear()
		a.say(outcome{})
	})
}

func TestHostileMessagesOfTheOriginalEndTheCopy(t *testing.T) {
	direction := directionMessage{fileInHost: true, fileSize: 1000}.append(nil)
	for name, c := range map[string]struct {
		code     status.Code
		messages [][]byte
	}{
		"garbage":         {status.InvalidValue, [][]byte{[]byte("garbage of any kind")}},
		"wrong beginning": {status.Unexpected, [][]byte{statusMessage{success: true}.append(nil)}},
		"huge file": {status.TooBig, [][]byte{directionMessage{fileInHost: true,
			fileSize: 1 << 60}.append(nil)}},
		"no export": {status.Unexpected, [][]byte{direction, direction}},
		"bad descriptor": {status.InvalidValue,
			[][]byte{direction, exportMessage{descriptor: []byte("x")}.append(nil)}},
		"failure": {status.IOFailed, [][]byte{direction, statusMessage{}.append(nil)}},
	} {
		s := newSite(t)
		s.original()
		err := againstDPU(s, func(a *actor) {
			for _, m := range c.messages {
				a.send(m)
			}
		})
		if !errors.Is(err, c.code) {
			t.Errorf("%s: the DPU ended with %v, want %v", name, err, c.code)
		}
		s.wantOnly(s.dpuFile, nil)
	}
}
