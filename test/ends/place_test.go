package ends

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// place is where a round happens.
type place struct {
	t         *testing.T
	round     *round
	directory string
	file      string // the volume
	journal   *journal

	targetSpace *namespace
	target      *testkit.Process
	relays      []*testkit.Process
	relaySpaces []*namespace
	networks    []*network
	first, heir *process
	begun       time.Time // the stall
}

func newPlace(t *testing.T, r *round) *place {
	t.Helper()
	directory, err := os.MkdirTemp("", "zc-ends-") // that of the test has too long a name for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	p := &place{t: t, round: r, directory: directory, journal: &journal{},
		file: filepath.Join(directory, "disk"), targetSpace: newNamespace(t)}
	p.startTarget()
	relays := 1
	if r.heir == otherRelay || r.heir == livingWriter {
		relays = 2
	}
	for i := range relays {
		p.relaySpaces = append(p.relaySpaces, newNamespace(t))
		p.networks = append(p.networks, newNetwork(t, fmt.Sprint("relay ", i), p.relaySpaces[i],
			p.targetSpace, p.journal))
		p.relays = append(p.relays, nil)
		p.startRelay(i)
	}
	first := owner{Name: "first", Comch: p.comch(0), Exclusive: r.exclusive, Depth: depth,
		BlockSize: r.blockSize, FUA: r.fua, Seed: r.random.Uint64(),
		ReleaseTimeout: time.Millisecond} // the client waits for as long as it has to
	if r.end == relayFrozen || r.end == ownerTimeout {
		first.IOTimeout = ioTimeout
	}
	p.first = p.startOwner(first)
	if r.heir == itself {
		p.heir = p.first
		return p
	}
	p.heir = p.startOwner(owner{Name: "heir", Comch: p.comch(relays - 1),
		Exclusive: r.exclusive, Depth: depth, BlockSize: r.blockSize, FUA: r.fua})
	return p
}

// ioTimeout is the IO timeout that ends a session.
const ioTimeout = 300 * time.Millisecond

func (p *place) startTarget() {
	address := filepath.Join(p.directory, "address")
	_ = os.Remove(address)
	backend := fmt.Sprintf("disk=file:%s,size=%d", p.file, blocks*p.round.blockSize)
	if p.round.exclusive {
		backend += ",exclusive"
	}
	p.target = p.targetSpace.start(p.t, "target", exec.Command(testkit.Plain.Program(p.t, "target"),
		"--listen-port", strconv.Itoa(controlPort), "--rdma-port", strconv.Itoa(dataPort),
		"--rdma-provider", "iwarp", "--volume", backend, "--address-file", address,
		"--metrics-listen", loopback(metricsPort), "--state-directory", p.directory,
		"--log-level", "debug", "--log-sampling", "0"))
	testkit.Eventually(p.t, "the target listens", func() bool {
		_, err := os.Stat(address)
		return err == nil || p.target.HasEnded()
	})
	if p.target.HasEnded() {
		p.t.Fatal("the target has ended")
	}
}

func (p *place) comch(relay int) string {
	return filepath.Join(p.directory, fmt.Sprint("comch", relay))
}

func (p *place) startRelay(i int) {
	args := []string{"run", "--storage-server", loopback(controlPort), "--volume", "disk",
		"--emulated-dir", p.comch(i), "--rdma-provider", "iwarp", "--isolation", p.round.isolation,
		"--log-level", "debug", "--log-sampling", "0"}
	if i == 0 && p.round.end >= relayTimeout {
		args = append(args, "--io-timeout", ioTimeout.String())
	}
	p.relays[i] = p.relaySpaces[i].start(p.t, fmt.Sprint("relay-", i),
		exec.Command(testkit.Plain.Program(p.t, "zc-relay"), args...))
	p.relays[i].AwaitLog("listening for clients")
}

func (p *place) startOwner(o owner) *process {
	description, err := json.Marshal(o)
	if err != nil {
		p.t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), ownerVariable+"="+string(description))
	input, err := command.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	events := &events{name: o.Name, journal: p.journal}
	command.Stdout = events
	owner := &process{Process: testkit.Start(p.t, command), t: p.t, commands: input, events: events}
	owner.Name = events.name
	return owner
}

// leave ends all processes.
func (p *place) leave() {
	for _, process := range append([]*testkit.Process{p.first.Process, p.heir.Process, p.target},
		p.relays...) {
		process.Kill()
	}
}

// content returns the volume.
func (p *place) content() []byte {
	p.t.Helper()
	content, err := os.ReadFile(p.file)
	if err != nil {
		p.t.Fatal(err)
	}
	return content
}

// queues returns how many queues are connected to the target.
func (p *place) queues() (n int) {
	http := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return p.targetSpace.dial(metricsPort)
		}}}
	response, err := http.Get("http://target/metrics")
	if err != nil {
		return -1
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if rest, found := strings.CutPrefix(lines.Text(), "zc_target_connected_queues{"); found {
			_, value, _ := strings.Cut(rest, "} ")
			count, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return -1
			}
			n += int(count)
		}
	}
	return n
}

// journal is what has happened in a round.
type journal struct {
	mu    sync.Mutex
	lines []line
}

type line struct {
	at   time.Time
	text string
}

func (j *journal) add(format string, args ...any) { j.addAt(time.Now(), format, args...) }

func (j *journal) addAt(at time.Time, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line{at, fmt.Sprintf(format, args...)})
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	slices.SortStableFunc(j.lines, func(a, b line) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, l := range j.lines {
		fmt.Fprintf(&b, "%s %s\n", l.at.Format("2006-01-02T15:04:05.000000Z07:00"), l.text)
	}
	return b.String()
}

// keepLogs writes the logs of a round that has failed where -keep says.
func (p *place) keepLogs() {
	if *keep == "" || !p.t.Failed() && !*keepAll {
		return
	}
	directory := filepath.Join(*keep, strings.ReplaceAll(p.t.Name(), "/", "."))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		p.t.Error(err)
		return
	}
	logs := map[string]string{"journal": p.journal.String(), "target": p.target.Stderr.String(),
		"first": p.first.Stderr.String(), "heir": p.heir.Stderr.String()}
	for i, relay := range p.relays {
		logs[fmt.Sprint("relay-", i)] = relay.Stderr.String()
	}
	for name, text := range logs {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
			p.t.Error(err)
		}
	}
}
