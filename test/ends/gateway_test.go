// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// The owners here are clients of an NBD gateway. A *victim* is killed while it writes, and *heirs*
// of it, clients of the same gateway, write some of its blocks, and read others. What they have
// written, acknowledged, stays, and so does what they have read. A volume does not change any more
// when a new heir is let in.

// hindrance is why requests of a victim are in progress for long.
type hindrance int

const (
	outage    hindrance = iota // the relay is killed, and started again
	rateLimit                  // of the relay's channel or session
	delays                     // of some messages and some IO of the volume, which reorders them
	hindrances
)

func (h hindrance) String() string {
	return [hindrances]string{"outage", "rate limit", "delay"}[h]
}

// variant is what gatewayRounds have in common.
type variant struct {
	hindrance  hindrance
	queues     int  // of the gateway
	isStanding bool // the heirs are connected before the victim is
}

func variants() (all []variant) {
	for h := range hindrances {
		for _, queues := range []int{1, 2, 4} {
			all = append(all, variant{h, queues, false}, variant{h, queues, true})
		}
	}
	return all
}

func (v variant) heirs() string {
	if v.isStanding {
		return "standing"
	}
	return "new"
}

func (v variant) String() string {
	return fmt.Sprintf("%v/%d queues/%s", v.hindrance, v.queues, v.heirs())
}

// gatewayRound is a death of a victim, and what its heirs do.
type gatewayRound struct {
	variant

	// What follows is drawn.
	random      *rand.Rand
	provider    string // for RDMA
	connections int    // of the victim
	blockSize   int
	part        span          // of each block that the heirs use
	loaded      time.Duration // how long the victim writes before its end begins

	// These are of outages.
	outage outageBegin
	apart  time.Duration // between the two deaths
	down   time.Duration // how long the relay is down after the second one

	target, relay, gateway []string // flags that hinder requests
}

// outageBegin is when the relay is killed.
type outageBegin int

const (
	beforeLoad outageBegin = iota
	beforeVictim
	afterVictim
	outageBegins
)

func (b outageBegin) String() string {
	return [outageBegins]string{"before the load", "before the victim", "after the victim"}[b]
}

type span struct{ start, end int }

const (
	gatewayBlocks   = 64 // of the volume
	inheritedBlocks = 32 // of these, the first ones, which the heirs write
	heirCount       = 2
)

func (r *gatewayRound) draw(seed uint64) {
	r.random = rand.New(rand.NewPCG(seed, 0))
	milliseconds := func(n int) time.Duration {
		return time.Duration(r.random.IntN(n*1000)) * time.Microsecond
	}
	r.provider = []string{"auto", "iwarp"}[r.random.IntN(2)]
	r.connections = 1 + r.random.IntN(2*r.queues)
	r.blockSize = []int{4 << 10, 64 << 10, 256 << 10}[r.random.IntN(3)]
	r.part = []span{{0, r.blockSize}, {0, 4 << 10}, {104, 1104}}[r.random.IntN(3)]
	r.loaded = milliseconds(100)
	r.outage = outageBegin(r.random.IntN(int(outageBegins)))
	r.apart, r.down = milliseconds(30), milliseconds(400)
	switch r.hindrance {
	case rateLimit:
		iops := []int{200, 500, 1000}[r.random.IntN(3)]
		r.relay = [][]string{
			{"--channel-iops", fmt.Sprint(iops)},
			{"--session-iops", fmt.Sprint(iops)},
			{"--channel-bandwidth", fmt.Sprint(max(iops*r.blockSize, 1<<20))},
		}[r.random.IntN(3)]
	case delays:
		rule := func(operation string, probability float64, longest int) []string {
			return []string{"--allow-faults", "--fault", fmt.Sprintf("%s:p=%v:seed=%d:delay=%v",
				operation, probability, r.random.Uint32(), milliseconds(longest))}
		}
		r.relay = rule("rdma:post_send", 0.1, 50)
		r.target = rule("volume:any", 0.3, 50)
		if r.random.IntN(2) == 0 {
			r.gateway = rule("volume:any", 0.3, 50)
		}
	}
}

