// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/rand/v2"
	"time"
)

// The kinds of faults that concern a gateway.
const (
	// An NBD connection ends while its requests are in flight, and an heir follows. If it takes
	// some time, the disk has a write of the connection, and keeps it for as long.
	EndConnection FaultKind = "end-connection"
	// An administrator ends the session of the gateway.
	EndGateway FaultKind = "end-gateway"
	// The gateway is killed, and starts again.
	KillGateway   FaultKind = "kill-gateway"
	FreezeGateway FaultKind = "freeze-gateway" // SIGSTOP and SIGCONT
)

// gatewayFaultKinds are the other faults of plans with a gateway, each as often as it is drawn.
var gatewayFaultKinds = []FaultKind{
	KillRelay, KillTarget, PowerLoss, StopRelay, StopTarget, FreezeRelay, FreezeRelay, FreezeTarget,
	CutNetwork, Hold, Hold, ResetStream, HalfClose, FailDisk, StallDisk, StallDisk, EndGateway,
	EndGateway, KillGateway, FreezeGateway,
}

// WithGateway returns a plan of the same size with a gateway, and the faults that concern it. They
// follow from the seed, too.
func (p Plan) WithGateway() Plan {
	r := rand.New(rand.NewPCG(p.Seed, 6))
	p.Applications, p.Callers = 1, 0
	p.Connections, p.GatewayQueues = 1+r.IntN(4), 1+r.IntN(2)
	p.InFlight = pick(r, 4, 16, 64)
	p.GatewayDepth, p.GatewayIOPS = pick(r, 2, 8, 32), pick(r, uint32(0), 0, 0, 1, 100)
	p.ClientIOTimeout = pick(r, 2*time.Second, 10*time.Second, time.Minute)
	p.RelayIOTimeout = pick(r, time.Second, 5*time.Second, time.Minute)
	if p.GatewayIOPS == 1 {
		// Orphans last for longer than anybody is patient, but the schedule must not.
		p.Connections, p.GatewayQueues, p.GatewayDepth, p.InFlight = 2, 1, 32, 16
		p.Requests = 5
		p.ClientIOTimeout, p.RelayIOTimeout = time.Minute, time.Minute
	}
	p.Faults = nil
	step := 0
	for range 1 + r.IntN(5) {
		step += 200 + r.IntN(1200)
		for range r.IntN(3) {
			p.Faults = append(p.Faults, Fault{
				Step: step, Kind: gatewayFaultKinds[r.IntN(len(gatewayFaultKinds))],
				Subject: p.Targets - 1 + p.Targets*r.IntN(64), Scope: pick(r, scopes...),
				Order: pick(r, orders...),
				For: pick(r, time.Duration(r.ExpFloat64()*float64(time.Second)),
					time.Duration(r.Float64()*float64(longestHold))),
			})
			if f := &p.Faults[len(p.Faults)-1]; f.Kind != Hold {
				f.Scope, f.Order = "", ""
			}
		}
		for range pick(r, 0, 1, 1, 2) {
			f := Fault{Step: step + r.IntN(pick(r, 20, 200)), Kind: EndConnection,
				Subject: r.IntN(256)}
			if r.IntN(4) > 0 {
				f.For = pick(r, time.Duration(r.ExpFloat64()*float64(300*time.Millisecond)),
					time.Duration(r.Float64()*float64(2*longestHold)))
			}
			p.Faults = append(p.Faults, f)
		}
	}
	sortFaults(p.Faults)
	return p
}
