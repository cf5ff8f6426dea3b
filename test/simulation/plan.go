// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/retry"
)

// Plan is everything that a schedule is made of. It follows from a seed; a shrunk plan is written
// out, and kept in testdata if it has found a bug.
type Plan struct {
	Seed uint64 `json:"seed"`
	// Sizes of the world. Each target has a channel of the relay; applications use them in turn.
	Targets      int `json:"targets"`
	Relays       int `json:"relays,omitempty"` // with channels to the same targets; 0 means 1
	Applications int `json:"applications"`
	Workers      int `json:"workers"` // threads of the relay and of each target
	Queues       int `json:"queues"`  // of each application
	Depth        int `json:"depth"`
	Buffer       int `json:"buffer"`   // blocks of the largest request
	Requests     int `json:"requests"` // of each application, and of each user of a caller
	// Callers is the number of goroutines of a program that uses blocking methods; 0 is no program.
	// It closes its volume after a while, unless that is 0.
	Callers           int           `json:"callers,omitempty"`
	CallersLeaveAfter time.Duration `json:"callers_leave_after_ns,omitempty"`
	// Heirs is the number of estates. With estates, the rule of ends is checked, and bytes in
	// flight outlive their sender.
	Heirs int `json:"heirs,omitempty"`
	// OneVolume puts all estates on one volume, instead of one for each.
	OneVolume bool        `json:"one_volume,omitempty"`
	Exclusive Exclusivity `json:"exclusive,omitempty"`
	// Mortal owners of estates do not reopen a volume whose session has ended: they end, too.
	Mortal bool `json:"mortal,omitempty"`
	// Blocking makes every other owner of an estate use the blocking methods.
	Blocking bool `json:"blocking,omitempty"`
	// Prompt heirs of an owner that was killed begin before its relay can know that it is dead.
	Prompt bool `json:"prompt,omitempty"`
	// Connections is how many NBD clients use a gateway at a time; 0 is no gateway. It has a volume
	// of its own. InFlight is how many requests each client has in flight, GatewayIOPS the rate
	// limit of the gateway's session; 0 is none.
	Connections   int    `json:"connections,omitempty"`
	GatewayQueues int    `json:"gateway_queues,omitempty"`
	GatewayDepth  int    `json:"gateway_depth,omitempty"` // of each queue
	InFlight      int    `json:"in_flight,omitempty"`
	GatewayIOPS   uint32 `json:"gateway_iops,omitempty"`
	// SilenceLimit is how long a relay and a target may hear nothing of each other; 0 means a
	// second, which is as long as a lease.
	SilenceLimit time.Duration `json:"silence_limit_ns,omitempty"`
	// CRC protects RDMA connections. Only then does the network flip bits in them.
	CRC bool `json:"crc"`
	// TLS protects all connections between relays and targets.
	TLS bool `json:"tls,omitempty"`
	// Staged makes the relay move data through bounce buffers.
	Staged bool `json:"staged,omitempty"`
	// IOPS is each session's rate limit; 0 is none. Twice as much is the limit of a channel.
	IOPS uint32 `json:"iops,omitempty"`
	// The timeouts of the client and of the relay for an IO.
	ClientIOTimeout time.Duration `json:"client_io_timeout_ns"`
	RelayIOTimeout  time.Duration `json:"relay_io_timeout_ns"`
	DrainTimeout    time.Duration `json:"drain_timeout_ns"`
	Faults          []Fault       `json:"faults"`
}

// Fault is something that goes wrong.
type Fault struct {
	Step int `json:"step"` // of the schedule, at which it begins
	// After is the least time from the beginning of the fault before.
	After time.Duration `json:"after_ns,omitempty"`
	// Changes makes it wait, for a bounded number of steps, until the present owner of an estate
	// has that many changes in flight.
	Changes int           `json:"changes,omitempty"`
	Kind    FaultKind     `json:"kind"`
	Subject int           `json:"subject"`         // number of the process, target, or stream
	For     time.Duration `json:"for_ns"`          // how long it lasts
	Relay   int           `json:"relay,omitempty"` // that it concerns
	Scope   Scope         `json:"scope,omitempty"` // of a Hold
	Order   Order         `json:"order,omitempty"` // of a Hold
}

// FaultKind is what goes wrong.
type FaultKind string

