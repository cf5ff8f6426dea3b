// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"crypto"
	"crypto/ed25519"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

var (
	seedFile = flag.String("seed-file", "", "a file for the seed of the running schedule")
	without  = flag.String("without", "", "a kind of fault to leave out")
	seeds    = flag.Int("seeds", 50, "how many schedules to run")
	first    = flag.Uint64("first", 1, "the seed of the first")
	heirs    = flag.Bool("heirs", false, "draw programs with heirs, and a network that delays, too")
	gateways = flag.Bool("gateway", false, "draw an NBD gateway with every seed, and nothing else")
	allTLS   = flag.Bool("tls", false, "use TLS with every seed")
	stop     = flag.Bool("stop", false, "stop at the first that fails, and do not shrink its plan")
	verbose  = flag.Bool("log", false, "print the logs of the programs as well")
	runs     = flag.Int("runs", 20, "how often to run the plan, until it fails")
	replay   = flag.String("plan", "", "a plan to run instead, as JSON, with a trace of its steps")
)

// outcome is what is left of a schedule.
type outcome struct {
	violation error
	trace     string
	steps     int
	virtual   time.Duration
}

func run(t *testing.T, p Plan) (o outcome) {
	t.Helper()
	log := zap.NewNop()
	if tracing && *verbose {
		config := zap.NewDevelopmentEncoderConfig()
		log = zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(config),
			zapcore.Lock(os.Stderr), zapcore.DebugLevel))
	}
	defer func() {
		if r := recover(); r != nil {
			o.violation = fmt.Errorf("%v", r) // goroutines are left
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		var credentials *mutualtls.Credentials
		if p.TLS {
			credentials = newCredentials(t)
		}
		w := p.run(log, credentials)
		o = outcome{w.violation, w.traceText(), w.steps, w.elapsed()}
	})
	return o
}

