package doctor

import (
	"context"
	"fmt"
	"net"
	"time"
)

// reachTimeout bounds the attempt to reach the target.
const reachTimeout = 3 * time.Second

func (m *machine) target(ctx context.Context) []Finding {
	const check = "target"
	if !m.Target.IsValid() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	var d net.Dialer
	connection, err := d.DialContext(ctx, "tcp", m.Target.String())
	if err != nil {
		return []Finding{fail(check, fmt.Sprintf("%v cannot be reached: %v", m.Target, err), "start the target; look at address, route and firewall")}
	}
	defer connection.Close()
	return []Finding{ok(check, fmt.Sprintf("%v can be reached from %v", m.Target, connection.LocalAddr()))}
}

func (m *machine) ports() []Finding {
	const check = "ports"
	var findings []Finding
	for _, address := range m.Listen {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			findings = append(findings, fail(check, fmt.Sprintf("%s cannot be listened on: %v", address, err), "see who has it: ss -ltnp"))
			continue
		}
		_ = listener.Close()
		findings = append(findings, ok(check, address+" is free"))
	}
	return findings
}

// timeouts looks whether the bounds on waiting fit each other.
func (m *machine) timeouts() []Finding {
	const check = "time-outs"
	detail := fmt.Sprintf("a silent peer is dead after %v, with signs of life every %v; an IO may take %v", m.DeadAfter, m.KeepAliveInterval, m.IOTimeout)
	switch {
	case m.DeadAfter < 2*m.KeepAliveInterval:
		return []Finding{fail(check, detail+": one late sign of life ends all sessions", "set --keep-alive-dead-after to three times --keep-alive-interval or more")}
	case m.IOTimeout == 0:
		return []Finding{warn(check, detail+" (no bound): a target that hangs holds sessions for ever", "set --io-timeout")}
	case m.IOTimeout <= m.DeadAfter:
		return []Finding{warn(check, detail+": an IO times out before a dead target is noticed, and the reason is lost", "set --io-timeout above --keep-alive-dead-after")}
	}
	return []Finding{ok(check, detail)}
}
