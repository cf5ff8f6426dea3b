// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The owners of the volume are processes of this test's own program. They write the blocks of the
// volume, and tell the test on standard output what has happened to them, one event a line. Lines
// on standard input tell them what to do; they end with that.

// ownerVariable holds the JSON of an owner for the process that is to be it.
const ownerVariable = "ZC_RELAY_TEST_OWNER"

// owner describes a process that opens the volume.
type owner struct {
	Name      string
	Comch     string // directory of the relay's sockets
	Exclusive bool
	Depth     int
	BlockSize int
	FUA       bool
	Seed      uint64
	// IOTimeout and ReleaseTimeout are the client's.
	IOTimeout, ReleaseTimeout time.Duration
}

// event is what an owner tells.
type event struct {
	Name   string
	At     time.Time
	Detail string
}

// The events of owners.
const (
	opened       = "opened"       // the owner has the volume; the detail is its ID as a holder
	loading      = "loading"      // it has written for another while
	told         = "told"         // all of its requests have ended, some of them by an error
	acknowledged = "acknowledged" // all of its blocks are written for good
	compared     = "compared"     // what it reads is what it has written; the detail says what is not
)

// Commands for owners.
const (
	openCommand    = "open"
	preemptCommand = "preempt " // open the volume in place of the holder whose ID follows
	loadCommand    = "load"     // write all blocks again and again, until there is an error
	writeCommand   = "write"    // write the first half of the blocks once, whatever it takes
	readCommand    = "read"     // read what that has written
)

func TestMain(m *testing.M) {
	var o owner
	var v victim
	switch {
	case isToBe(ownerVariable, &o):
		endWith((&ownerProcess{owner: o, instance: client.NewInstance()}).run())
	case isToBe(victimVariable, &v):
		endWith(v.run())
	}
	os.Exit(testkit.Main(m).Run())
}

// isToBe reports whether a variable of the environment describes what this process is to be.
func isToBe(variable string, description any) bool {
	text := os.Getenv(variable)
	if text == "" {
		return false
	}
	if err := json.Unmarshal([]byte(text), description); err != nil {
		endWith(err)
	}
	return true
}

func endWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

type ownerProcess struct {
	owner
	instance  *client.Instance
	preempted string // the ID of a holder; "" if there is none
	volume    *client.Volume
	number    uint64 // of the last change
}

func (o *ownerProcess) run() error {
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		command := commands.Text()
		if holder, found := strings.CutPrefix(command, preemptCommand); found {
			o.preempted, command = holder, openCommand
		}
		switch command {
		case openCommand:
			o.open()
		case loadCommand:
			if err := o.load(); err != nil {
				return err
			}
		case writeCommand:
			o.repeat("write", o.write)
		case readCommand:
			o.repeat("read", o.compare)
		default:
			return fmt.Errorf("unknown command %q", command)
		}
	}
	return commands.Err()
}

func tell(name, format string, args ...any) {
	line, err := json.Marshal(event{name, time.Now(), fmt.Sprintf(format, args...)})
	if err != nil {
		panic(err) // there is nothing in an event that could not be marshaled
	}
	fmt.Println(string(line))
}

// pauseAfterFailure is how long an owner waits before it tries again.
const pauseAfterFailure = 20 * time.Millisecond

// open opens the volume, again if it was open, and however often it is refused.
func (o *ownerProcess) open() {
	if o.volume != nil {
		o.volume.Abort()
	}
	for {
		volume, err := client.Open(context.Background(), client.Config{
			Provider: emulated.New(emulated.Options{Directory: o.Comch}),
			Device:   emulated.DefaultHostDevice,
			Queues:   1, Depth: o.Depth, BufferSize: uint32(o.BlockSize), SyncDepth: -1,
			IOTimeout: o.IOTimeout, ReleaseTimeout: o.ReleaseTimeout,
			Exclusive: o.Exclusive, Owner: client.NewOwner(o.Name), Instance: o.instance,
			Preempt: o.preempted,
		})
		if err == nil {
			o.volume = volume
			tell(opened, "%s", volume.Info().OwnHolderID)
			return
		}
		fmt.Fprintln(os.Stderr, "open:", err)
		time.Sleep(pauseAfterFailure)
	}
}

// request is a change that an owner has in flight.
type request struct {
	mark   byte
	block  int
	number uint64
	kind   client.RequestType
}

// loadPause is the pause between turns of an owner, which leave the processors to others.
const loadPause = 2 * time.Millisecond

