// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/verify"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/client/queuetest"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testSize  = 4 << 20
	testBlock = 4096
)

// relay fakes a relay and its volume: every session has the same content.
type relay struct {
	mu        sync.Mutex // guards data while sessions use it
	data      []byte
	configs   []client.Config
	openError error
	closed    int
	closeErr  error
	prepare   func(v *session)
}

func newRelay() *relay { return &relay{data: bytes.Clone(initialData())} }

// initialData is made once: under the race detector, that takes longer than most calls.
var initialData = sync.OnceValue(func() []byte {
	data := make([]byte, testSize)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	return data
})

func (r *relay) describe(ctx context.Context, config client.Config) (client.Info, error) {
	v, err := r.open(ctx, config)
	if err != nil {
		return client.Info{}, err
	}
	return v.Info(), v.Close(ctx)
}

// session is an opened volume.
type session struct {
	*queuetest.Volume
	relay *relay
	err   error
}

func (r *relay) open(_ context.Context, config client.Config) (volume, error) {
	r.configs = append(r.configs, config)
	if r.openError != nil {
		return nil, r.openError
	}
	v := &session{Volume: queuetest.New(0, testBlock, config.Queues, config.Depth,
		config.BufferSize), relay: r}
	v.Volume.Info.Size, v.Volume.Info.CanTrim = testSize, true
	v.Share(r.data, &r.mu)
	if r.prepare != nil {
		r.prepare(v)
	}
	return v, nil
}

func (s *session) Info() client.Info  { return s.Volume.Info }
func (s *session) Memory() []byte     { return s.Volume.Memory }
func (s *session) Queue(i int) queue  { return s.Volume.Queue(i) }
func (s *session) Flush() error       { return nil }
func (s *session) Err() error         { return s.err }
func (s *session) Reopen(error) error { return nil }
func (s *session) Reconnections() client.Reconnections {
	return client.Reconnections{Count: 2, LostWrites: 3}
}

func (s *session) Quarantined() uint64 { return 0 }

func (s *session) Done() <-chan struct{} { return closedChannel }

func (s *session) ReadAt(p []byte, off int64) (int, error) {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	return copy(p, s.Data()[off:]), nil
}

func (s *session) WriteAt(p []byte, off int64) (int, error) {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	return copy(s.Data()[off:], p), nil
}

func (s *session) ExtentsContext(_ context.Context, _, length int64) ([]iomsg.Extent, error) {
	return []iomsg.Extent{{Length: uint64(length)}}, nil
}

