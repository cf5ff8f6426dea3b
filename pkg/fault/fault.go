// SPDX-License-Identifier: Apache-2.0

// Package fault decides what goes wrong, and when. A Rule names an operation of a seam, the
// occasions, and an action. An Injector holds rules; the hooks of the seams, in packages such as
// pkg/rdma/hook, ask it at each operation what to do, and do it.
//
// A rule has a text form, which all programs and hooks share:
//
//	SEAM:OPERATION[:CONDITION...]:ACTION
//
//	rdma:post_send:every=1000:error=IO_FAILED
//	volume:write:p=0.01:seed=7:delay=5ms
//	volume:read:range=1GiB+64KiB:error=EIO
//	comch:producer.send:while=trouble:freeze
//	control:receive:kind=open_volume:nth=1:drop
//
// Operations without a rule cost nothing, because hooks leave them alone. Operations that no rule
// matches neither allocate nor lock.
package fault

import (
	"slices"
	"strings"
)

// Seam is a package of interfaces that can be hooked.
type Seam string

// The seams.
const (
	RDMA    Seam = "rdma"
	Comch   Seam = "comch"
	Volume  Seam = "volume"
	Control Seam = "control"
)

// Action is what a rule does to an operation.
type Action uint8

// The actions. None means that nothing happens.
const (
	None Action = iota
	// Trace records the operation.
	Trace
	// Delay postpones the operation, or its completion, and what has to come after it.
	Delay
	// Error makes the operation fail with a code.
	Error
	// Drop loses a message and with it the connection: no seam allows a connection that has lost a
	// message to continue. A change of a volume that is dropped succeeds without being carried out.
	Drop
	// Duplicate sends a message twice.
	Duplicate
	// Corrupt inverts one bit of the data.
	Corrupt
	// Freeze postpones the operation, and what has to come after it, until Injector.Release, or
	// until the rule's switch is turned off.
	Freeze

	actionCount
)

var actionNames = [actionCount]string{
	"none", "trace", "delay", "error", "drop", "duplicate", "corrupt", "freeze",
}

// String returns the name in the text form of a rule.
func (a Action) String() string {
	if a < actionCount {
		return actionNames[a]
	}
	return "invalid"
}

// actions is a set.
type actions uint16

func set(all ...Action) actions {
	var s actions
	for _, a := range all {
		s |= 1 << a
	}
	return s
}

func (s actions) has(a Action) bool { return s&(1<<a) != 0 }

// String lists the actions.
func (s actions) String() string {
	var names []string
	for a := Trace; a < actionCount; a++ {
		if s.has(a) {
			names = append(names, a.String())
		}
	}
	return strings.Join(names, ", ")
}

// Any as the operation of a rule stands for every operation of the seam that allows the action.
const Any = "any"

type operation struct {
	name    string
	allowed actions
}

// The actions that the operations of the control plane, changes of a volume without data, messages,
// and received messages allow.
var (
	call     = set(Trace, Delay, Error, Freeze)
	change   = set(Trace, Delay, Error, Drop, Freeze)
	sending  = set(Trace, Delay, Error, Drop, Duplicate, Corrupt, Freeze)
	arriving = set(Trace, Delay, Error, Drop, Corrupt, Freeze)
)

// seams holds the operations of each seam, in the order in which errors list them.
var seams = []struct {
	name       Seam
	operations []operation
}{
	{RDMA, []operation{
		{"open", call}, {"listen", call}, {"connect", call}, {"accept", call},
		{"register", call}, {"deregister", call},
		{"post_send", set(Trace, Delay, Error, Drop, Freeze)},
		{"post_receive", set(Trace, Error)},
		{"poll", set(Trace, Delay, Freeze)},
		{"receive", set(Trace, Corrupt)},
	}},
	{Comch, []operation{
		{"listen", call}, {"connect", call}, {"accept", call},
		{"send", sending}, {"receive", arriving},
		{"new_consumer", call}, {"new_producer", call}, {"export", call}, {"import", call},
		{"producer.send", sending},
		{"producer.complete", set(Trace, Error)},
		{"consumer.post", set(Trace, Error)},
		{"consumer.poll", set(Trace, Delay, Corrupt, Freeze)},
	}},
	{Volume, []operation{
		{"read", set(Trace, Delay, Error, Corrupt, Freeze)},
		{"write", set(Trace, Delay, Error, Drop, Corrupt, Freeze)},
		{"flush", change}, {"trim", change}, {"write_zeroes", change}, {"extents", call},
	}},
	{Control, []operation{{"send", sending}, {"receive", arriving}}},
}

// operationsOf returns the operations of a seam, or nil if there is no such seam.
func operationsOf(seam Seam) []operation {
	for _, s := range seams {
		if s.name == seam {
			return s.operations
		}
	}
	return nil
}

// allowed returns the actions that an operation allows, and whether it exists.
func allowed(seam Seam, name string) (actions, bool) {
	operations := operationsOf(seam)
	if name == Any {
		var all actions
		for _, o := range operations {
			all |= o.allowed
		}
		return all, true
	}
	i := slices.IndexFunc(operations, func(o operation) bool { return o.name == name })
	if i < 0 {
		return 0, false
	}
	return operations[i].allowed, true
}
