// SPDX-License-Identifier: Apache-2.0

// Package states describes the states that something can be in, for everybody who shows them or
// depends on them.
package states

import (
	"fmt"
	"strings"
)

// Meaning is what a state means.
type Meaning[S ~string] struct {
	State S
	Text  string // for people
	// IsUsable means that what is in the state can be used; its table says by whom.
	IsUsable bool
	// Alerts means that somebody has to do something about it if it lasts.
	Alerts bool
}

// Table holds all states of something.
type Table[S ~string] []Meaning[S]

// Of returns what a state means.
func (t Table[S]) Of(state S) Meaning[S] {
	for _, m := range t {
		if m.State == state {
			return m
		}
	}
	return Meaning[S]{State: state}
}

// Names lists the names of all states, for help texts.
func (t Table[S]) Names() string {
	var names []string
	for _, m := range t {
		names = append(names, string(m.State))
	}
	last := len(names) - 1
	return fmt.Sprintf("%s, or %s", strings.Join(names[:last], ", "), names[last])
}