func (s *session) Close(ctx context.Context) error {
	s.relay.closed++
	return errors.Join(s.relay.closeErr, ctx.Err())
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// outcome is the result of calling the program.
type outcome struct {
	code           int
	stdout, stderr string
}

// call runs the program with arguments separated by spaces.
func (r *relay) call(ctx context.Context, stdin, line string) outcome {
	var stdout, stderr bytes.Buffer
	root := newCommand(r.open, r.describe)
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetIn(strings.NewReader(stdin))
	code := program.Run(ctx, root, strings.Fields(line))
	return outcome{code, stdout.String(), stderr.String()}
}

func (r *relay) mustCall(t *testing.T, line string) outcome {
	t.Helper()
	o := r.call(context.Background(), "", line)
	if o.code != program.ExitOK {
		t.Fatalf("%s: exit code %d: %s", line, o.code, o.stderr)
	}
	if r.closed != len(r.configs) {
		t.Errorf("%s: the volume was not closed", line)
	}
	return o
}

// wrongCalls are rejected before a relay is asked.
var wrongCalls = []string{
	"", "dance", "bench", "bench --rw sideways", "bench --rw read extra",
	"bench --rw read --queues 1 --cpu 0",
	"bench --rw read --execution-strategy read_throughput_test",
	"bench --execution-strategy dance",
	"bench --rw read --block-size 0", "bench --rw read --block-size 5GiB",
	"bench --rw read --block-size 4furlongs",
	"bench --rw randrw --rwmix 101", "bench --rw read --queue-depth 0",
	"bench --rw read --cpu 4095", "bench --rw read --cpu x",
	"bench --rw read --queues -1", "bench --rw read --poll lazily",
	"bench --rw read --validate-writes",
	"bench --rw read --output xml", "bench --rw read --runtime 0s",
	"bench --rw read --storage-plain-content /no/such/file",
	"bench --rw read --control-timeout 0s", "bench --rw read --io-timeout -1s",
	"bench --rw read --comch-wait sometimes",
	"bench --rw read --log-level shouting",
	"bench --rw read --comch-provider pigeon", "bench --rw read --protocol dutch",
	"bench --rw randread --protocol doca-2.10", "bench --rw read --protocol doca-3.0 --offset 0",
	"bench --rw read --protocol doca-2.10 --length 8MiB",
	"bench --rw read --protocol doca-3.1 --sessions 2",
	"bench --execution-strategy read_throughput_test --protocol doca-3.2",
	"bench --rw read --protocol doca-3.2 --blocks-per-io 4",
	"bench --rw read --protocol doca-3.2 --reconnect", "bench --rw read --protocol dutch --dry-run",
	"bench --rw read --protocol doca-3.2 --trace t",
	"bench --rw write --protocol doca-3.2 --dry-run",
	"bench --rw read --protocol doca-3.2 --sweep queue-depth=1,2",
	"bench --rw write --protocol doca-3.2", "verify --protocol doca-3.2",
	"bench --rw read --length 0", "verify --length 0", "verify --offset 4096 --length 0B",
	"bench --rw read --queues 100000", "verify --queues 1025", "verify --queue-depth 65537",
	"bench --rw read --queue-depth 9999999", "bench --rw read --sessions 65537",
	"put - --queues 100000", "get x --queue-depth 65537",
	"verify --passes 0", "verify --max-io-size 0", "verify --queue-depth 0", "verify x",
	"bench --rw read --blocks-per-io 0", "bench --rw read --blocks-per-io 1 --block-size 4k",
	"bench --rw read --batch-size -1", "bench --rw randread --rwmix 30", "bench --rw read --local-io-region-size x",
	"bench --rw read --local-io-region-size 4095", "--operation read --cpu x",
	"bench --execution-strategy read_throughput_test --run-limit-operation-count 18446744073709551615 --queues 2",
	"put", "put a b", "put /no/such/file", "put /", "put - --queues 0", "put - --poll lazily",
	"put - --buffer-size 0",
	"nbd", "nbd --socket s extra", "nbd --listen 0.0.0.0:1", "nbd --listen nowhere",
	"nbd --socket s --connections 0", "nbd --socket s --buffer-size 100KiB",
	"nbd --socket s --buffer-size 4KiB", "nbd --socket s --memory 256KiB",
	"nbd --socket s --export a --export a=b", "nbd --socket s --allow-user no-such-user",
	"nbd --listen 127.0.0.1:0 --tls-cert c", "nbd --socket s --tls-allowed-name n",
	"nbd --socket s --allow-any-user --allow-user root", "nbd --socket s --queues -1",
	"nbd --listen 127.0.0.1:0 --plain-text --tls-cert c --tls-key k --tls-ca a",
	"nbd --listen 127.0.0.1:0 --tls-cert /no/c --tls-key /no/k --tls-ca /no/a",
	"ublk extra", "ublk --id x", "ublk --id -1", "ublk --id 1048576", "ublk --block-size 256",
	"ublk --block-size 8KiB", "ublk --block-size 1000", "ublk --buffer-size 4KiB",
	"ublk --memory 256KiB", "ublk --queue-depth 0", "ublk --queues -1", "ublk --poll lazily",
	"ublk --queues 1 --cpu 0", "ublk --web-config-file f", "ublk remove", "ublk remove --id x",
	"info --fault volume:read:freeze", "info --allow-faults --fault rdma:open:freeze",
	"info --allow-faults --fault volume:read:trace",
	"get", "get a b", "get x --queue-depth 0", "get x --buffer-size 0",
	"info x", "info --output xml",
}

func TestWrongCallsAreUsageErrorsAndAskNoRelay(t *testing.T) {
	for _, line := range wrongCalls {
		r := new(relay)
		o := r.call(context.Background(), "", line)
		if o.code != program.ExitUsage || len(r.configs) > 0 {
			t.Errorf("%q: exit code %d, %d sessions: %s", line, o.code, len(r.configs), o.stderr)
		}
		if !strings.HasPrefix(o.stderr, "initiator") || strings.Count(o.stderr, "\n") != 2 ||
			o.stdout != "" {
			t.Errorf("%q: standard output %q, standard error %q", line, o.stdout, o.stderr)
		}
	}
}

func TestDocumentsOfWrongCallsSayThatAValueIsInvalid(t *testing.T) {
	documents := make(map[string]int) // of each command
	for _, line := range wrongCalls {
		o := new(relay).call(context.Background(), "", line+" --output json")
		if o.stdout == "" {
			continue // a wrong flag of a command keeps its output format from being known
		}
		want := status.InvalidValue.String()
		if strings.Contains(line, "/no/such/file") {
			want = status.NotFound.String()
		}
		var d struct{ Error struct{ Code, Phase string } }
		if err := json.Unmarshal([]byte(o.stdout), &d); err != nil || d.Error.Code != want ||
			d.Error.Phase == phaseRun {
			t.Errorf("%q: %+v, want %s before the run, error %v: %s", line, d.Error, want, err,
				o.stderr)
		}
		documents[strings.Fields(line)[0]]++
	}
	for _, command := range []string{"bench", "verify", "put", "get"} {
		if documents[command] == 0 {
			t.Errorf("no wrong call of %s has printed a document", command)
		}
	}
}

// TestAWrongFlagIsReportedAlone uses flags whose errors keep others from being applied.
func TestAWrongFlagIsReportedAlone(t *testing.T) {
	for _, line := range []string{"bench --rw read --length 0", "bench --rw read --block-size 0",
		"bench --rw read --rwmix 30", "bench --rw read --rate 0"} {
		o := newRelay().call(context.Background(), "", line)
		for _, other := range []string{"number of queues", "block size is 0"} {
			if strings.Contains(o.stderr, other) {
				t.Errorf("%q: %s", line, o.stderr)
			}
		}
	}
}

func TestARelayOfTheApplicationsServesOneSession(t *testing.T) {
	r := newRelay()
	r.mustCall(t, "bench --rw randwrite --overwrite --protocol doca-3.2 --block-size 4k "+
		"--run-limit-operation-count 10")
	if c := r.configs[0]; len(r.configs) != 1 || c.Protocol != dialects.DOCA3_2 ||
		c.ChannelName != client.ChannelName3 {
		t.Errorf("%d sessions were opened with %v on channel %q", len(r.configs), c.Protocol,
			c.ChannelName)
	}
	r = newRelay()
	o := r.mustCall(t, "bench --rw write --overwrite --protocol doca-2.10 --block-size 4k "+
		"--queues 2 --queue-depth 3 --run-limit-operation-count 100 --output json")
	if c, p := r.configs[0], benchDocument(t, o).Parameters; c.Protocol != dialects.DOCA2_10 ||
		c.ChannelName != client.DefaultChannelName || !p.InPlace || p.Length != 2*3*4096 {
		t.Errorf("a session with %v on channel %q, parameters %+v", c.Protocol, c.ChannelName, p)
	}
	r = newRelay()
	r.mustCall(t, "bench --execution-strategy read_throughput_test --protocol doca-3.0 "+
		"--command-channel-name other --block-size 4k --run-limit-operation-count 10")
	if len(r.configs) != 1 || r.configs[0].ChannelName != "other" {
		t.Errorf("%d sessions were opened: %+v", len(r.configs), r.configs)
	}
	o = newRelay().mustCall(t, "bench --rw read --protocol doca-3.1 --dry-run --output json")
	if d := benchDocument(t, o); d.Connection.Channel != client.ChannelName3 {
		t.Errorf("the document has channel %q", d.Connection.Channel)
	}
}

func TestWhatTheVolumeCannotDoIsAUsageError(t *testing.T) {
	for _, line := range []string{
		"bench --rw read --offset 5MiB", "bench --rw read --length 5MiB", "verify --offset 100",
		"verify --max-io-size 5000",
		"get x --length 5MiB", "get x --offset 5MiB", "put - --offset 5MiB",
	} {
		r := newRelay()
		if o := r.call(context.Background(), "", line); o.code != program.ExitUsage ||
			len(r.configs) == 0 || r.closed != len(r.configs) || o.stdout != "" ||
			strings.Count(o.stderr, "\n") != 2 {
			t.Errorf("%q: exit code %d, opened %d times, closed %d times: %s%s", line, o.code,
				len(r.configs), r.closed, o.stderr, o.stdout)
		}
	}
	o := newRelay().call(context.Background(), "", "bench --rw read --offset 5MiB --output json")
	if d := benchDocument(t, o); d.Error.Code != "INVALID_VALUE" {
		t.Errorf("the document has the code %s", d.Error.Code)
	}
	r := newRelay()
	r.openError = status.Errorf(status.TooBig, "too deep")
	if o := r.call(context.Background(), "", "info"); o.code != program.ExitUsage {
		t.Errorf("exit code %d", o.code)
	}
}

func TestAnExplicitLengthOfZeroIsNotTheWholeVolume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy")
	newRelay().mustCall(t, "get "+path+" --length 0")
	if content, err := os.ReadFile(path); err != nil || len(content) != 0 {
		t.Errorf("get copied %d bytes, error %v", len(content), err)
	}
	for _, line := range []string{"verify --length 0", "bench --rw write --length 0"} {
		if o := newRelay().call(context.Background(), "", line); !strings.Contains(o.stderr,
			"empty range") {
			t.Errorf("%s: %s", line, o.stderr)
		}
	}
}