// The kinds of faults.
const (
	KillRelay      FaultKind = "kill-relay"
	KillTarget     FaultKind = "kill-target"     // the process; the disk's cache survives
	PowerLoss      FaultKind = "power-loss"      // of a target's machine
	KillInitiator  FaultKind = "kill-initiator"  // its blocks are then left alone
	StopRelay      FaultKind = "stop-relay"      // SIGTERM
	StopTarget     FaultKind = "stop-target"     // SIGTERM
	FreezeRelay    FaultKind = "freeze-relay"    // SIGSTOP and SIGCONT
	DeafRelay      FaultKind = "deaf-relay"      // it reads late what clients send, and that they end
	FreezeTarget   FaultKind = "freeze-target"   // SIGSTOP and SIGCONT
	FreezeClient   FaultKind = "freeze-client"   // SIGSTOP and SIGCONT
	CutNetwork     FaultKind = "cut-network"     // between relay and target
	ResetStream    FaultKind = "reset-stream"    // one TCP connection
	HalfClose      FaultKind = "half-close"      // one direction of a TCP connection ends
	FlipBit        FaultKind = "flip-bit"        // in an RDMA connection with CRC
	FailDisk       FaultKind = "fail-disk"       // the next requests fail
	StallDisk      FaultKind = "stall-disk"      // requests do not complete for a while
	Reconfigure    FaultKind = "reconfigure"     // the relay, and back: its channels, or their settings
	WithdrawVolume FaultKind = "withdraw-volume" // from a target, which closes and reopens it later
	EndSessions    FaultKind = "end-sessions"    // an administrator ends some of relay and target
	HostileHost    FaultKind = "hostile-host"    // a client that writes garbage into shared memory
	HostileNetwork FaultKind = "hostile-network" // connections that are silent, send garbage, or replay
	NewInitiator   FaultKind = "new-initiator"   // is no fault: a program that begins meanwhile
	Hold           FaultKind = "hold"            // the network delivers some bytes late
	// The present owner of an estate ends, and an heir comes through Fault.Relay.
	KillOwner   FaultKind = "kill-owner"
	OwnerLeaves FaultKind = "owner-leaves" // it closes its volume
	EndOwner    FaultKind = "end-owner"    // an administrator ends its session
	FreezeOwner FaultKind = "freeze-owner" // SIGSTOP, then the same, and SIGCONT
	// The heir takes an exclusive volume from its predecessor, which goes on until then.
	PreemptOwner FaultKind = "preempt-owner"
)

var faultKinds = []FaultKind{
	KillRelay, KillTarget, PowerLoss, KillInitiator, StopRelay, StopTarget, FreezeRelay,
	FreezeTarget, FreezeClient, CutNetwork, ResetStream, HalfClose, FlipBit, FailDisk, StallDisk,
	Reconfigure, HostileHost, HostileNetwork, WithdrawVolume, EndSessions, NewInitiator,
}

// NewPlan derives a plan from a seed.
func NewPlan(seed uint64) Plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := Plan{
		Seed: seed, Targets: 1 + r.IntN(2), Applications: 1 + r.IntN(3), Workers: 1 + r.IntN(2),
		Queues: 1 + r.IntN(2), Depth: 1 + r.IntN(8), Buffer: 1 + r.IntN(8),
		Requests: 20 + r.IntN(60), CRC: r.IntN(2) == 0,
		ClientIOTimeout: pick(r, 500*time.Millisecond, 2*time.Second, 10*time.Second),
		RelayIOTimeout:  pick(r, 300*time.Millisecond, time.Second, 5*time.Second),
		DrainTimeout:    pick(r, 0, 100*time.Millisecond, 2*time.Second, infinite),
	}
	step := 0
	for range r.IntN(7) {
		// Half of the faults follow closely on another.
		step += 20 + r.IntN(pick(r, 200, 1500))
		f := Fault{
			Step: step, Kind: faultKinds[r.IntN(len(faultKinds))], Subject: r.IntN(64),
			For: time.Duration(r.ExpFloat64() * float64(time.Second)),
		}
		if f.Kind == FlipBit && !p.CRC {
			continue
		}
		p.Faults = append(p.Faults, f)
	}
	p.Staged = r.IntN(4) == 0
	if r.IntN(4) == 0 {
		p.IOPS = pick(r, uint32(200), 2000)
	}
	if r.IntN(3) == 0 {
		p.Callers = 1 + r.IntN(4)
		if r.IntN(2) == 0 {
			p.CallersLeaveAfter = time.Duration(r.ExpFloat64() * float64(time.Second))
		}
	}
	p.TLS = r.IntN(8) == 0
	return p
}

// WithHeirs returns the plan with a second relay, estates, and the faults that concern them. All
// that follows from the seed, too.
func (p Plan) WithHeirs() Plan {
	r := rand.New(rand.NewPCG(p.Seed, 4))
	if r.IntN(4) > 0 {
		return p.asScenario(r)
	}
	p.Relays, p.Heirs = 2, 1+r.IntN(2)
	p.Exclusive = pick(r, "", "", ByClient, ByTarget)
	p.OneVolume = p.Exclusive == "" && r.IntN(2) == 0
	p.Mortal, p.Blocking = r.IntN(3) == 0, r.IntN(3) == 0
	p.Faults = slices.Clone(p.Faults)
	for i := range p.Faults {
		p.Faults[i].Relay = r.IntN(p.Relays)
	}
	step := 0
	relays := []int{0, 1} // of the estates' owners
	for range 1 + r.IntN(3) {
		step += 200 + r.IntN(1500)
		e := r.IntN(p.Heirs)
		for range r.IntN(3) {
			// Most holds concern the owner.
			f := Fault{Step: step, Kind: Hold, Subject: e%p.Targets + p.Targets*r.IntN(64),
				Scope: pick(r, append(scopes, "", "", ToTarget)...), Order: pick(r, orders...),
				Relay: pick(r, relays[e], relays[e], relays[e], 1-relays[e]),
				For: pick(r, time.Duration(r.ExpFloat64()*float64(time.Second)),
					time.Duration(r.Float64()*float64(longestHold)))}
			p.Faults = append(p.Faults, f)
		}
		if r.IntN(4) > 0 {
			relays[e] = r.IntN(p.Relays)
			p.Faults = append(p.Faults, Fault{
				Step: step + r.IntN(pick(r, 60, 400)), Subject: e + p.Heirs*r.IntN(64),
				Relay: relays[e], For: time.Duration(r.ExpFloat64() * float64(time.Second)),
				Kind: pick(r, KillOwner, KillOwner, OwnerLeaves, EndOwner, FreezeOwner,
					PreemptOwner),
			})
		}
	}
	sortFaults(p.Faults)
	return p
}

