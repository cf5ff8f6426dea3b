// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// table is a table of states and events in a comment: cells[event][state].
type table struct {
	states, events []string
	cells          map[string]map[string]string
}

// readTable reads the table in a comment of a file whose header has the given states. It drops the
// marks of footnotes.
func readTable(t *testing.T, file string, states ...string) table {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	columns := regexp.MustCompile(` {2,}`)
	m := table{states: states, cells: map[string]map[string]string{}}
	inside := false
	for line := range strings.Lines(string(source)) {
		line, isTable := strings.CutPrefix(strings.TrimRight(line, "\n"), "//\t")
		cells := columns.Split(line, -1)
		switch {
		case !isTable:
			inside = false
		case strings.Join(cells, " ") == " "+strings.Join(states, " "):
			inside = true
		case inside && len(cells) != len(states)+1:
			t.Fatalf("row %q has %d cells, %d states", line, len(cells)-1, len(states))
		case inside:
			row := map[string]string{}
			for i, state := range states {
				row[state] = strings.TrimRight(cells[i+1], "¹²³⁴")
			}
			m.events, m.cells[cells[0]] = append(m.events, cells[0]), row
		}
	}
	if len(m.events) == 0 {
		t.Fatalf("%s has no table of the states %v", file, states)
	}
	return m
}

// forEachCell tries the cells of all events. try has one entry for each event, and returns the
// outcome in a state.
func (m table) forEachCell(t *testing.T, try map[string]func(t *testing.T, state string) string) {
	if len(try) != len(m.events) {
		t.Errorf("the table has %d events, %d are tried", len(m.events), len(try))
	}
	for _, event := range m.events {
		for _, state := range m.states {
			want := m.cells[event][state]
			if want == "–" {
				continue
			}
			t.Run(event+" while "+state, func(t *testing.T) {
				if got := try[event](t, state); got != want {
					t.Errorf("the outcome is %q, the table has %q", got, want)
				}
			})
		}
	}
}

var volumeStates = []string{volumeOpening: "opening", volumeServing: "serving",
	volumeReopening: "reopening", volumeFailed: "failed", volumeClosed: "closed"}

// TestLifeOfAVolume tries each cell of the table in the comment of life.
func TestLifeOfAVolume(t *testing.T) {
	reason, lost := errors.New("the reason"), errors.New("the session's")
	// begin returns the life of a volume that has come to a state.
	begin := func(t *testing.T, state string, canReconnect bool) *life {
		l := newLife(newBackground(t.Context(), zap.NewNop()), canReconnect)
		if state == "opening" {
			return l
		}
		l.session.Store(&session{id: sessionID{number: 1}, failure: lost})
		l.serve()
		switch state {
		case "reopening":
			l.lose()
		case "failed":
			l.fail(reason)
		case "closed":
			l.close()
		}
		return l
	}
	describe := func(err error) string {
		switch {
		case err == nil:
			return "nil"
		case errors.Is(err, reason):
			return "reason"
		case errors.Is(err, lost):
			return "session's"
		}
		return status.CodeOf(err).String()
	}
	does := func(event func(*life)) func(*testing.T, string) string {
		return func(t *testing.T, state string) string {
			l := begin(t, state, true)
			event(l)
			if next := volumeStates[l.state]; next != state {
				return "→ " + next
			}
			return "stays"
		}
	}
	await := func(number uint64) func(*testing.T, string) string {
		return func(t *testing.T, state string) (outcome string) {
			synctest.Test(t, func(t *testing.T) {
				l := begin(t, state, true)
				defer l.close()
				returned := make(chan error, 1)
				go func() { returned <- l.awaitSession(number) }()
				synctest.Wait()
				select {
				case err := <-returned:
					if outcome = describe(err); err == nil {
						outcome = "returns"
					}
				default:
					outcome = "waits"
				}
			})
			return outcome
		}
	}
	readTable(t, "state.go", volumeStates...).forEachCell(t,
		map[string]func(*testing.T, string) string{
			"serve":               does((*life).serve),
			"lose":                does((*life).lose),
			"fail":                does(func(l *life) { l.fail(reason) }),
			"close":               does(func(l *life) { l.close() }),
			"awaitSession, later": await(1),
			"awaitSession, same":  await(0),
			"err": func(t *testing.T, state string) string {
				return describe(begin(t, state, true).err())
			},
			"err, no Reconnect": func(t *testing.T, state string) string {
				return describe(begin(t, state, false).err())
			},
			"done": func(t *testing.T, state string) string {
				select {
				case <-begin(t, state, true).done:
					return "closed"
				default:
					return "open"
				}
			},
		})
}

// Who waits for a session learns at once that there is one, or that there will be none.
func TestEveryEventWakesWhoWaitsForASession(t *testing.T) {
	reason := errors.New("the reason")
	for name, c := range map[string]struct {
		event func(*life)
		want  error
	}{
		"serve": {func(l *life) {
			l.session.Store(&session{id: sessionID{number: 2}})
			l.serve()
		}, nil},
		"fail":  {func(l *life) { l.fail(reason) }, reason},
		"close": {func(l *life) { l.close() }, status.Shutdown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLife(newBackground(t.Context(), zap.NewNop()), true)
				l.session.Store(&session{id: sessionID{number: 1}})
				l.serve()
				l.lose()
				returned := make(chan error, 1)
				go func() { returned <- l.awaitSession(1) }()
				synctest.Wait()
				c.event(l)
				if err := <-returned; !errors.Is(err, c.want) {
					t.Errorf("awaitSession returns %v, want %v", err, c.want)
				}
			})
		})
	}
}

func TestAClosedVolumeKeepsItsReasonAndItsOutage(t *testing.T) {
	reason := errors.New("the reason")
	l := newLife(newBackground(t.Context(), zap.NewNop()), true)
	l.session.Store(&session{})
	l.serve()
	if !l.close() || l.close() {
		t.Error("close does not tell the first call from the second")
	}
	l.lose()
	if l.outage() != 0 {
		t.Error("the outage of a closed volume has begun")
	}
	l.fail(reason)
	if err := l.err(); !errors.Is(err, reason) || l.state != volumeClosed {
		t.Errorf("a volume that fails while it is being closed reports %v", err)
	}
}