func TestADeviceThatIsNotThereIsNotTheRelaysFault(t *testing.T) {
	r := newRelay()
	r.openError = &comch.NoDeviceError{Err: status.Errorf(status.NotFound, "no device")}
	o := r.call(context.Background(), "", "info")
	if o.code != program.ExitConnect || !strings.Contains(o.stderr, "no device") ||
		strings.Contains(o.stderr, "serving this channel") {
		t.Errorf("exit code %d, standard error %q", o.code, o.stderr)
	}
}

func TestNoConnectionIsItsOwnExitCode(t *testing.T) {
	unreachable := newRelay()
	unreachable.openError = status.NotFound
	checkDocument(t, "info", unreachable.call(context.Background(), "", "info -o json"))
	for _, line := range []string{"bench --rw read", "verify", "put -", "get -", "info"} {
		r := newRelay()
		r.openError = status.Errorf(status.NotFound, "no relay")
		o := r.call(context.Background(), "", line)
		if o.code != program.ExitConnect || o.stdout != "" || !strings.Contains(o.stderr,
			"no relay [NOT_FOUND]: is \"zc-relay run\" serving this channel? ("+
				providers.Elsewhere(providers.DefaultComch, "")+")\n") {
			t.Errorf("%q: exit code %d, standard output %q, standard error %q", line, o.code,
				o.stdout, o.stderr)
		}
	}
}