func sortFaults(faults []Fault) {
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Compare(a.Step, b.Step) })
}

// delays reports whether the network delivers what its sender's end leaves in flight, and may hold
// it.
func (p *Plan) delays() bool { return p.Heirs > 0 || p.Connections > 0 }

// longestHold is how long a network holds bytes at most. It is more than kernels wait for.
const longestHold = 10 * time.Second

// infinite is the DrainTimeout without a bound.
const infinite = time.Duration(math.MaxInt64)

func (p *Plan) drainTimeout() retry.Bound {
	if p.DrainTimeout == infinite {
		return retry.Forever()
	}
	return retry.Within(p.DrainTimeout)
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// String returns the plan as one line of JSON, which ParsePlan reads.
func (p Plan) String() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // it has only numbers and strings
	}
	return string(text)
}

// ParsePlan reads a plan.
func ParsePlan(text []byte) (Plan, error) {
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("parse plan: %w", err)
	}
	return p, nil
}

// shrinkTries is how many seeds a smaller plan gets to fail with.
const shrinkTries = 4

// Shrink returns the smallest plan it can find that still fails, according to fails.
func Shrink(p Plan, fails func(Plan) bool) Plan {
	try := func(smaller Plan) bool {
		for i := range shrinkTries {
			smaller.Seed = p.Seed + uint64(i)
			if fails(smaller) {
				p = smaller
				return true
			}
		}
		return false
	}
	for progress := true; progress; {
		progress = false
		for i := 0; i < len(p.Faults); i++ {
			smaller := p
			smaller.Faults = slices.Delete(slices.Clone(p.Faults), i, i+1)
			if try(smaller) {
				progress, i = true, i-1
			}
		}
		for _, shrink := range []func(*Plan) *int{
			func(p *Plan) *int { return &p.Targets }, func(p *Plan) *int { return &p.Applications },
			func(p *Plan) *int { return &p.Workers }, func(p *Plan) *int { return &p.Queues },
			func(p *Plan) *int { return &p.Buffer }, func(p *Plan) *int { return &p.Depth },
			func(p *Plan) *int { return &p.Requests }, func(p *Plan) *int { return &p.Relays },
			func(p *Plan) *int { return &p.Heirs }, func(p *Plan) *int { return &p.Connections },
			func(p *Plan) *int { return &p.GatewayQueues },
			func(p *Plan) *int { return &p.InFlight },
			func(p *Plan) *int { return &p.GatewayDepth },
		} {
			for {
				smaller := p
				n := shrink(&smaller)
				if *n <= 1 {
					break
				}
				*n = (*n + 1) / 2
				if !try(smaller) {
					break
				}
				progress = true
			}
		}
		for _, simplify := range simplifications {
			smaller := p
			smaller.Faults = slices.Clone(p.Faults)
			if simplify(&smaller); smaller.String() != p.String() && try(smaller) {
				progress = true
			}
		}
	}
	return p
}

// simplifications make a plan simpler that has what they take away.
var simplifications = []func(*Plan){
	func(p *Plan) { p.TLS = false },
	func(p *Plan) { p.OneVolume = false },
	func(p *Plan) { p.Exclusive = "" },
	func(p *Plan) { p.Mortal = false },
	func(p *Plan) { p.Blocking = false },
	func(p *Plan) { p.GatewayIOPS = 0 },
	func(p *Plan) { p.Connections, p.GatewayQueues, p.GatewayDepth, p.InFlight = 0, 0, 0, 0 },
	func(p *Plan) { p.Prompt = false },
	func(p *Plan) { p.SilenceLimit = 0 },
	func(p *Plan) {
		for i := range p.Faults {
			p.Faults[i].Changes = 0
		}
	},
	func(p *Plan) {
		for i := range p.Faults {
			p.Faults[i].After = 0
		}
	},
	func(p *Plan) {
		for i := range p.Faults {
			p.Faults[i].Scope = ""
		}
	},
	func(p *Plan) {
		for i := range p.Faults {
			p.Faults[i].Order = ""
		}
	},
	func(p *Plan) {
		for i := range p.Faults {
			p.Faults[i].Relay = 0
		}
	},
}