func (r *gatewayRound) String() string {
	return fmt.Sprintf("%v, %s, %d connections, blocks of %d, heirs use %v, loaded for %v, outage "+
		"%v, deaths apart %v, down %v, flags %v %v %v", r.variant, r.provider, r.connections,
		r.blockSize, r.part, r.loaded, r.outage, r.apart, r.down, r.target, r.relay, r.gateway)
}

// gatewayOutcome is what a round has measured, and found.
type gatewayOutcome struct {
	open, written time.Duration // how long the heirs have waited for the export, and for a flush
	findings      []string
}

func TestNothingOfADeadNBDClientTakesEffect(t *testing.T) {
	if *rounds == 0 {
		t.Skip("takes minutes: make peers SUITE=ends")
	}
	testkit.Plain.Directory(t)
	var mu sync.Mutex
	all := variants()
	outcomes := make([][]gatewayOutcome, len(all))
	t.Run("rounds", func(t *testing.T) {
		seed := seedtest.Of(t)
		for n := range *rounds {
			for i, v := range all {
				name := fmt.Sprintf("%v/%d", v, n+1)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					r := &gatewayRound{variant: v}
					r.draw(seed<<32 ^ hash(name))
					o := newGatewayPlace(t, r).play()
					mu.Lock()
					defer mu.Unlock()
					outcomes[i] = append(outcomes[i], o)
				})
			}
		}
	})
	table := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', 0)
	defer func() { _ = table.Flush() }()
	fmt.Fprintln(table,
		"hindrance\tqueues\theirs\trounds\tfailed\tlongest wait for export\tfor flush")
	for i, v := range all {
		var failed int
		var longest gatewayOutcome
		for _, o := range outcomes[i] {
			if len(o.findings) > 0 {
				failed++
			}
			longest.open = max(longest.open, o.open)
			longest.written = max(longest.written, o.written)
		}
		if len(outcomes[i]) > 0 {
			fmt.Fprintf(table, "%v\t%d\t%s\t%d\t%d\t%s\t%s\n", v.hindrance, v.queues, v.heirs(),
				len(outcomes[i]), failed, seconds(longest.open), seconds(longest.written))
		}
	}
}

// gatewayPlace is where a round happens.
type gatewayPlace struct {
	*gatewayRound
	t                      *testing.T
	directory              string
	address                string
	journal                *journal
	target, relay, gateway *testkit.Process
	victim                 *process
	heirs                  []*nbdClient
	atOpen                 []byte                // the volume when new heirs were let in
	expected               [gatewayBlocks][]byte // what heirs have written, or read first

	mu       sync.Mutex
	outcome  gatewayOutcome
	restarts sync.WaitGroup
}

func newGatewayPlace(t *testing.T, r *gatewayRound) *gatewayPlace {
	p := &gatewayPlace{gatewayRound: r, t: t, directory: makeDirectory(t), journal: &journal{},
		address: testkit.Address(t).String()}
	p.journal.add("%v", r)
	p.target = p.start("target", r.target, "--listen-address", p.address, "--listen-port", "7470",
		"--rdma-provider", r.provider, "--volume",
		fmt.Sprintf("disk=file:%s,size=%d", p.path("disk"), gatewayBlocks*r.blockSize))
	p.target.AwaitLog("serving volume")
	p.startRelay()
	p.gateway = p.start("initiator", r.gateway, "nbd", "--socket", p.path("socket"), "--queues",
		fmt.Sprint(r.queues), "--emulated-dir", p.path("comch"), "--reconnect-first-pause", "20ms",
		"--reconnect-longest-pause", "200ms")
	p.gateway.AwaitLog("serving NBD clients")
	return p
}

func (p *gatewayPlace) path(name string) string { return filepath.Join(p.directory, name) }

func (p *gatewayPlace) start(program string, hindering []string, args ...string) *testkit.Process {
	args = append(args, hindering...)
	return testkit.Start(p.t, exec.Command(testkit.Plain.Program(p.t, program), args...))
}

func (p *gatewayPlace) startRelay() {
	p.relay = p.start("zc-relay", p.gatewayRound.relay, "run", "--storage-server",
		p.address+":7470", "--volume", "disk", "--emulated-dir", p.path("comch"),
		"--rdma-provider", p.provider)
	p.relay.AwaitLog("listening for clients")
	p.journal.add("the relay listens")
}

func (p *gatewayPlace) killRelay() {
	p.relay.Kill()
	p.journal.add("the relay is dead")
}

