// SPDX-License-Identifier: Apache-2.0

package roster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client counts how often it was asked for.
type client struct {
	count int
	open  bool
}

func newRoster(limit int) *Roster[client] {
	return New(limit, func(c *client) bool { return !c.open })
}

func visit(r *Roster[client], owner, name string) *client {
	c := r.Of(owner, name)
	c.count++
	c.open = true
	return c
}

func counts(r *Roster[client], owner string) (text string) {
	all := r.All(owner)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		text += fmt.Sprintf("%s=%d ", name, all[name].count)
	}
	return text
}

func TestClientsBeyondTheLimitCountTogether(t *testing.T) {
	r := newRoster(2)
	for _, name := range []string{"a", "b", "c", "d", "a", Others} {
		visit(r, "disk", name)
	}
	visit(r, "tape", "e")
	if got := counts(r, "disk"); got != "a=2 b=1 other=3 " {
		t.Errorf("the clients of the disk are %s", got)
	}
	if got := counts(r, "tape"); got != "other=1 " {
		t.Errorf("the clients of the tape are %s", got)
	}
}

func TestAClientOfSeveralOwnersTakesAPlaceForEach(t *testing.T) {
	r := newRoster(2)
	for _, owner := range []string{"one", "two", "three"} {
		visit(r, owner, "a")
	}
	for owner, want := range map[string]string{"one": "a=1 ", "two": "a=1 ", "three": "other=1 "} {
		if got := counts(r, owner); got != want {
			t.Errorf("the clients of %s are %s, want %s", owner, got, want)
		}
	}
}

// A client that changes its name keeps nobody from being counted.
func TestANewClientTakesThePlaceOfOneThatHasGone(t *testing.T) {
	r := newRoster(3)
	visit(r, "disk", "stays")
	visit(r, "disk", "goes and returns").open = false
	for i := range 100 {
		visit(r, "disk", fmt.Sprintf("passes %d", i)).open = false
		visit(r, "disk", "goes and returns").open = false
	}
	if got := counts(r, "disk"); got != "goes and returns=101 passes 99=1 stays=1 " {
		t.Errorf("the clients are %s", got)
	}
}

func TestWithoutALimitThereAreNoClients(t *testing.T) {
	r := newRoster(0)
	if c := r.Of("disk", "a"); c != nil || len(r.All("disk")) != 0 {
		t.Error("there is a client")
	}
}

func TestNamesAreSafeAndBounded(t *testing.T) {
	for client, want := range map[string]string{
		"":                             unnamed,
		"bench on host-a (process 17)": "bench on host-a",
		"a\nb\x1b[31m":                 "a b [31m",
		strings.Repeat("x", 1000):      strings.Repeat("x", MaxName),
	} {
		if got := nameOf(client); got != want {
			t.Errorf("%q is kept as %q, want %q", client, got, want)
		}
	}
}