// enoughLoad is after how many requests an owner tells that it is loading, each time anew.
const enoughLoad = 200

// load keeps changes in flight, no two of them to the same block, until one fails. It returns when
// all have ended.
func (o *ownerProcess) load() error {
	random := rand.New(rand.NewPCG(o.Seed, 0))
	q := o.volume.Queue(0)
	inFlight := make(map[int]request) // by slot
	busy := make(map[int]bool)        // blocks
	results := make([]client.Result, o.Depth)
	completed := 0
	codes := make(map[string]int)
	for failed := false; !failed || len(inFlight) > 0; {
		for slot := 0; slot < o.Depth && !failed; slot++ {
			block := random.IntN(blocks)
			if _, used := inFlight[slot]; used || busy[block] {
				continue
			}
			r := request{mark: loadMark, block: block, kind: client.Write}
			if random.IntN(8) == 0 {
				r.kind = client.WriteZeroes
			}
			if err := o.submit(q, slot, &r); err != nil {
				if !errors.Is(err, status.Again) {
					codes["submit: "+err.Error()]++
					failed = true
				}
				break
			}
			inFlight[slot], busy[block] = r, true
		}
		q.Ring()
		for _, result := range results[:q.Poll(results)] {
			r := inFlight[int(result.Tag)]
			delete(inFlight, int(result.Tag))
			delete(busy, r.block)
			if err := result.Err(); err != nil {
				fmt.Fprintf(os.Stderr, "%v of block %d, change %d: %v\n", r.kind, r.block, r.number, err)
				codes[result.Code.String()]++
				if result.Quarantined {
					codes["quarantined"]++
				}
				failed = true
			}
			if completed++; completed%enoughLoad == 0 {
				tell(loading, "")
			}
		}
		time.Sleep(loadPause)
	}
	tell(told, "%v", codes)
	return nil
}

// submit submits a change of a block.
func (o *ownerProcess) submit(q *client.Queue, slot int, r *request) error {
	o.number++
	r.number = o.number
	size := o.BlockSize
	if r.kind == client.Write {
		fill(q.Memory()[slot*size:][:size], r.mark, r.block, r.number)
	}
	var flags client.Flags
	if o.FUA {
		flags = client.FUA
	}
	return q.Submit(&client.Request{Type: r.kind, Flags: flags, Length: uint32(size),
		Offset: uint64(r.block) * uint64(size), Memory: uint64(slot) * uint64(size),
		Tag: uint64(slot)})
}