// TestARelayThatReplied is not asked for: what it says is the cause.
func TestARelayThatReplied(t *testing.T) {
	r := newRelay()
	r.openError = fmt.Errorf("open_volume: %w", &controlmsg.Error{Code: status.NotFound,
		Phase: controlmsg.PhaseOpenVolume, Text: "the target has no volume"})
	o := r.call(context.Background(), "", "info")
	if o.code != program.ExitConnect || !strings.HasSuffix(o.stderr,
		"the target has no volume [NOT_FOUND]\n"+
			"Run 'initiator explain NOT_FOUND' for causes and remedies.\n") {
		t.Errorf("exit code %d, standard error %q", o.code, o.stderr)
	}
}

func TestGetNeedsADirectoryBeforeARelay(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(dir, "none", "x"): "create the directory first", dir: "is a directory",
	} {
		r := newRelay()
		for _, line := range []string{"get " + path, "get --resume " + path} {
			o := r.call(context.Background(), "", line)
			if o.code != program.ExitUsage || len(r.configs) > 0 ||
				!strings.Contains(o.stderr, want) {
				t.Errorf("%s: exit code %d, %d sessions: %s", line, o.code, len(r.configs), o.stderr)
			}
		}
	}
}

func TestAUserIsToldThatConnectingTakesTime(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	c := connectionFlags{channelName: "disk"}
	connected := c.announceWait(zap.New(core))
	defer connected()
	for begun := time.Now(); logs.Len() == 0; time.Sleep(time.Millisecond) {
		if time.Since(begun) > 2*time.Minute {
			t.Fatal("nothing is said")
		}
	}
	if e := logs.All()[0]; !strings.Contains(e.Message, `"zc-relay run"`) ||
		e.ContextMap()["channel"] != "disk" {
		t.Errorf("the message is %v", e)
	}
}