func (p *gatewayPlace) killVictim() {
	p.victim.Kill()
	p.journal.add("the victim is dead")
}

// play plays a round.
func (p *gatewayPlace) play() gatewayOutcome {
	defer p.keepLogs()
	if p.isStanding {
		p.connectHeirs()
	}
	isOutage := p.hindrance == outage
	if isOutage && p.outage == beforeLoad {
		p.killRelay()
	}
	p.startVictim()
	time.Sleep(p.loaded)
	if isOutage && p.outage == beforeVictim {
		p.killRelay()
		time.Sleep(p.apart)
	}
	p.killVictim()
	if isOutage && p.outage == afterVictim {
		time.Sleep(p.apart)
		p.killRelay()
	}
	if isOutage {
		p.restarts.Go(func() {
			time.Sleep(p.down)
			p.startRelay()
		})
	}
	if !p.isStanding {
		p.connectHeirs()
		p.atOpen = p.content()
	}
	p.inherit()
	p.restarts.Wait()
	p.judge()
	findings := p.outcome.findings
	for _, finding := range findings {
		p.journal.add("%s", finding)
	}
	if n := len(findings); n > 0 {
		p.t.Errorf("%v: %d findings, the first ones: %s", p.gatewayRound, n,
			strings.Join(findings[:min(n, 3)], "; "))
	}
	return p.outcome
}

func (p *gatewayPlace) find(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outcome.findings = append(p.outcome.findings, fmt.Sprintf(format, args...))
}

// connect connects to the gateway, however often that refuses.
func (p *gatewayPlace) connect() *nbdClient {
	var client *nbdClient
	testkit.Eventually(p.t, "the gateway lets a client in", func() bool {
		var err error
		client, err = dialNBD(p.path("socket"))
		if err != nil && !errors.Is(err, errRefused) {
			p.t.Fatal(err)
		}
		if err != nil {
			p.journal.add("%v", err)
		}
		return err == nil
	})
	p.t.Cleanup(func() { _ = client.conn.Close() })
	return client
}

func (p *gatewayPlace) connectHeirs() {
	start := time.Now()
	for range heirCount {
		p.heirs = append(p.heirs, p.connect())
	}
	p.outcome.open = time.Since(start)
	p.journal.add("the heirs are connected")
}

// inherit lets the heirs write the first half of the blocks, the last one first. They read each as
// soon as it is written, and all of them after they have flushed. Of the second half they read what
// the victim has left there, once the gateway knows of its death: before that, reads run beside the
// victim's requests as beside those of a living client.
func (p *gatewayPlace) inherit() {
	start := time.Now()
	random := rand.New(rand.NewPCG(p.random.Uint64(), 0))
	var reading sync.WaitGroup
	for block := inheritedBlocks - 1; block >= 0; block-- {
		writer, reader := p.heirs[block%heirCount], p.heirs[random.IntN(heirCount)]
		flags := blockio.CommandFlags(0)
		if random.IntN(2) == 0 {
			flags = blockio.FUA
		}
		content := make([]byte, p.part.end-p.part.start)
		fill(content, writeMark, block, uint64(block+1))
		p.expected[block] = content
		written := writer.start(blockio.Write, flags, p.offset(block), len(content), content)
		reading.Go(func() {
			if err := <-written; err != nil {
				p.find("write block %d: %v", block, err)
				return
			}
			p.compare(block, "after its write was acknowledged", p.read(reader, block))
		})
	}
	testkit.Eventually(p.t, "the gateway knows of the death", func() bool {
		return strings.Count(p.gateway.Stderr.String(), "NBD client disconnected") >= p.connections
	})
	for block := inheritedBlocks; block < gatewayBlocks; block++ {
		reading.Go(func() { p.expected[block] = p.read(p.heirs[block%heirCount], block) })
	}
	reading.Wait()
	p.journal.add("the heirs have written")
	for i, heir := range p.heirs {
		if err := heir.do(blockio.Flush, 0, 0, 0, nil); err != nil {
			p.find("flush of heir %d: %v", i, err)
		}
	}
	p.outcome.written = time.Since(start)
	p.journal.add("the heirs have flushed")
	for block := range gatewayBlocks {
		p.compare(block, "after the flush", p.read(p.heirs[block%heirCount], block))
	}
}