// repeat carries a command out. If the session ends meanwhile, it opens the volume again and begins
// anew.
func (o *ownerProcess) repeat(what string, command func() error) {
	for {
		err := command()
		if err == nil {
			return
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		o.open()
	}
}

// write writes all blocks and makes them durable.
func (o *ownerProcess) write() error {
	next := 0
	err := o.carryOut(blocks/2, func(q *client.Queue, slot int) error {
		o.number = uint64(next) // content that compare expects
		err := o.submit(q, slot, &request{mark: writeMark, block: next, kind: client.Write})
		if err == nil {
			next++
		}
		return err
	}, func(int) error { return nil })
	if err == nil && !o.FUA {
		err = o.carryOut(1, func(q *client.Queue, slot int) error {
			return q.Submit(&client.Request{Type: client.Flush, Tag: uint64(slot)})
		}, func(int) error { return nil })
	}
	if err == nil {
		tell(acknowledged, "")
	}
	return err
}

// compare reads all blocks that write has written.
func (o *ownerProcess) compare() error {
	size, next := o.BlockSize, 0
	want, read := make([]byte, size), make([]int, o.Depth) // the blocks by slot
	var wrong []string
	err := o.carryOut(blocks/2, func(q *client.Queue, slot int) error {
		err := q.Submit(&client.Request{Type: client.Read, Length: uint32(size),
			Offset: uint64(next) * uint64(size), Memory: uint64(slot) * uint64(size),
			Tag: uint64(slot)})
		if err == nil {
			read[slot] = next
			next++
		}
		return err
	}, func(slot int) error {
		got := o.volume.Queue(0).Memory()[slot*size:][:size]
		fill(want, writeMark, read[slot], uint64(read[slot]+1))
		if !slices.Equal(got, want) {
			wrong = append(wrong, fmt.Sprintf("block %d is %s", read[slot], describe(got)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	detail := ""
	if len(wrong) > 0 {
		detail = fmt.Sprintf("%d blocks, the first ones: %v", len(wrong), wrong[:min(len(wrong), 5)])
	}
	tell(compared, "%s", detail)
	return nil
}

// carryOut submits requests, and waits for all of them.
func (o *ownerProcess) carryOut(count int, submit func(*client.Queue, int) error,
	done func(slot int) error) error {
	q := o.volume.Queue(0)
	free := make([]int, o.Depth)
	for i := range free {
		free[i] = i
	}
	results := make([]client.Result, o.Depth)
	for submitted, completed := 0, 0; completed < count; {
		for submitted < count && len(free) > 0 {
			if err := submit(q, free[0]); err != nil {
				return err
			}
			free = free[1:]
			submitted++
		}
		q.Ring()
		n := q.Poll(results)
		for _, r := range results[:n] {
			if err := r.Err(); err != nil {
				return err
			}
			if err := done(int(r.Tag)); err != nil {
				return err
			}
			free = append(free, int(r.Tag))
			completed++
		}
		if n == 0 {
			time.Sleep(loadPause)
		}
	}
	return nil
}

// The marks of content.
const (
	loadMark  = 'A' // of what loadCommand writes
	writeMark = 'B' // of what writeCommand writes
)

// fill makes the content of a block, which says what it is.
func fill(b []byte, mark byte, block int, number uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.BigEndian.PutUint64(b[i:], uint64(mark)<<56|number<<16|uint64(block))
	}
}

// describe says what content a block has, which may be a mixture.
func describe(b []byte) string {
	var parts []string
	for i := 0; i < len(b); i += 8 {
		word := binary.BigEndian.Uint64(b[i:])
		part := "zeroes"
		if word != 0 {
			part = fmt.Sprintf("change %c%d of block %d", byte(word>>56), word<<8>>24,
				word&0xffff)
		}
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return fmt.Sprint(parts)
}

// process is an owner as the test sees it.
type process struct {
	*testkit.Process
	t        testing.TB
	commands io.WriteCloser
	events   *events
	ordered  time.Time // the last commands
	before   int       // events before these
}

// startSelf starts this test's own program as what a variable of its environment describes.
func startSelf(t testing.TB, name, variable, description string, j *journal) *process {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), variable+"="+description)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	events := &events{name: name, journal: j}
	command.Stdout = events
	p := &process{Process: testkit.Start(t, command), t: t, commands: input, events: events}
	p.Name = name
	return p
}

// order makes an owner carry out commands, one after the other.
func (p *process) order(commands ...string) {
	p.ordered, p.before = time.Now(), p.events.len()
	p.events.journal.add("%s is to %v", p.Name, commands)
	// An owner that has ended does not listen.
	_, _ = fmt.Fprintln(p.commands, strings.Join(commands, "\n"))
}

// has reports whether an owner has told an event.
func (p *process) has(name string) bool { return p.events.count(name) > 0 }

// await waits for the first event of a name since the last commands.
func (p *process) await(name string) event {
	p.t.Helper()
	var e event
	testkit.Eventually(p.t, fmt.Sprintf("%s: %s", p.Name, name), func() bool {
		hasEnded := p.HasEnded()
		var found bool
		if e, found = p.events.find(name, p.before); !found && hasEnded {
			p.t.Fatalf("%s has ended before the event %q", p.Name, name)
		}
		return found
	})
	return e
}

// events are what an owner has told.
type events struct {
	name    string
	journal *journal

	mu   sync.Mutex
	line []byte // the part of a line that has arrived
	all  []event
}

// Write takes what an owner prints.
func (e *events) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.line = append(e.line, b...)
	for {
		line, rest, complete := bytes.Cut(e.line, []byte("\n"))
		if !complete {
			return len(b), nil
		}
		var next event
		if err := json.Unmarshal(line, &next); err != nil {
			return 0, fmt.Errorf("line %q of an owner: %w", line, err)
		}
		e.line = rest
		e.all = append(e.all, next)
		e.journal.addAt(next.At, "%s: %s %s", e.name, next.Name, next.Detail)
	}
}

// count returns how often an owner has told an event.
func (e *events) count(name string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.all {
		if one.Name == name {
			n++
		}
	}
	return n
}

func (e *events) len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

// find returns the first event of a name after a number of others.
func (e *events) find(name string, after int) (event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.all[after:] {
		if one.Name == name {
			return one, true
		}
	}
	return event{}, false
}