// benchDocument returns the bench report in a program's JSON output.
func benchDocument(t *testing.T, o outcome) bench.Report {
	t.Helper()
	var d bench.Report
	decoder := json.NewDecoder(strings.NewReader(o.stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		t.Fatalf("standard output is no document: %v\n%s", err, o.stdout)
	}
	if decoder.More() {
		t.Error("something follows the document")
	}
	checkDocument(t, "bench-result", o)
	return d
}

// checkDocument fails the test unless a program's JSON output is valid under a schema in docs/.
func checkDocument(t *testing.T, schema string, o outcome) {
	t.Helper()
	var document any
	if err := json.Unmarshal([]byte(o.stdout), &document); err != nil {
		t.Fatalf("standard output is no document: %v\n%s", err, o.stdout)
	}
	s := schematest.Read(t, "../../../docs/schemas/"+schema+".schema.json")
	if err := s.Check(document); err != nil {
		t.Errorf("%v\n%s", err, o.stdout)
	}
}

func TestDocumentsOfWrongCallsAreValid(t *testing.T) {
	for _, line := range []string{
		"bench --rw read --queue-depth 0", "bench --rw read --queues -1",
		"bench --rw read --block-size 5GiB", "bench --rw read --cpu 4095",
		"bench --rw read --queue-depth 0 --reconnect", "bench --rw read --poll lazily",
		"bench --rw read --offset 5MiB", "bench --rw randrw --rwmix 101",
		"bench --rw read --control-timeout 0s",
		"bench --rw read --storage-plain-content /no/such/file",
		"bench --execution-strategy read_throughput_test --cpu x",
	} {
		o := newRelay().call(context.Background(), "", line+" --output json")
		if o.code != program.ExitUsage {
			t.Errorf("%s: exit code %d", line, o.code)
		}
		if o.stdout != "" {
			checkDocument(t, "bench-result", o)
		}
	}
	checkDocument(t, "bench-compare", newRelay().call(context.Background(), "",
		"compare /no/such/file /no/such/file --output json"))
}

func TestTheWordsOfTheOriginalsMeanTheSame(t *testing.T) {
	file := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(file, newRelay().data, 0o600); err != nil {
		t.Fatal(err)
	}
	for original, ours := range map[string]string{
		"--operation read":                                   "--rw read",
		"--operation write --validate-writes":                "--rw write --validate-writes",
		"--rw read --per-cpu-buffer-count 3":                 "--rw read --queue-depth 3",
		"--rw read --transaction-count 3":                    "--rw read --queue-depth 3",
		"--rw read --task-count 3":                           "--rw read --queue-depth 3",
		"--rw read --buffer-size 8192":                       "--rw read --block-size 8KiB",
		"--rw read --blocks-per-io 2":                        "--rw read --block-size 8KiB",
		"--rw read --control-timeout 5":                      "--rw read --control-timeout 5s",
		"--rw read --local-io-region-size 32768":             "--rw read --queue-depth 8",
		"--rw read --local-io-region-size 0":                 "--rw read",
		"--execution-strategy read_throughput_test":          "--rw read",
		"--execution-strategy write_throughput_test":         "--rw write",
		"--execution-strategy read_write_data_validity_test": "--rw write --validate-writes",
		"--execution-strategy read_only_data_validity_test " + ` --storage-plain-content ` +
			file: "--rw read --storage-plain-content " + file,
		"--execution-strategy read_throughput_test --blocks-per-io 2 --local-io-region-size 16k": "--rw read --block-size 8k --queue-depth 2",
	} {
		const rest = " --run-limit-operation-count 100 --queues 1 --seed 1 --output json"
		got := benchDocument(t, newRelay().mustCall(t, "bench "+original+rest)).Parameters
		want := benchDocument(t, newRelay().mustCall(t, "bench "+ours+rest)).Parameters
		if difference := cmp.Diff(want, got); difference != "" {
			t.Errorf("%s is not %s: %s", original, ours, difference)
		}
	}
}

func TestAStrategyCountsTheOperationsOfEachQueue(t *testing.T) {
	const line = "bench --queues 2 --execution-strategy write_throughput_test --output json "
	p := benchDocument(t, newRelay().mustCall(t, line+"--run-limit-operation-count 50")).Parameters
	if p.OperationLimit != 100 || p.Runtime != 0 || p.BlockSize != testBlock {
		t.Errorf("parameters are %+v", p)
	}
	p = benchDocument(t, newRelay().mustCall(t, line+"--runtime 1ms --warmup 0s")).Parameters
	if p.OperationLimit != 0 || p.Runtime != time.Millisecond {
		t.Errorf("with a runtime: %+v", p)
	}
	var flags benchFlags
	flags.add(&cobra.Command{})
	flags.strategy, flags.queue.queues = readThroughput, 2
	if q, err := flags.parameters(time.Second); err != nil || q.OperationLimit != 2_000_000 ||
		q.Runtime != 0 {
		t.Errorf("without bounds: %+v, error %v", q, err)
	}
}

func TestTheCommandLineOfTheOriginalNeedsNoCommand(t *testing.T) {
	for _, line := range []string{
		"-d 3b:00.0 --operation read --run-limit-operation-count 100 --cpu 0",
		"--execution-strategy read_throughput_test --run-limit-operation-count 100 --cpu 0 -d 3b:00.0",
		"-a 0000:00:00.0 -- --device 3b:00.0 --cpu 0 --operation read --run-limit-operation-count 100",
	} {
		r := newRelay()
		d := benchDocument(t, r.mustCall(t, line+" --output json"))
		if d.Result.Operations != 100 || r.configs[0].Device != "3b:00.0" {
			t.Errorf("%s: device %s, %+v", line, r.configs[0].Device, d.Result)
		}
	}
}

func TestBenchDefaultsAreToldAsTheyAre(t *testing.T) {
	r := newRelay()
	p := benchDocument(t,
		r.mustCall(t, "bench --rw randrw --run-limit-operation-count 300 --output json")).Parameters
	if p.Seed > 1<<32 || p.Queues < 1 || p.Queues > 2 {
		t.Errorf("parameters are %+v", p)
	}
	want := bench.Parameters{
		Pattern: benchsuite.RandomMixed, ReadPercent: 70, BlockSize: 4096, QueueDepth: 64,
		Queues: p.Queues, Sessions: 1, CPUs: []int{},
		OperationLimit: 300, Length: testSize, Seed: p.Seed, Poll: "adaptive",
		DrainTimeout: 10 * time.Second,
	}
	if difference := cmp.Diff(want, p); difference != "" {
		t.Error(difference)
	}
	c := r.configs[1] // the first is the guard's
	if c.Queues != p.Queues || c.Depth != 64 || c.BufferSize != 4096 || c.SyncDepth >= 0 ||
		c.Device != "b1:00.0" || c.ChannelName != "storage_zero_copy_comch" {
		t.Errorf("the volume was opened with %+v", c)
	}
	text := r.mustCall(t, "bench --rw read --run-limit-operation-count 300").stdout
	if !strings.Contains(text, "300 operations, without warm-up;") {
		t.Errorf("a run without warm-up says: %s", text)
	}
	var flags benchFlags
	flags.add(&cobra.Command{})
	q, err := flags.parameters(time.Second)
	if err != nil || q.Runtime != 10*time.Second || q.Warmup != time.Second {
		t.Errorf("without bounds a run has %v after %v of warm-up, error %v", q.Runtime, q.Warmup,
			err)
	}
}

func TestAFailedBenchPrintsADocumentWithTheErrorAndWhatWasMeasured(t *testing.T) {
	r := newRelay()
	served := 0
	r.prepare = func(v *session) {
		v.err = status.Errorf(status.ConnectionReset, "the target is dead")
		v.Intercept = func(q *client.Request) status.Code {
			if served++; served > 100 {
				return status.ConnectionReset
			}
			return v.Apply(q)
		}
	}
	o := r.call(context.Background(), "",
		"bench --rw randread --queues 1 --queue-depth 8 --runtime 1h --warmup 0s --output json")
	d := benchDocument(t, o)
	if o.code != program.ExitFailure || d.Result.Operations != 100 || d.Result.Errors == 0 ||
		d.Result.Errors > 8 {
		t.Errorf("exit code %d, result %+v", o.code, d.Result)
	}
	if d.Error == nil || d.Error.Code != "CONNECTION_RESET" || d.Error.Phase != "run" ||
		!strings.Contains(d.Error.Message, "the target is dead") {
		t.Errorf("error is %+v", d.Error)
	}
	if !strings.Contains(o.stderr, "the target is dead") {
		t.Errorf("standard error is %q", o.stderr)
	}
}

func TestEveryFailureUnderJSONIsADocument(t *testing.T) {
	for phase, c := range map[string]struct {
		line  string
		spoil func(*relay)
		code  int
	}{
		"prepare": {"--length 0", func(*relay) {}, program.ExitUsage},
		"connect": {"", func(r *relay) { r.openError = status.NotFound }, program.ExitConnect},
		"run":     {"--offset 5MiB", func(*relay) {}, program.ExitUsage},
		"close": {"--length 1MiB", func(r *relay) { r.closeErr = status.TimeOut },
			program.ExitFailure},
	} {
		for _, command := range []string{"bench --rw read --run-limit-operation-count 100 ",
			"verify "} {
			r := newRelay()
			c.spoil(r)
			o := r.call(context.Background(), "", command+"--queues 1 --output json "+c.line)
			if strings.HasPrefix(command, "bench") {
				checkDocument(t, "bench-result", o)
			} else {
				checkDocument(t, "verify", o)
			}
			var d struct {
				Schema string
				Error  struct{ Code, Phase, Message string }
			}
			if err := json.Unmarshal([]byte(o.stdout), &d); err != nil || o.code != c.code ||
				d.Error.Phase != phase || d.Error.Code == "" || d.Error.Message == "" ||
				d.Schema == "" {
				t.Errorf("%s %s: exit code %d, document %s, error %v", command, phase, o.code,
					o.stdout, err)
			}
		}
	}
}

func TestASessionMayEndDuringItsClose(t *testing.T) {
	for _, command := range []string{"bench --rw read --run-limit-operation-count 100 --queues 1",
		"verify --queues 1 --length 1MiB", "put -", "get --length 4KiB -"} {
		for _, code := range []status.Code{status.Shutdown, status.ConnectionReset} {
			r := newRelay()
			r.closeErr = fmt.Errorf("close volume: %w", code)
			if o := r.call(context.Background(), "content", command); o.code != program.ExitOK {
				t.Errorf("%s: exit code %d: %s", command, o.code, o.stderr)
			}
		}
	}
}

func TestCancellingABenchIsNoFailure(t *testing.T) {
	r := newRelay()
	ctx, cancel := context.WithCancel(context.Background())
	served := 0
	r.prepare = func(v *session) {
		v.Intercept = func(q *client.Request) status.Code {
			if served++; served == 1000 {
				cancel()
			}
			return v.Apply(q)
		}
	}
	o := r.call(ctx, "", "bench --rw randread --queues 1 --runtime 1h --warmup 0s --output json")
	if d := benchDocument(t, o); o.code != program.ExitOK || !d.Result.Interrupted ||
		d.Result.Operations < 900 || r.closed != 1 {
		t.Errorf("exit code %d, result %+v: %s", o.code, d.Result, o.stderr)
	}
}

func TestVerifyReportsAsTextAndJSON(t *testing.T) {
	o := newRelay().mustCall(t, "verify --queues 2 --queue-depth 4 --passes 2 --output json")
	checkDocument(t, "verify", o)
	var d verify.Report
	if err := json.Unmarshal([]byte(o.stdout), &d); err != nil {
		t.Fatal(err)
	}
	if d.Schema != verify.Schema || d.Result.BlocksWritten != 2*testSize/testBlock ||
		d.Result.PassesCompleted != 2 || len(d.RunID) != 16 || d.Error != nil {
		t.Errorf("document is %s", o.stdout)
	}
	r := newRelay()
	r.prepare = func(v *session) {
		v.Intercept = func(q *client.Request) status.Code {
			code := v.Apply(q)
			v.Data()[40960+1000] = 0x5a
			return code
		}
	}
	o = r.call(context.Background(), "", "verify --queues 1 --output json --reconnect")
	checkDocument(t, "verify", o)
	o = r.call(context.Background(), "", "verify --queues 1")
	for _, want := range []string{"wrong blocks", "corrupt", "block at offset 40960", "FAILED"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("%q is missing in %s", want, o.stdout)
		}
	}
	if o.code != program.ExitFailure || !strings.Contains(o.stderr, "block at offset 40960") {
		t.Errorf("exit code %d: %s", o.code, o.stderr)
	}
}

