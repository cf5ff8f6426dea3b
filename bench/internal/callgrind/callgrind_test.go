// SPDX-License-Identifier: Apache-2.0

package callgrind

import (
	"maps"
	"strings"
	"testing"
)

func TestAProfileIsCountedByPlace(t *testing.T) {
	counts, err := parse(strings.NewReader(`# callgrind format
version: 1
creator: callgrind-3.19.0
cmd: program
positions: line
events: Ir

fl=(1) relay.go
fn=(1) example.com/relay.forward
10 7
+1 3
fi=(2) message.go
20 5
fe=(1)
12 1
cfi=(3) target.go
cfn=(2) example.com/target.begin
calls=2 30
13 100

fl=(3)
fn=(2)
30 100
*
fl=other.go
fn=plain
-2 4
summary: 120
`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[Place]uint64{
		{"relay.go", "example.com/relay.forward"}:   11,
		{"message.go", "example.com/relay.forward"}: 5,
		{"target.go", "example.com/target.begin"}:   100,
		{"other.go", "plain"}:                       4,
	}
	if !maps.Equal(counts, want) {
		t.Errorf("counts are %v, want %v", counts, want)
	}
}

func TestABrokenProfileIsAnError(t *testing.T) {
	for name, profile := range map[string]string{
		"an undefined name":     "fn=(7)\n1 2\n",
		"a count in words":      "fn=f\n1 many\n",
		"two events per line":   "fn=f\n1 2 3\n",
		"a line without an end": "fn=f\n" + strings.Repeat("x", 1<<20),
	} {
		if counts, err := parse(strings.NewReader(profile)); err == nil {
			t.Errorf("%s: no error, counts %v", name, counts)
		}
	}
}