// offset returns where the part of a block begins that the heirs write, or read.
func (p *gatewayPlace) offset(block int) int { return block*p.blockSize + p.part.start }

// read returns the part of a block that heirs write, nil if it cannot be read.
func (p *gatewayPlace) read(reader *nbdClient, block int) []byte {
	got := make([]byte, p.part.end-p.part.start)
	if err := reader.do(blockio.Read, 0, p.offset(block), len(got), got); err != nil {
		p.find("read block %d: %v", block, err)
		return nil
	}
	return got
}

func (p *gatewayPlace) compare(block int, when string, got []byte) {
	if want := p.expected[block]; got != nil && want != nil && !slices.Equal(got, want) {
		p.find("block %d %s is %s, and was %s", block, when, describe(got), describe(want))
	}
}

// judge looks at the volume when nothing can change it any more.
func (p *gatewayPlace) judge() {
	last := p.connect()
	for block := range gatewayBlocks {
		p.compare(block, "for a later client", p.read(last, block))
	}
	p.gateway.Terminate()
	p.relay.Terminate()
	p.target.Terminate()
	content := p.content()
	for block := range gatewayBlocks {
		in := func(content []byte) []byte {
			return content[p.offset(block):][:p.part.end-p.part.start]
		}
		p.compare(block, "in the file", in(content))
		if p.atOpen != nil && block >= inheritedBlocks && !slices.Equal(in(p.atOpen), in(content)) {
			p.find("block %d was %s when the heirs were let in, and is %s", block,
				describe(in(p.atOpen)), describe(in(content)))
		}
	}
}

func (p *gatewayPlace) content() []byte {
	content, err := os.ReadFile(p.path("disk"))
	if err != nil {
		p.t.Fatal(err)
	}
	return content
}

// keepLogs writes the logs of a round that has failed where -keep says.
func (p *gatewayPlace) keepLogs() {
	p.restarts.Wait()
	keepLogs(p.t, map[string]string{"journal": p.journal.String(),
		"target": p.target.Stderr.String(), "relay": p.relay.Stderr.String(),
		"gateway": p.gateway.Stderr.String(), "victim": p.victim.Stderr.String()})
}

// victimVariable holds the JSON of a victim for the process that is to be it.
const victimVariable = "ZC_RELAY_TEST_VICTIM"

// victim describes an NBD client that writes until it is killed.
type victim struct {
	Socket      string
	Connections int
	BlockSize   int
	Seed        uint64
}

// enoughRequests is how many requests of each connection of a victim are sent when it tells that it
// is loading: fewer than a gateway without a relay takes.
const enoughRequests = 8

// startVictim starts the victim, and waits until it writes.
func (p *gatewayPlace) startVictim() {
	description, err := json.Marshal(victim{Socket: p.path("socket"), Connections: p.connections,
		BlockSize: p.blockSize, Seed: p.random.Uint64()})
	if err != nil {
		p.t.Fatal(err)
	}
	p.victim = startSelf(p.t, "victim", victimVariable, string(description), p.journal)
	testkit.Eventually(p.t, "the victim writes on all connections", func() bool {
		if p.victim.HasEnded() {
			p.t.Fatal("the victim has ended")
		}
		return p.victim.events.count(loading) == p.connections
	})
}

// run changes blocks at random on all connections.
func (v *victim) run() error {
	failed := make(chan error)
	for i := range v.Connections {
		c, err := dialNBD(v.Socket)
		if err != nil {
			return err
		}
		go func() { failed <- v.load(c, rand.New(rand.NewPCG(v.Seed, uint64(i)))) }()
	}
	return <-failed
}

func (v *victim) load(c *nbdClient, random *rand.Rand) error {
	content := make([]byte, v.BlockSize)
	for number := 1; ; number++ {
		block := random.IntN(gatewayBlocks)
		kind, flags := blockio.Write, blockio.CommandFlags(0)
		switch random.IntN(16) {
		case 0:
			kind = blockio.WriteZeroes
		case 1:
			kind = blockio.Trim
		case 2:
			flags = blockio.FUA
		}
		fill(content, loadMark, block, uint64(number))
		c.start(kind, flags, block*v.BlockSize, v.BlockSize, content)
		if err := c.ended(); err != nil {
			return err
		}
		if number == enoughRequests {
			tell(loading, "")
		}
	}
}