func TestInfoOfAReadOnlyVolumeDoesNotOfferToWrite(t *testing.T) {
	r := newRelay()
	r.prepare = func(v *session) { v.Volume.Info.ReadOnly = true }
	o := r.mustCall(t, "info")
	if !strings.Contains(o.stdout, "capabilities       read, flush") {
		t.Errorf("%s", o.stdout)
	}
	if o = r.call(context.Background(), "", "bench --rw write"); o.code != program.ExitUsage ||
		o.stdout != "" || !strings.Contains(o.stderr, "is read-only") {
		t.Errorf("a write: exit code %d, %s%s", o.code, o.stderr, o.stdout)
	}
}

func TestInfoDescribesTheVolume(t *testing.T) {
	o := newRelay().mustCall(t, "info")
	for _, want := range []string{"4MiB", "4194304 bytes", "blocks of 4096", "trim",
		"00000000-0000-0000-0000-000000000000", "relay none"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("%q is missing in %s", want, o.stdout)
		}
	}
	o = newRelay().mustCall(t, "info --output json")
	checkDocument(t, "info", o)
	var d infoReport
	if err := json.Unmarshal([]byte(o.stdout), &d); err != nil || d.Schema != infoSchema ||
		d.Volume.Size != testSize || !d.Capabilities.Trim || d.Capabilities.WriteZeroes {
		t.Errorf("document is %s, error %v", o.stdout, err)
	}
}