// newCredentials returns a certificate that is valid in virtual time. Signatures of Ed25519 have
// one length, so that as many bytes cross the network each time that a seed runs.
func newCredentials(t *testing.T) *mutualtls.Credentials {
	t.Helper()
	authority := mutualtlstest.NewAuthorityWithKeys(t, func() (crypto.Signer, error) {
		_, key, err := ed25519.GenerateKey(nil)
		return key, err
	})
	credentials, err := mutualtls.Load(authority.Write(t.TempDir(), []string{serverName}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return credentials
}

// TestSchedules runs schedules from consecutive seeds and shrinks the plan of each that fails.
func TestSchedules(t *testing.T) {
	runtime.GOMAXPROCS(1)
	if *replay != "" {
		p, err := ParsePlan([]byte(*replay))
		if err != nil {
			t.Fatal(err)
		}
		if o := rerun(t, p); o.violation != nil {
			fmt.Println(o.trace)
			t.Fatal(o.violation)
		}
		return
	}
	begun, steps, failures, virtual := time.Now(), 0, 0, time.Duration(0)
	schedules := 0
	for p, seed := range plans() {
		p.Faults = slices.DeleteFunc(p.Faults,
			func(f Fault) bool { return string(f.Kind) == *without })
		announce(t, seed)
		schedules++
		o := run(t, p)
		steps += o.steps
		virtual += o.virtual
		if o.violation == nil {
			continue
		}
		if failures++; *stop {
			t.Fatalf("seed %d: %v\nplan: %v", seed, o.violation, p)
		}
		if failures > maxShrunk {
			t.Errorf("seed %d: %v", seed, o.violation)
			continue
		}
		small := Shrink(p, func(p Plan) bool { return run(t, p).violation != nil })
		again := rerun(t, small)
		t.Errorf("seed %d: %v\nplan: %v\nshrunk: %v\nfails with: %v\nafter\n%s", seed, o.violation, p,
			small, again.violation, lastLines(again.trace, shownSteps))
	}
	t.Logf("%d schedules, %d failed, %d steps, %v of virtual time, in %v", schedules, failures, steps,
		virtual.Round(time.Second), time.Since(begun).Round(time.Millisecond))
}

// maxShrunk bounds how many plans are shrunk, which takes many runs of each.
const maxShrunk = 3

// seedsPerGateway is how many seeds there are for each that draws a gateway, too.
const seedsPerGateway = 8

// plans returns the plans of the seeds, and the seed of each.
func plans() iter.Seq2[Plan, uint64] {
	return func(yield func(Plan, uint64) bool) {
		for seed := *first; seed < *first+uint64(*seeds); seed++ {
			p := NewPlan(seed)
			p.TLS = p.TLS || *allTLS
			var drawn []Plan
			switch {
			case *heirs:
				drawn = append(drawn, p.WithHeirs())
			case !*gateways:
				drawn = append(drawn, p)
			}
			if *gateways || seed%seedsPerGateway == 0 {
				drawn = append(drawn, p.WithGateway())
			}
			for _, p := range drawn {
				if !yield(p, seed) {
					return
				}
			}
		}
	}
}

// shownSteps is how many of the steps before a failure are shown.
const shownSteps = 60

// rerun runs a plan with a trace until it fails. The Go scheduler is not seeded, so a plan may need
// several runs.
func rerun(t *testing.T, p Plan) (o outcome) {
	t.Helper()
	tracing = true
	defer func() { tracing = false }()
	for range *runs {
		if o = run(t, p); o.violation != nil {
			return o
		}
	}
	return o
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// announce writes the seed to a file, so that it is known if the process crashes.
func announce(t *testing.T, seed uint64) {
	t.Helper()
	if *seedFile == "" {
		return
	}
	if err := os.WriteFile(*seedFile, fmt.Appendf(nil, "%d\n", seed), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestKnownPlans runs the plans that have found bugs.
func TestKnownPlans(t *testing.T) {
	runtime.GOMAXPROCS(1)
	files, err := filepath.Glob("testdata/plans/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p, err := ParsePlan(text)
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				if o := run(t, p); o.violation != nil {
					t.Fatal(o.violation)
				}
				p.Seed++
			}
		})
	}
}

func TestAPlanReadsBackAsTheSame(t *testing.T) {
	for _, p := range []Plan{
		NewPlan(42), NewPlan(42).WithHeirs(), NewPlan(42).asScenario(rand.New(rand.NewPCG(42, 4))),
		NewPlan(42).WithGateway(),
	} {
		got, err := ParsePlan([]byte(p.String()))
		if err != nil || got.String() != p.String() {
			t.Errorf("%v became %v, %v", p, got, err)
		}
	}
}

func TestShrinkKeepsWhatTheFailureNeeds(t *testing.T) {
	p := NewPlan(7)
	p.Faults = append(p.Faults, Fault{Kind: KillRelay}, Fault{Kind: FlipBit},
		Fault{Kind: KillTarget})
	p.Depth = 8
	small := Shrink(p, func(p Plan) bool {
		return p.Depth >= 2 && slices.ContainsFunc(p.Faults,
			func(f Fault) bool { return f.Kind == FlipBit })
	})
	if len(small.Faults) != 1 || small.Faults[0].Kind != FlipBit || small.Depth != 2 ||
		small.Requests != 1 {
		t.Errorf("shrunk to %v", small)
	}
}

func TestShrinkSimplifiesHeirs(t *testing.T) {
	p := NewPlan(7).WithHeirs()
	p.Relays, p.Heirs, p.OneVolume, p.Mortal, p.Blocking = 2, 2, true, true, true
	p.Exclusive, p.Prompt, p.SilenceLimit = ByTarget, true, time.Second
	p.Faults = append(p.Faults, Fault{Kind: Hold, Relay: 1, Scope: DataConnections,
		Order: ControlFirst, After: time.Second, Changes: 1})
	small := Shrink(p, func(p Plan) bool {
		return p.Mortal && slices.ContainsFunc(p.Faults,
			func(f Fault) bool { return f.Kind == Hold && f.Order == ControlFirst })
	})
	want := Fault{Kind: Hold, Order: ControlFirst}
	if len(small.Faults) != 1 || small.Faults[0] != want || small.Relays != 1 || small.Heirs != 1 ||
		small.OneVolume || small.Blocking || small.Exclusive != "" || small.Prompt ||
		small.SilenceLimit != 0 {
		t.Errorf("shrunk to %v", small)
	}
}

func TestShrinkSimplifiesGateways(t *testing.T) {
	p := NewPlan(7).WithGateway()
	p.Connections, p.GatewayQueues, p.GatewayDepth, p.InFlight, p.GatewayIOPS = 4, 2, 32, 64, 100
	fault := Fault{Kind: EndConnection, Subject: 5, For: time.Second}
	p.Faults = append(p.Faults, fault)
	small := Shrink(p, func(p Plan) bool {
		return p.Connections >= 2 && slices.Contains(p.Faults, fault)
	})
	if len(small.Faults) != 1 || small.Connections != 2 || small.GatewayQueues != 1 ||
		small.GatewayDepth != 1 || small.InFlight != 1 || small.GatewayIOPS != 0 {
		t.Errorf("shrunk to %v", small)
	}
	small = Shrink(p, func(p Plan) bool { return slices.Contains(p.Faults, fault) })
	if small.Connections != 0 || small.InFlight != 0 {
		t.Errorf("shrunk to %v", small)
	}
}