func TestCompareTellsWhatHasChanged(t *testing.T) {
	suite := filepath.Join("..", "..", "..", "internal", "benchsuite", "testdata", "suite.json")
	content, err := os.ReadFile(suite)
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	delete(document, "error") // the example tells of a failed run
	if content, err = json.Marshal(document); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "result.json")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args   []string
		code   int
		stdout string
	}{
		{[]string{path, path}, program.ExitOK, "zc-relay: randread 4KiB depth=32"},
		{[]string{"--output", "json", path, path}, program.ExitOK,
			`"schema": "zc-relay.bench-compare/1"`},
		{[]string{path, suite}, program.ExitUsage, ""},
		{[]string{"--output", "json", path, "missing"}, program.ExitUsage, `"phase": "prepare"`},
		{[]string{path}, program.ExitUsage, ""},
	} {
		root := newCommand(newRelay().open, newRelay().describe)
		var stdout, stderr bytes.Buffer
		root.SetOut(&stdout)
		root.SetErr(&stderr)
		code := program.Run(t.Context(), root, append([]string{"compare"}, test.args...))
		if code != test.code || !strings.Contains(stdout.String(), test.stdout) {
			t.Errorf("compare %v ended with %d: %s%s", test.args, code, stdout.String(),
				stderr.String())
		}
	}
}

func TestShellsCompleteValuesWithParts(t *testing.T) {
	for line, want := range map[string]string{
		"bench --sweep":              "block-size=\nqueue-depth=\nqueues=\n:6\n",
		"bench --fault":              "volume:\ncomch:\n:6\n",
		"verify --fault volume:wr":   "volume:write:\nvolume:write_zeroes:\n:6\n",
		"info --fault volume:read:f": "volume:read:freeze\n:4\n",
	} {
		r := newRelay()
		var stdout bytes.Buffer
		root := newCommand(r.open, r.describe)
		root.SetOut(&stdout)
		root.SetErr(io.Discard)
		arguments := append([]string{"__complete"}, strings.Fields(line)...)
		if len(arguments) < 4 {
			arguments = append(arguments, "")
		}
		program.Run(t.Context(), root, arguments)
		if stdout.String() != want {
			t.Errorf("%s is completed to %q, want %q", line, stdout.String(), want)
		}
	}
}
